"""Divides the code of a data set's `__getitem__` between two of its statements.

What stands before the first random draw depends on the index alone. Source and code are compared
first: what is divided is what runs.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import CodeType, FunctionType
from typing import Any

_TEMPORARY = "_hotlap_{}"
_MARK = "_hotlap_mark"
_HIDDEN = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Names in code that may look at its own variables."""
_LEAVES = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AsyncFor, ast.AsyncWith)
_UNBOUND: Any = type("Unbound", (), {})()


class CannotDivide(Exception):
    """Why the code cannot be divided, in words."""


@dataclass(frozen=True)
class Divided:
    """Both parts of `__getitem__`."""

    first: Callable[[Any, Any], tuple[Any, ...]]
    """`first(dataset, index) -> values`, one for each name that the rest uses."""
    rest: Callable[..., Any]
    """`rest(dataset, index, *values) -> sample`"""


class ItemCode:
    """The statements of a `__getitem__`, calls within calls as statements of their own.

    Args:
        function: as the class defines it.

    Raises:
        CannotDivide: its source is not at hand, or its code does what a part of it could not do.
    """

    def __init__(self, function: Any) -> None:
        if not isinstance(function, FunctionType):
            raise CannotDivide("`__getitem__` is no plain function")
        self._function = function
        definition = _source_of(function)
        arguments = definition.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        has_others = arguments.vararg or arguments.kwarg or arguments.kwonlyargs
        if len(names) != 2 or has_others or definition.decorator_list:
            raise CannotDivide("`__getitem__` has a decorator, or takes more than an index")
        self._itself, self._index = names
        used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        if used & _HIDDEN:
            raise CannotDivide(f"`__getitem__` uses `{min(used & _HIDDEN)}`")
        self._statements = _flat(definition.body)
        self.most = self._count_before_end()
        """The largest number of statements that can stand before the division."""
        if not self.most:
            raise CannotDivide("its first statement returns a sample, or changes an object")

    def _count_before_end(self) -> int:
        for number, statement in enumerate(self._statements):
            if any(map(self._stays, ast.walk(statement))):
                return number
        return len(self._statements)

    def _stays(self, node: ast.AST) -> bool:
        """True if a part of a statement cannot be done once and for all."""
        if isinstance(node, _LEAVES + _DEFINES):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript):
            return not isinstance(node.ctx, ast.Load)
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Load):
            return False
        return node.id == self._itself

    def marked(self, mark: Callable[[int], None]) -> Callable[[Any, Any], Any]:
        """Return the whole function, which calls `mark(n)` once n statements have run."""
        body: list[ast.stmt] = []
        for number, statement in enumerate(self._statements[: self.most]):
            body += [statement, _call_of_mark(number + 1)]
        body += self._statements[self.most :]
        made = self._compiled([self._itself, self._index], body)
        made.__kwdefaults__ = {_MARK: mark}
        return made

    def divide(self, after: int) -> Divided:
        """Divide the code after so many of its statements, from 1 to `most`."""
        before, behind = self._statements[:after], self._statements[after:]
        names = sorted(_stored(before) & _used(behind))
        first = self._compiled([self._itself, self._index], [*before, _give_back(names)])
        # Names that some path does not assign.
        unsure = sorted(set(names) - _stored([s for s in before if _is_simple(s)]))
        given = [name for name in names if name != self._index]
        rest = self._compiled([self._itself, self._index, *given], [*map(_unbind, unsure), *behind])
        first.__kwdefaults__ = rest.__kwdefaults__ = {_MARK: _UNBOUND}
        if self._index not in names:
            return Divided(first, rest)
        place = names.index(self._index)

        def with_index(itself: Any, _: Any, *values: Any) -> Any:
            return rest(itself, values[place], *values[:place], *values[place + 1 :])

        return Divided(first, with_index)

    def _compiled(self, parameters: list[str], body: Sequence[ast.stmt]) -> FunctionType:
        """Return a function of that body in the place of the original one."""
        definition = ast.FunctionDef(
            name=self._function.__name__,
            args=ast.arguments(
                posonlyargs=[],
                args=[ast.arg(name) for name in parameters],
                kwonlyargs=[ast.arg(_MARK)],
                kw_defaults=[None],
                defaults=[],
            ),
            body=list(body) or [ast.Pass()],
            decorator_list=[],
        )
        if "type_params" in ast.FunctionDef._fields:
            definition.type_params = []  # pyright: ignore[reportAttributeAccessIssue]
        return _as_in_place(self._function, definition)


