"""Statistics of draws in blocks: moments, effective sizes, R-hat, and chains that are apart."""
