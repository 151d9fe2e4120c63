"""The roles that a process plays in which the engine trains a recipe."""
