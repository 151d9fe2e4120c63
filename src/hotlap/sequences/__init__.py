"""Samples of different lengths: budgets of tokens, and padding."""
