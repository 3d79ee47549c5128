"""What executors need of an array library, one implementation for each library."""
