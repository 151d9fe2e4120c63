"""Copies batches to the device: in their step, or ahead of it through pinned memory."""
