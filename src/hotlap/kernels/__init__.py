"""Computations of our own: losses that need less memory."""
