"""Groups of settings, checked, from Python and from YAML; nothing here knows what they are settings of."""
