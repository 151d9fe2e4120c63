"""Tells a recipe from a script by its text: nothing of it is run, and nothing else is imported."""

import ast
from pathlib import Path

_TRAINS = {"train", "tune", "steps"}
"""Functions of hotlap that train: a file that calls one of them at its top level is a script."""


def trains_itself(path: str | Path) -> bool:
    """True if a recipe also does something when Python runs it: it calls `hotlap.train` or
    another function that trains at its top level, or has a part for `__main__`.
    """
    tree = ast.parse(Path(path).read_bytes())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id == "__name__":
                return True
            if isinstance(inner, ast.Call) and _show_call(inner) in _TRAINS:
                return True
    return False


def _show_call(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_recipe(path: str | Path) -> bool:
    """True if a Python file is a recipe, not a script. It is read, and nothing of it is run.

    A recipe defines or imports `task` at its top level, and imports hotlap there: scripts that have
    a function of that name do not.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    bound, imported = set(), set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
    return "task" in bound and "hotlap" in imported
