"""Losses that need less memory than those of torch, with the same gradients up to rounding."""
