"""The intermediate representation: programs as graphs of blocks, the verifier, the printer, and analyses of graphs."""
