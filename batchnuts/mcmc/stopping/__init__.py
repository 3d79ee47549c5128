"""When sampling ends by itself (decision 41)."""
