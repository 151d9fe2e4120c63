"""Looks for better hyperparameters: the task moves, the plan stays."""
