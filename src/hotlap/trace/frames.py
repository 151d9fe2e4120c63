"""Reads stack frames: the user's file and line, local variables, and the loops around a line."""

import ast
import gc
import inspect
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from hotlap.trace.source.statements import covers, tree_of
from hotlap.usercode import is_users

_REFERENCES = 3

Place = tuple[CodeType | None, int]
"""A function that runs, and the offset of its instruction: a place whose line nobody needs yet."""


@dataclass(frozen=True)
class Running:
    """A function that runs in a thread, without its frame."""

    code: CodeType
    instruction: int
    module: str

    @property
    def is_users(self) -> bool:
        return is_users(self.code.co_filename)

    @property
    def line(self) -> int:
        return _places(self.code)[self.instruction][0] or self.code.co_firstlineno

    @property
    def column(self) -> int:
        """-1 if unknown."""
        column = _places(self.code)[self.instruction][1]
        return -1 if column is None else column


@lru_cache(maxsize=1024)
def _places(code: CodeType) -> list[tuple[int | None, int | None]]:
    """Return line and column of each instruction.

    One that the compiler has added, as at the end of a loop's body, has those of the one before.
    """
    found: list[tuple[int | None, int | None]] = []
    for line, _, column, _ in code.co_positions():
        found.append((line, column) if line is not None or not found else found[-1])
    return found


def running_in(thread: int) -> list[Running]:
    """Return the functions that run in another thread, from the innermost outwards.

    While somebody holds the frame of a function that returns, its variables live on, and are freed
    in the holder's thread. torch keeps guards of a thread's state in variables, which must be
    undone in that thread: so frames are held only while no other thread can run. Nothing here
    waits, reads a file or collects garbage.
    """
    found, was_enabled = [], gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread)
        while frame is not None:
            found.append((frame.f_code, frame.f_lasti // 2, frame.f_globals))
            frame = frame.f_back
    finally:
        if was_enabled:
            gc.enable()
    return [
        Running(code, max(0, instruction), str(names.get("__name__", "")))
        for code, instruction, names in found
    ]


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the user's own files from the innermost outwards."""
    found = []
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def variables_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the local variables of a frame, and leave no reference to them in it.

    Before Python 3.13 the `f_locals` of a function is a copy that its frame keeps. A tensor in it
    would outlive the variable, and be counted in the peak.
    """
    copied = frame.f_locals
    found = list(copied.items())
    is_copy = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and type(copied) is dict
    # Referred to by the frame, by `copied` and by the argument; more if the script has kept what
    # its own call of `locals()` returned.
    if is_copy and sys.getrefcount(copied) <= _REFERENCES:
        copied.clear()
    return found


def line_at(place: Place) -> tuple[str, int] | None:
    """Return file and line of a place, None if it is none."""
    code, offset = place
    if code is None:
        return None
    number = _places(code)[max(0, offset // 2)][0]
    return code.co_filename, number or code.co_firstlineno


def location_at(place: Place) -> str:
    """Return `file:line` of a place, empty if it is none."""
    found = line_at(place)
    return f"{shorten_path(found[0])}:{found[1]}" if found is not None else ""


def line(frame: FrameType | None) -> tuple[str, int] | None:
    """Return file and line of the innermost frame in a user's file, None if there is none."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def location_of(frame: FrameType | None) -> str:
    """Return `file:line` of the innermost frame in a user's file, empty if there is none."""
    found = line(frame)
    return f"{shorten_path(found[0])}:{found[1]}" if found is not None else ""


def shorten_path(filename: str) -> str:
    """Return the path relative to the working folder where it lies below it, else absolute."""
    try:
        folder = _real_path(os.getcwd()) + os.sep
    except FileNotFoundError:
        # The script has removed it, as a temporary one: nothing lies below it.
        return _real_path(filename) if os.path.isabs(filename) else filename
    path = _real_path(filename)
    return path[len(folder) :] if path.startswith(folder) else path


@lru_cache(maxsize=256)
def _real_path(path: str) -> str:
    # Each part of a path is asked for, and this is asked at every step.
    return os.path.realpath(path)


def caller(depth: int = 2) -> FrameType | None:
    """Return the frame `depth` calls up."""
    try:
        return sys._getframe(depth)
    except ValueError:
        return None


Function = tuple[str, int]
"""A function, as its file and first line."""


def stack(frame: FrameType | None) -> list[Function]:
    """Return the user's functions that are running, from the innermost outwards."""
    return [(f.f_code.co_filename, f.f_code.co_firstlineno) for f in user_frames(frame)]


@dataclass(frozen=True)
class Loop:
    """A loop of the user's around a running line."""

    where: str
    line: int
    total: int | None
    """Passes; None where that cannot be told without running something of the user's."""
    done: int
    """Passes completed before the one that is running; 0 where that is not known."""
    depth: int
    """How many of the user's calls lie between it and the running line."""
    is_while: bool = False
    """True for `while`, whose passes are not known."""


def loops_around(frame: FrameType | None) -> list[Loop]:
    """Return the loops around the running line, innermost first, `range(...)` counted.

    Looks through `tqdm(...)`, `trange(...)` and the like. Only names, attributes, numbers and
    arithmetic are evaluated, from the frame's own variables; nothing is called.
    """
    loops = []
    for depth, current in enumerate(user_frames(frame)):
        for node in _enclosing_loops(current.f_code.co_filename, current.f_lineno):
            where = f"{shorten_path(current.f_code.co_filename)}:{node.lineno}"
            is_while = isinstance(node, ast.While)
            counted = None if isinstance(node, ast.While) else _count_passes(node, current)
            loops.append(Loop(where, node.lineno, *(counted or (None, 0)), depth, is_while))
    return loops


@lru_cache(maxsize=64)
def _enclosing_loops(filename: str, line: int) -> list[ast.For | ast.While]:
    tree = tree_of(filename)
    if tree is None:
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    around = [node for node in nodes if covers(node, line)]
    return sorted(around, key=lambda node: node.lineno, reverse=True)


def _count_passes(node: ast.For, frame: FrameType) -> tuple[int, int] | None:
    """Return how many passes a loop has, and how many are done; None if it is not counted."""
    call = node.iter
    while isinstance(call, ast.Call) and call.args and _name(call.func) != "range":
        if _name(call.func) == "trange":
            break
        call = call.args[0]
    if not isinstance(call, ast.Call) or _name(call.func) not in ("range", "trange"):
        return None
    values = [_value(argument, frame) for argument in call.args]
    if not values or not all(isinstance(value, int) for value in values):
        return None
    try:
        counted = range(*values)
    except (TypeError, ValueError):
        return None
    target = node.target
    if isinstance(node.iter, ast.Call) and _name(node.iter.func) == "enumerate":
        target = target.elts[-1] if isinstance(target, ast.Tuple) else target
    current = _value(target, frame)
    done = counted.index(current) if isinstance(current, int) and current in counted else 0
    return len(counted), done


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Evaluate what can be evaluated without calling anything of the user's; else None."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return dict(variables_of(frame)).get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        # Only what lies in the instance itself: a property would run the user's code.
        return getattr(_value(node.value, frame), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript):
        holder, key = _value(node.value, frame), _value(node.slice, frame)
        return holder.get(key) if type(holder) is dict else None
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, frame), _value(node.right, frame)
        if type(left) is int and type(right) is int:
            return _arithmetic(node.op, left, right)
    return None


def _arithmetic(operator: ast.operator, left: int, right: int) -> int | None:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.FloorDiv) and right:
        return left // right
    return None
