"""Data sets as the batches of one epoch after another."""
