"""Several processes (ranks) that train one model: their start, collectives, shared parameters."""
