"""What concerns this process as a whole: signals, lines on stderr, memory, the start-up lines of libraries."""