def _source_of(function: FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of a function, after a look whether it is what runs."""
    try:
        whole, _ = inspect.findsource(function)
        lines, first_line = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        is_current = _is_current("".join(whole), function)
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise CannotDivide(f"the source of `__getitem__` is not at hand ({error})") from error
    ast.increment_lineno(tree, first_line - 1)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise CannotDivide("`__getitem__` is no plain function")
    if not is_current:
        raise CannotDivide("the source of `__getitem__` has changed since it was loaded")
    return definition


def _as_in_place(function: FunctionType, definition: ast.FunctionDef) -> FunctionType:
    """Compile a definition as if it stood where the function does: its names, its closure."""
    outer, _, _ = function.__qualname__.rpartition(".")
    kind = ast.ClassDef(
        # Names that begin with two underscores are spelled with that of the class.
        name=outer.rpartition(".")[2].replace("<locals>", "") or "_",
        bases=[],
        keywords=[],
        body=[definition],
        decorator_list=[],
    )
    free = [name for name in function.__code__.co_freevars if name != "__class__"]
    factory = ast.FunctionDef(
        name="factory",
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(name) for name in free],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[kind],
        decorator_list=[],
    )
    for node in (kind, factory):
        if "type_params" in type(node)._fields:
            node.type_params = []  # pyright: ignore[reportAttributeAccessIssue]
    tree = ast.fix_missing_locations(ast.Module(body=[factory], type_ignores=[]))
    code = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    for name in ("factory", kind.name, definition.name):
        code = next(
            each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name
        )
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    return FunctionType(code, function.__globals__, function.__name__, None, closure)


def _is_current(source: str, function: FunctionType) -> bool:
    """True if a file's source has the function's very code in it."""
    waiting = [compile(source, function.__code__.co_filename, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if code == function.__code__:
            return True
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    return False


def _flat(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return statements in which a call stands alone, where one can be taken out of another."""
    numbers, found = count(), []
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if _is_simple(statement) or isinstance(statement, ast.Return):
            hoist = _Hoist(numbers, keep=getattr(statement, "value", None))
            statement = hoist.visit(statement)
            found += hoist.taken
        found.append(statement)
    return found


class _Hoist(ast.NodeTransformer):
    """Takes calls out of an expression, in the order in which they run.

    Only out of what is always evaluated, and once.
    """

    def __init__(self, numbers: "count[int]", keep: ast.AST | None) -> None:
        self._numbers, self._keep = numbers, keep
        self.taken: list[ast.stmt] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call):
            self.generic_visit(node)
            if node is self._keep:
                return node
            name = _TEMPORARY.format(next(self._numbers))
            target = ast.copy_location(ast.Name(name, ast.Store()), node)
            taken = ast.Assign(targets=[target], value=node)
            self.taken.append(ast.copy_location(taken, node))
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            return node
        if isinstance(node, _ALWAYS) or not isinstance(node, ast.expr):
            return self.generic_visit(node)
        return node


_ALWAYS = (
    ast.Attribute,
    ast.Subscript,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Starred,
    ast.Slice,
)


def _is_simple(statement: ast.stmt) -> bool:
    """True if a statement assigns to names, whatever happens."""
    if isinstance(statement, ast.Assign):
        targets = [part for target in statement.targets for part in _parts(target)]
        return all(isinstance(part, ast.Name) for part in targets)
    return isinstance(statement, ast.Expr)


def _parts(target: ast.AST) -> list[ast.AST]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for each in target.elts for part in _parts(each)]
    return [target]


def _stored(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that statements assign, imports and handlers included."""
    found = set()
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return found


def _used(statements: Sequence[ast.stmt]) -> set[str]:
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _parsed(source: str) -> ast.stmt:
    return ast.parse(source).body[0]


def _call_of_mark(number: int) -> ast.stmt:
    return _parsed(f"{_MARK}({number})")


def _give_back(names: Sequence[str]) -> ast.stmt:
    """Return the statement that returns these variables, whether they are bound or not."""
    parts = "".join(f"locals().get({name!r}, {_MARK})," for name in names)
    return _parsed(f"def f():\n return ({parts})").body[0]  # pyright: ignore[reportAttributeAccessIssue]


def _unbind(name: str) -> ast.stmt:
    return _parsed(f"if {name} is {_MARK}:\n del {name}")
