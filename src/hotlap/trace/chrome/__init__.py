"""Traces of torch.profiler, in Chrome's format: read, and what they say. No torch."""
