"""How samples come from a dataset to the step: read, made into batches, kept, and moved."""
