"""Programs from their text: the inverse of `ir.printer`."""
