"""Finds in the source the loop around a line: over samples, modules or parameters. No torch."""

import ast
from dataclasses import dataclass
from functools import lru_cache

from hotlap.trace.source.statements import called_name, covers, tree_of

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PARAMETERS = ("parameters", "named_parameters", "buffers", "named_buffers", "state_dict")
_TAKES_ONE = ("select", "narrow", "index_select", "take", "gather")
"""Functions that take a part of a tensor by its number."""
_ALL_OBJECTS = "gc.get_objects"
_PASSED_ON = ("enumerate", "zip", "reversed", "list", "tuple", "iter", "items", "values")


@dataclass(frozen=True)
class InnerLoop:
    """A loop around a running line, which does not hold the update."""

    line: int
    over: str
    """`parameters`: of a model or an optimizer. `modules`: layers, one after another, or the same
    computed again, of which the next may need the one before. `elements`: anything else, such as
    the samples of a batch."""
    text: str
    """As in `for t in range(x.size(1))`."""


@lru_cache(maxsize=1024)
def loop_at(
    file: str, line: int, without: frozenset[int] = frozenset(), column: int = -1
) -> InnerLoop | None:
    """Return the outermost loop around a line of a file, None if there is none.

    Args:
        file: where to look.
        line: that runs.
        without: lines that the loop must not hold.
        column: of what runs in that line, -1 if unknown. What a loop goes over is not in it.
    """
    tree = tree_of(file)
    if tree is None:
        return None
    found = [
        loop
        for node in ast.walk(tree)
        if covers(node, line) and not any(covers(node, each) for each in without)
        # What is done with each element is the consumer's: a step, or a part of one.
        if not any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))
        for loop in [_loop(node)]
        if loop is not None and not _is_header(node, line, column)
    ]
    function = max((node.lineno for node in _functions(tree) if covers(node, line)), default=0)
    return min((each for each in found if each.line >= function), key=_line_of, default=None)


@lru_cache(maxsize=1024)
def walk_of_objects_at(file: str, line: int) -> int | None:
    """Return the line that calls gc.get_objects() for the walk that a line belongs to, if any.

    A return that calls nothing belongs to it too: what takes time there is to free the list.
    """
    tree = tree_of(file)
    inside = [] if tree is None else [node for node in _functions(tree) if covers(node, line)]
    function = max(inside, key=lambda node: node.lineno, default=tree)
    nodes = [] if function is None else list(ast.walk(function))
    calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == _ALL_OBJECTS]
    for node in (node for node in nodes if covers(node, line)):
        if isinstance(node, ast.Return) and not any(_called(each) for each in ast.walk(node)):
            return min((call.lineno for call in calls), default=None)
        over = _goes_over(node)
        walked = [call for call in calls if over is not None and call in ast.walk(over)]
        if walked or node in calls:
            return walked[0].lineno if walked else line
    return None


def _is_header(node: ast.AST, line: int, column: int) -> bool:
    """True if what runs is the expression that a loop goes over."""
    over = _goes_over(node)
    if over is None or column < 0:
        return False
    end = (over.end_lineno or over.lineno, over.end_col_offset or 0)
    return (over.lineno, over.col_offset) <= (line, column) < end


def _goes_over(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.For):
        return node.iter
    return node.generators[0].iter if isinstance(node, _COMPREHENSIONS) else None


def _line_of(loop: InnerLoop) -> int:
    return loop.line


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def _loop(node: ast.AST) -> InnerLoop | None:
    if isinstance(node, ast.For):
        return _described(node.lineno, node.target, node.iter, node.body)
    if isinstance(node, _COMPREHENSIONS):
        first = node.generators[0]
        body: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else []
        body = body or [node.elt]  # pyright: ignore[reportAttributeAccessIssue]
        return _described(node.lineno, first.target, first.iter, body)
    if isinstance(node, ast.While):
        return InnerLoop(node.lineno, "elements", f"while {ast.unparse(node.test)}")
    return None


def _described(
    line: int, target: ast.expr, over: ast.expr, body: "list[ast.AST] | list[ast.stmt]"
) -> InnerLoop:
    text = f"for {ast.unparse(target)} in {ast.unparse(over)}"
    if any(_called(node) in _PARAMETERS for node in ast.walk(over)):
        return InnerLoop(line, "parameters", text)
    counters = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    nodes = [node for part in body for node in ast.walk(part)]
    layers = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    if any(_is_index(node, counters) for node in nodes if id(node) not in layers):
        return InnerLoop(line, "elements", text)
    is_called = any(isinstance(n, ast.Name) and n.id in counters for n in nodes if id(n) in layers)
    are_layers = is_called or _called(over) == "range" or _is_of_object(over)
    return InnerLoop(line, "modules" if are_layers else "elements", text)


def _called(node: ast.AST) -> str:
    return called_name(node) if isinstance(node, ast.Call) else ""


def _is_index(node: ast.AST, counters: set[str]) -> bool:
    """True for `x[:, i]` and `x.select(1, i)` with a counter `i`, but not for `self.layers[i]`."""
    numbers: list[ast.AST] = []
    if isinstance(node, ast.Subscript) and not isinstance(node.value, ast.Attribute):
        numbers = [node.slice]
    elif isinstance(node, ast.Call) and called_name(node) in _TAKES_ONE:
        numbers = [*node.args, *(each.value for each in node.keywords)]
    names = (n for number in numbers for n in ast.walk(number) if isinstance(n, ast.Name))
    return any(name.id in counters for name in names)


def _is_of_object(over: ast.expr) -> bool:
    """True for `self.layers`, `enumerate(self.layers)`, `zip(self.layers, self.norms)`."""
    if isinstance(over, ast.Call):
        is_plain = isinstance(over.func, ast.Name | ast.Attribute) and _called(over) in _PASSED_ON
        inner = [over.func.value] if isinstance(over.func, ast.Attribute) else over.args
        return is_plain and bool(inner) and all(_is_of_object(each) for each in inner)
    if isinstance(over, ast.Subscript):
        return _is_of_object(over.value)
    return isinstance(over, ast.Attribute)
