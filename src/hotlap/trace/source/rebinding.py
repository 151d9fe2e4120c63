"""The statement of the user's that makes a container anew, or tests its length. No torch."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hotlap.trace.source.statements import called_name, files_with, tree_of

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class _Binding:
    line: int
    owner: ast.AST
    """The function whose variable it assigns, or the module."""
    place: ast.AST
    """The function that it is in, or the module."""
    in_loop: bool
    """It lies in a loop of that function."""

    @property
    def function(self) -> str:
        return getattr(self.place, "name", "")


def line_that_rebinds(files: Iterable[str], name: str, grows: int | None) -> tuple[str, int] | None:
    """Return file and line of a statement that makes a container anew, None if there is none.

    The statement that makes it first is none: it lies in no loop, and in no function that is called
    in one; that of an attribute lies in `__init__`.

    Args:
        files: where to look, in this order; the first is the one whose variable it is.
        name: as in `losses`, `self.outputs` or `logs['loss']`; another object's attribute of the
            same name counts.
        grows: the line of the first file that adds to it, None if it is not known.
    """
    files = list(dict.fromkeys(files))
    for file in files_with(files if "." in name else files[:1], [name]):
        found = list(_bindings(file, name))
        if "." in name:
            again = [each for each in found if each.in_loop]
            again += [each for each in found if each.function != "__init__" and len(found) > 1]
        else:
            own = _scope_at(file, grows)
            # A function that does not assign it uses the module's.
            found = [each for each in found if each.owner is own] or [
                each for each in found if isinstance(each.owner, ast.Module)
            ]
            again = [
                each
                for each in found
                if each.in_loop
                or each.owner is not each.place
                or _is_called_in_loop(each.function, files)
            ]
        if again:
            return file, min(each.line for each in again)
    return None


def line_that_tests_length(files: Iterable[str], name: str) -> tuple[str, int] | None:
    """Return file and line that asks whether a container is longer or shorter than something.

    None if there is none. `len(x) > 0` asks only whether it is empty.
    """
    for file in files_with(files, [name]):
        tree = tree_of(file)
        lines = [
            node.lineno
            for node in (ast.walk(tree) if tree is not None else ())
            if isinstance(node, ast.Compare) and _orders(node)
            for side in (node.left, *node.comparators)
            if isinstance(side, ast.Call)
            and isinstance(side.func, ast.Name)
            and side.func.id == "len"
            and len(side.args) == 1
            and _is_same(ast.unparse(side.args[0]), name)
        ]
        if lines:
            return file, min(lines)
    return None


def _orders(node: ast.Compare) -> bool:
    sides = (node.left, *node.comparators)
    is_zero = any(isinstance(side, ast.Constant) and side.value == 0 for side in sides)
    return not is_zero and all(isinstance(each, _ORDERS) for each in node.ops)


def _is_same(given: str, name: str) -> bool:
    if given == name:
        return True
    # Another object may call the same attribute by its own name for itself.
    own, other = given.rpartition("."), name.rpartition(".")
    return bool(own[1] and other[1] and own[2] == other[2])


def _bindings(file: str, name: str) -> Iterator[_Binding]:
    """Give the statements that assign a new object to a name."""
    for node, scope, in_loop in _walk(file):
        if isinstance(node, ast.Assign):
            pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        else:
            continue
        for target, value in pairs:
            assigned = ast.unparse(target)
            if not _is_same(assigned, name):
                continue
            # As in `x = x + [y]`, which makes it longer.
            if all(ast.unparse(each) != assigned for each in ast.walk(value)):
                yield _Binding(node.lineno, _owner_of(name, scope, file), scope, in_loop)


def _owner_of(name: str, scope: ast.AST, file: str) -> ast.AST:
    """Return whose variable a function assigns: its own, or the module's if it says `global`."""
    is_global = any(isinstance(each, ast.Global) and name in each.names for each in ast.walk(scope))
    return (tree_of(file) or scope) if is_global else scope


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return what is assigned to what, as in `a, b = [], []`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _walk(file: str) -> Iterator[tuple[ast.AST, ast.AST, bool]]:
    """Give each node of a file, the function that it is in, and whether a loop of it is around."""
    tree = tree_of(file)
    stack: list[tuple[ast.AST, ast.AST, bool]] = [] if tree is None else [(tree, tree, False)]
    while stack:
        node, scope, in_loop = stack.pop()
        yield node, scope, in_loop
        if isinstance(node, _FUNCTIONS):
            scope, in_loop = node, False
        # What a `for` loop goes through is evaluated once.
        once = [getattr(node, "iter", None), *node.orelse] if isinstance(node, _LOOPS) else []
        for each in ast.iter_child_nodes(node):
            repeats = isinstance(node, _LOOPS) and each not in once
            stack.append((each, scope, in_loop or repeats))


def _scope_at(file: str, line: int | None) -> ast.AST | None:
    """Return the function, or the module, whose variable a statement uses; None if not known."""
    if line is None:
        return None
    found = [scope for node, scope, _ in _walk(file) if getattr(node, "lineno", None) == line]
    return found[0] if found and not isinstance(found[0], ast.Lambda) else None


def _is_called_in_loop(function: str, files: Iterable[str]) -> bool:
    """Return whether a loop of one of the files calls a function of that name."""
    return bool(function) and any(
        in_loop and isinstance(node, ast.Call) and called_name(node) == function
        for file in files_with(files, [function])
        for node, _, in_loop in _walk(file)
    )
