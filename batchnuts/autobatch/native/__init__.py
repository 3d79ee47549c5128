"""Machine code for one lane: a lowered program as LLVM's instructions, and the machine that runs it lane by lane."""
