"""Samples before they are batches: their order, reading, transforms, collation, random numbers."""
