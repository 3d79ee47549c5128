"""Files of runs, whatever is in them: paths and URLs, groups of arrays, and files that are whole or not there."""
