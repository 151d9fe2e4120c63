"""Samples and batches in memory."""
