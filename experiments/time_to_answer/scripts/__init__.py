"""What a user of each peer runs: a process each, timed from its start to its end. They import nothing else of ours."""
