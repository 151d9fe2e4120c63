"""Export of a trained model into a file, and reading of weights that were stored at a path."""
