"""Rules of style that a machine can hold."""

import ast
from collections.abc import Iterator
from pathlib import Path

FILE_LIMIT = 400
BODY_LIMIT = 60
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "handler", "connector"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: Path) -> Iterator[tuple[str, Function, bool]]:
    """Give each function of the package: where, its tree, and whether anyone may call it."""
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text())
        public = {id(node) for node in _public(tree.body)}
        for node in ast.walk(tree):
            if isinstance(node, Function):
                where = f"{path.relative_to(source.parent)}:{node.lineno} {node.name}"
                yield where, node, id(node) in public


def _public(body: list[ast.stmt]) -> Iterator[Function]:
    for node in body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node
        # What overrides a method is told of where that method is.
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not node.bases:
            yield from _public(node.body)


def _statements(node: Function) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def test_files_have_one_subject_and_are_short(source: Path) -> None:
    long = [
        f"{path}: {count} lines"
        for path in source.rglob("*.py")
        if (count := len(path.read_text().splitlines())) > FILE_LIMIT
    ]
    vague = [str(path) for path in source.rglob("*") if path.stem in VAGUE]
    assert not long + vague, "\n".join(long + vague)


def test_bodies_of_functions_are_short(source: Path) -> None:
    long = []
    for where, node, _ in functions(source):
        body = _statements(node)
        if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 > BODY_LIMIT:
            long.append(where)
    assert not long, "\n".join(long)


def test_everything_is_annotated(source: Path) -> None:
    bare = []
    for where, node, _ in functions(source):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        every += [extra for extra in (node.args.vararg, node.args.kwarg) if extra is not None]
        missing = [arg.arg for arg in every if arg.annotation is None]
        missing = [name for name in missing if name not in ("self", "cls")]
        if missing or node.returns is None:
            bare.append(f"{where}: {', '.join(missing) or 'its result'}")
    assert not bare, "\n".join(bare)


def test_every_module_says_what_it_is(source: Path) -> None:
    silent = [
        str(path)
        for path in source.rglob("*.py")
        if path.stat().st_size and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not silent, "\n".join(silent)


def test_every_public_function_has_a_docstring(source: Path) -> None:
    # Those of techniques and failures are told of once, in the record; one line says itself what it
    # does.
    silent = [
        where
        for where, node, public in functions(source)
        if public
        and ast.get_docstring(node) is None
        and not where.startswith(("hotlap/techniques/", "hotlap/failures/"))
        and len(_statements(node)) > 1
    ]
    assert not silent, "\n".join(silent)


def test_no_exception_is_swallowed_without_a_word(source: Path) -> None:
    swallowed = []
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                empty = all(isinstance(line, ast.Pass) for line in node.body)
                if empty or node.type is None:
                    swallowed.append(f"{path}:{node.lineno}")
    assert not swallowed, "\n".join(swallowed)
