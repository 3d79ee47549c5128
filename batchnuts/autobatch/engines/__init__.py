"""What runs a compiled program: the contract of an engine, and the engines that there are."""
