"""The ways in which a captured step is repeated to be compared with, and names in what is found."""

EXACT = "exact"
"""In the dtype of the reference, float64 where the device has it."""
PLAIN = "plain"
"""As the plain script computes it."""
LAID_OUT = "laid_out"
"""As the plain script computes it, with the weights in the memory format of a plan."""
BUFFER = "buffer"
"""Stands in a record's `start` where a parameter has whether it takes a gradient."""
CARRIED_INPUT = "carried input"
"""Begins the name of a state that a model returns and is called with again, among buffers."""

EVALUATIONS = 3
"""Forwards in evaluation that are kept whole, to be repeated."""


def ways_of(memory_format: str) -> tuple[str, ...]:
    """Return the ways that a plan needs; the exact one is the last.

    Args:
        memory_format: that a plan gives the weights, as `torch.memory_format` names it, or "".
    """
    return (PLAIN, LAID_OUT, EXACT) if memory_format else (PLAIN, EXACT)
