"""Samples read ahead of training, by threads and by processes."""
