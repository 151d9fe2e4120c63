"""Which samples make which step, and what is done to them once they are read."""
