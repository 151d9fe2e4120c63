"""A run's state in checkpoints: collected, checked, restored. `hotlap.checkpoint` has the files."""
