"""Shell scripts: what they run, and copies of their text with another training command."""
