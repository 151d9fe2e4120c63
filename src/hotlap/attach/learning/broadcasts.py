"""`find_table`: whether a loss compares each prediction with every target."""

from typing import Any

from hotlap.attach.learning.graphs import nodes_of

_LOSSES = tuple(f"{name}LossBackward0" for name in ("Huber", "L1", "Mse", "SmoothL1"))
"""Losses of torch's that give both of their arguments the same shape."""
_LAYERS = ("Addmm", "Bmm", "Convolution", "Embedding", "Mm", "NativeBatchNorm", "NativeLayerNorm")
"""What begins the model, seen from its loss."""


def find_table(root: Any) -> int:
    """Return n where n predictions in a column and n targets were made into a table of n x n.

    Only where the targets have no graph: distances of all pairs are computed so on purpose.

    Args:
        root: the node of a loss in the autograd graph.

    Returns:
        0 where nothing of the kind is seen.
    """
    for node in nodes_of(root, until=_LAYERS):
        kind, inner = type(node).__name__, node.next_functions
        known = [each for each in inner if each[0] is not None]
        if len(known) != 1:
            continue
        before, output = known[0]
        if kind == "SubBackward0" and len(inner) == 2:
            number = _broadcast(_shape_of(before, output), _shape_of(node, 0))
        elif kind in _LOSSES and type(before).__name__ == "ExpandBackward0":
            number = _broadcast(_shape_of(*before.next_functions[0]), _shape_of(before, 0))
        else:
            continue
        if number:
            return number
    return 0


def _broadcast(given: tuple[int, ...], made: tuple[int, ...]) -> int:
    number = made[0] if made else 0
    is_table = number > 1 and made == (number, number)
    return number if is_table and given in ((number,), (number, 1), (1, number)) else 0


def _shape_of(node: Any, output: int) -> tuple[int, ...]:
    """Return the shape of one of a node's outputs, () if it is not known."""
    known = getattr(node, "_input_metadata", ())
    return tuple(known[output].shape) if output < len(known) else ()
