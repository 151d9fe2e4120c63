"""Trackers: MLflow, TensorBoard, trackio, Weights & Biases. One file each, imported to be fed."""
