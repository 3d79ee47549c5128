"""What the language needs of array libraries, and one module for each library."""
