"""Models of Stan programs: source and data -> a program's MIR -> a model whose density is a function of C."""
