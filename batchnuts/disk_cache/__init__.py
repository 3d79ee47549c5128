"""Compiled programs on disk, as bytes by their key (decisions/0034-programs-on-disk.md). No array library in here."""
