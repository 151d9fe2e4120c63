"""Everything asked of an accelerator, and switches that are global to torch."""
