"""Finds the largest micro-batch that fits into memory, and the fastest one, by trials."""
