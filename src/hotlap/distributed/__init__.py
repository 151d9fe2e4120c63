"""Several processes that train one model: who they are, their start, and what they add up."""
