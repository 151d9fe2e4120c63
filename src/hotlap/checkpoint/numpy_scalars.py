"""Reads NumPy's scalars in a pickle, such as a best accuracy, without NumPy's own unpickling.

NumPy would unpickle objects inside them. Here the names in the file stand for functions of this
module, which know numbers only.
"""

from typing import Any

import numpy

_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


class NumberType:
    """Stands for `numpy.dtype` in a file."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.order = name, "<"

    def __setstate__(self, state: Any) -> None:
        if state[1] == ">":
            self.order = ">"


def read_scalar(kind: Any, content: Any) -> Any:
    """Stand for `numpy.core.multiarray.scalar` in a file: return a plain number, None for others.

    Args:
        kind: of the number, a `NumberType`.
        content: its bytes.
    """
    if not isinstance(kind, NumberType) or kind.name not in _NUMBERS:
        return None
    return numpy.frombuffer(content, kind.order + kind.name, 1)[0].item()


NUMPY_SCALARS = (
    (NumberType, "numpy.dtype"),
    (read_scalar, "numpy._core.multiarray.scalar"),
    (read_scalar, "numpy.core.multiarray.scalar"),
)
"""For `torch.serialization.safe_globals`: what is called, and the name that stands in a file."""
