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
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
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
        dataset: the one whose samples are made.

    Raises:
        CannotDivide: its source is not at hand, or its code does what a part of it could not do.
    """

    def __init__(self, function: Any, dataset: Any) -> None:
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
        lookups = _Lookups(function, self._itself, dataset)
        self._statements = _flat(definition.body, lookups.is_plain)
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


def _flat(body: Sequence[ast.stmt], is_lookup: Callable[[ast.Attribute], bool]) -> list[ast.stmt]:
    """Return statements in which a call stands alone, where one can be taken out of another."""
    numbers, found = count(), []
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if _is_simple(statement) or isinstance(statement, ast.Return):
            hoist = _Hoist(numbers, getattr(statement, "value", None), is_lookup)
            statement = hoist.visit(statement)
            found += hoist.taken
        found.append(statement)
    return found


class _Hoist(ast.NodeTransformer):
    """Takes calls out of an expression, in the order in which they run.

    Only out of what is always evaluated, and once; and only where nothing that stays behind, and
    may draw a random number, is evaluated before.

    Args:
        numbers: for the names of temporaries.
        keep: a call that stays.
        is_lookup: true of an attribute that runs no code of its own.
    """

    def __init__(
        self,
        numbers: "count[int]",
        keep: ast.AST | None,
        is_lookup: Callable[[ast.Attribute], bool],
    ) -> None:
        self._numbers, self._keep, self._is_lookup = numbers, keep, is_lookup
        self._is_behind = False
        """True once something was evaluated that stays where it is."""
        self.taken: list[ast.stmt] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute) and self._is_lookup(node):
            return node
        is_chain = isinstance(node, ast.Compare) and len(node.ops) > 1
        if isinstance(node, ast.Dict):
            self._pairs(node)
        elif not is_chain and (isinstance(node, _ALWAYS) or not isinstance(node, ast.expr)):
            self.generic_visit(node)
        self._is_behind = self._is_behind or (
            isinstance(node, ast.expr) and not isinstance(node, _TRIVIAL)
        )
        return node

    def _call(self, node: ast.Call) -> ast.expr:
        was_behind = self._is_behind
        self.generic_visit(node)
        if node is self._keep or was_behind:
            self._is_behind = True
            return node
        # What stays within the call moves with it.
        self._is_behind = False
        name = _TEMPORARY.format(next(self._numbers))
        target = ast.copy_location(ast.Name(name, ast.Store()), node)
        taken = ast.Assign(targets=[target], value=node)
        self.taken.append(ast.copy_location(taken, node))
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _pairs(self, node: ast.Dict) -> None:
        for number, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            node.keys[number] = None if key is None else self.visit(key)
            node.values[number] = self.visit(value)


_TRIVIAL = (ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Slice, ast.Lambda)
"""Expressions that run no code of a user's, their parts left aside."""
_ALWAYS = (
    ast.Attribute,
    ast.Subscript,
    ast.Tuple,
    ast.List,
    ast.Set,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Starred,
    ast.Slice,
)


class _Lookups:
    """Which attributes in the code are plain ones, of the data set, of modules and of classes.

    Args:
        function: the code's.
        itself: the name of the data set in it.
        dataset: the data set.
    """

    def __init__(self, function: FunctionType, itself: str, dataset: Any) -> None:
        self._itself, self._dataset = itself, dataset
        self._globals = function.__globals__
        self._own = {*function.__code__.co_varnames, *function.__code__.co_cellvars}

    def is_plain(self, node: ast.Attribute) -> bool:
        """True if looking the attribute up runs no code of a user's."""
        return self._value(node) is not _UNBOUND

    def _value(self, node: ast.expr) -> Any:
        """Return what a name with attributes stands for, `_UNBOUND` if code would have to run."""
        if isinstance(node, ast.Name):
            if node.id == self._itself:
                return self._dataset
            return _UNBOUND if node.id in self._own else self._globals.get(node.id, _UNBOUND)
        if not isinstance(node, ast.Attribute):
            return _UNBOUND
        holder = self._value(node.value)
        if holder is _UNBOUND or holder is None:
            return _UNBOUND
        kind = type(holder)
        if not isinstance(holder, type | ModuleType) and (
            inspect.getattr_static(kind, "__getattribute__") is not object.__getattribute__
        ):
            return _UNBOUND
        found = inspect.getattr_static(holder, node.attr, _UNBOUND)
        if isinstance(found, staticmethod | classmethod):
            return found.__func__
        is_descriptor = hasattr(type(found), "__get__")
        return _UNBOUND if is_descriptor and not isinstance(found, _METHODS) else found


_METHODS = (FunctionType, MethodType, BuiltinFunctionType, MethodDescriptorType)
"""Descriptors that only bind."""


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
