"""What is sampled: variables, log-density and the quantities computed from draws, checked."""
