"""What a run holds in memory: predicted, and measured."""
