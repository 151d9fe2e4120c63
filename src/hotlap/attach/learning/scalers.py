"""The lines that make a `GradScaler` in each pass of a loop that the training goes on in."""

import ast
from collections.abc import Iterator
from types import FrameType

from hotlap.trace import frames
from hotlap.trace.learning import ScalerFacts
from hotlap.trace.source.statements import tree_of
from hotlap.usercode import is_users

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST = 1000
"""Optimizers whose steps are noted: a script may make one in each step."""


class Scalers:
    """Knows a line by its first scaler: the next one may be made an epoch later."""

    def __init__(self) -> None:
        self._with_optimizer: set[str] = set()
        """Loops in which optimizers are made: a scaler of its own belongs to each of them."""
        self.optimizers_made: list[int] = []
        """Steps that were taken before each of them."""
        self._made: dict[str, list[frames.Loop]] = {}
        self._around_updates: set[str] | None = None

    def optimizer_made(self, frame: FrameType | None, steps: int = 0) -> None:
        """An optimizer is made, after so many steps."""
        if len(self.optimizers_made) < _MOST:
            self.optimizers_made.append(steps)
        self._with_optimizer |= {loop.where for loop in frames.loops_around(frame)}

    def made(self, frame: FrameType | None) -> None:
        """A scaler is made."""
        where = frames.location_of(frame)
        if where and where not in self._made:
            found = [loop for loop in frames.loops_around(frame) if (loop.total or 0) > 1]
            self._made[where] = [loop for loop in found if _is_in_each_pass(frame, loop)]

    def updated(self, frame: FrameType | None) -> None:
        """A scaler's scale is updated, as after each step."""
        if self._around_updates is None:
            self._around_updates = {loop.where for loop in frames.loops_around(frame)}

    def facts(self) -> tuple[ScalerFacts, ...]:
        """Return what was seen."""
        around = (self._around_updates or set()) - self._with_optimizer
        return tuple(
            ScalerFacts(where, loop.where, loop.total or 0)
            for where, loops in self._made.items()
            for loop in loops[:1]
            if loop.where in around
        )


def _is_in_each_pass(frame: FrameType | None, loop: frames.Loop) -> bool:
    """Return whether a running line is reached in each pass of a loop, as far as its text says."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    for depth in range(loop.depth + 1):
        # A library in between, and a decorator, decide themselves what they call, and when.
        if frame is None or not is_users(frame.f_code.co_filename):
            return False
        inner = loop.line if depth == loop.depth else 0
        around = list(_around(frame, inner))
        if not around or not all(map(_is_always_run, around)):
            return False
        if depth == 0 and not _assigns_a_call(around[-1]):
            return False
        frame = frame.f_back
    return True


def _around(frame: FrameType, loop_line: int) -> Iterator[ast.stmt]:
    """Give the statements around a running line, outermost first, from its function or loop on."""
    tree = tree_of(frame.f_code.co_filename)
    line, first = frame.f_lineno, loop_line or frame.f_code.co_firstlineno
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.stmt) and first <= node.lineno <= line <= (node.end_lineno or 0):
            yield node


def _is_always_run(node: ast.stmt) -> bool:
    if isinstance(node, _FUNCTIONS):
        return not node.decorator_list
    return not isinstance(node, ast.If | ast.Try | ast.Match | ast.ClassDef)


def _assigns_a_call(node: ast.stmt) -> bool:
    """Return whether a statement assigns a new object, and not one that may be there already."""
    return isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call)
