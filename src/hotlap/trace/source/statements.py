"""Parses the user's files: statements that assign, add to or remove from a variable. No torch."""

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache

_ADDS = {"append", "extend", "add", "insert", "update", "appendleft", "setdefault", "put"}
_REMOVES = {"pop", "popleft", "popitem", "clear", "remove", "discard", "cache_clear"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_REMOVES_FROM_ARGUMENT = {"heappop", "heappushpop", "heapreplace"}


def files_with(files: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    """Give the files whose text has one of the variables' names; the others need no parsing.

    Args:
        files: where to look, in this order.
        names: as in `losses`, `self.outputs` or `logs['loss']`; of each the last identifier counts,
            with and without what is in brackets.
    """
    words = {word for name in names for word in _identifiers(name)}
    # Of a name that is none, such as a key with dots, nothing is known.
    takes_all = not all(word.isidentifier() for word in words)
    for file in files:
        lines = linecache.getlines(file)
        if takes_all or any(word in line for line in lines for word in words):
            yield file


def _identifiers(name: str) -> set[str]:
    plain = _plain(name)
    outside = plain.partition("[")[0]
    return {outside.rpartition(".")[2], plain.rpartition(".")[2].partition("[")[0]}


def line_that_grows(file: str, name: str, scope: str = "") -> int | None:
    """Return the line that adds to a variable, None if it is not found.

    Args:
        file: where to look.
        name: as in `losses`, `self.outputs` or `logs['loss']`.
        scope: qualified name of the only function or class to look in; empty for the whole file.
    """
    wanted, places = _plain(name), _lines_of(file, scope)
    ranked = sorted(
        (rank, node.lineno)
        for node in _nodes(file)
        for rank in [_rank(node, wanted)]
        if rank is not None and node.lineno in places
    )
    return ranked[0][1] if ranked else None


def _lines_of(file: str, scope: str) -> range:
    """Return the lines of a function or a class; none if it is not found."""
    node: ast.AST | None = tree_of(file)
    if not scope:
        return range(1, sys.maxsize)
    for name in scope.replace(".<locals>", "").split("."):
        inside = [] if node is None else list(ast.walk(node))[1:]
        found = [each for each in inside if isinstance(each, _SCOPES) and each.name == name]
        # Of several of one name the last one counts.
        node = max(found, key=lambda each: each.lineno, default=None)
    if not isinstance(node, _SCOPES):
        return range(0)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def line_that_assigns(file: str, name: str, before: int) -> int | None:
    """Return the last line that assigns a variable, the nearest before a line if there is one.

    Args:
        file: where to look.
        name: of a local variable.
        before: the line that was running.
    """
    lines = sorted(node.lineno for node in _nodes(file) if name in _targets(node))
    after = [line for line in lines if line >= before]
    # The variable holds what the pass before has assigned: usually after the forward's line.
    return (after or lines or [None])[0]


def place_of_call(files: Iterable[str], names: Iterable[str]) -> tuple[str, int] | None:
    """Return file and line of the first call of a function of one of these names, if any.

    Args:
        files: where to look, in this order.
        names: without what stands before the last dot.
    """
    wanted = set(names)
    for file in files_with(files, wanted):
        calls = [node for node in _nodes(file) if isinstance(node, ast.Call)]
        lines = [call.lineno for call in calls if called_name(call) in wanted]
        if lines:
            return file, min(lines)
    return None


def called_name(call: ast.Call) -> str:
    """Return the name of the function that is called, without what stands before its last dot."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def line_that_removes(files: Iterable[str], name: str, kind: str) -> tuple[str, int] | None:
    """Return file and line of a statement that may bound a container, None if there is none.

    Args:
        files: where to look, in this order.
        name: as in `losses`, `self.outputs` or `logs['loss']`; another object's attribute of the
            same name counts.
        kind: type of the container. What is assigned to an element of a list replaces another one.
    """
    wanted = _plain(name)
    for file in files_with(files, [name]):
        lines = [
            node.lineno
            for node in _nodes(file)
            for target in _shortened(node, kind)
            if _likeness(target, wanted, 0) is not None
        ]
        if lines:
            return file, min(lines)
    return None


def _shortened(node: ast.stmt | ast.Call, kind: str) -> list[ast.expr]:
    """Return the containers that a statement removes from, or whose elements it replaces."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in _REMOVES:
            return [function.value]
        return node.args[:1] if called_name(node) in _REMOVES_FROM_ARGUMENT else []
    if isinstance(node, ast.Delete):
        return [each.value for each in node.targets if isinstance(each, ast.Subscript)]
    if not isinstance(node, ast.Assign):
        return []
    found = [
        each.value
        for each in node.targets
        if isinstance(each, ast.Subscript) and (kind != "dict" or isinstance(each.slice, ast.Slice))
    ]
    # As in `x = x[-n:]`.
    value = node.value
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
        names = [ast.unparse(each) for each in node.targets]
        found += [value.value] if ast.unparse(value.value) in names else []
    return found


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """Return what a file's text says, None if it is no Python."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def covers(node: ast.AST, line: int) -> bool:
    """Return whether a line belongs to a node; none does where the node has no place."""
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)


@lru_cache(maxsize=64)
def _nodes(file: str) -> tuple[ast.stmt | ast.Call, ...]:
    tree = tree_of(file)
    if tree is None:
        return ()
    kinds = (ast.Call, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.Delete)
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def _rank(node: ast.stmt | ast.Call, wanted: str) -> int | None:
    """Return how likely a statement is what adds to a variable, 0 the most; None if it does not."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in _ADDS:
            return _likeness_with_elements(function.value, wanted, 0)
        return None
    if isinstance(node, ast.AugAssign):
        return _likeness_with_elements(node.target, wanted, 0)
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                rank = _likeness(target.value, wanted, 1)
            elif ast.unparse(target) in ast.unparse(node.value):
                rank = _likeness(target, wanted, 1)
            else:
                rank = _likeness(target, wanted, 4)
            if rank is not None:
                return rank
    return None


def _likeness(target: ast.expr, wanted: str, rank: int) -> int | None:
    name = _plain(ast.unparse(target))
    if name == wanted:
        return rank
    # Another object may call the same attribute by its own name for itself.
    attribute, own = wanted.rpartition("."), name.rpartition(".")
    if attribute[1] and own[1] and attribute[2] == own[2]:
        return rank + 2
    # `logs[key].append(value)` adds to `logs['loss']`.
    if name.partition("[")[0] == wanted.partition("[")[0] and "[" in wanted and "[" in name:
        return rank + 2
    return None


def _likeness_with_elements(target: ast.expr, wanted: str, rank: int) -> int | None:
    """Return the same also for `self.logs[key]`, which may be the container that was seen."""
    found = _likeness(target, wanted, rank)
    if found is None and isinstance(target, ast.Subscript):
        return _likeness(target.value, wanted.partition("[")[0], rank + 3)
    return found


def _plain(name: str) -> str:
    return name.replace("[...]", "").replace('"', "'")


def _targets(node: ast.stmt | ast.Call) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
        targets = [node.target]
    else:
        return
    for target in targets:
        yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
