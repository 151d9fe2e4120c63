"""Batches to where the model is."""
