"""How often each block and source line ran and on how many lanes."""
