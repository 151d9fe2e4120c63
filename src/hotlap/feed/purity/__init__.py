"""Whether a sample is the same however often it is read: its code, attributes, draws, changes."""
