"""Whether the user's code reads a loop's variable again after a pass has ended. No torch."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotlap.trace.source.statements import covers, tree_of
from hotlap.usercode import is_cell

NEXT_PASS = "next_pass"
AFTER_LOOP = "after_loop"

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Loop = ast.For | ast.AsyncFor | ast.While


def find_reader(file: str, name: str, lines: Sequence[int]) -> str:
    """Return what may read the value that a variable has at the end of a pass of a loop.

    Args:
        file: the loop's.
        name: of a local variable, or of a global one where the loop is in no function.
        lines: lines inside the loop; the innermost loop that holds all of them is meant, or the
            first where no loop holds all.

    Returns:
        `NEXT_PASS` where the next pass may read it before it assigns it, `AFTER_LOOP` where only
        what comes after the loop may, and an empty text where nothing does or no loop is found.
    """
    tree = tree_of(file)
    if tree is None:
        return ""
    loop = _innermost_loop(tree, lines) or _innermost_loop(tree, lines[:1])
    if loop is None:
        return ""
    around = [node for node in ast.walk(tree) if covers(node, loop.lineno)]
    functions = [node for node in around if isinstance(node, _Function)]
    scopes = [node for node in functions if node.lineno < loop.lineno]
    scope = max(scopes, key=lambda node: node.lineno) if scopes else tree
    reads = _Reads(name, loop)
    if reads.in_pass(loop):
        return NEXT_PASS
    # What is global, or in a closure, may be read by a function that is called later.
    inner = [node for node in ast.walk(scope) if node is not scope]
    is_shared = _is_declared_elsewhere(scope, name) or any(_reads_free(n, name) for n in inner)
    # Another cell may read what is global.
    is_shared = is_shared or (scope is tree and is_cell(file))
    reads.before(scope.body if isinstance(scope.body, list) else [], _After(is_shared))
    return AFTER_LOOP if reads.is_read_after else ""


def _innermost_loop(
    tree: ast.Module, lines: Sequence[int]
) -> ast.For | ast.AsyncFor | ast.While | None:
    loops = [
        node for node in ast.walk(tree) if isinstance(node, _Loop) and _covers_all(node, lines)
    ]
    return max(loops, key=lambda node: node.lineno, default=None)


def _covers_all(node: ast.AST, lines: Sequence[int]) -> bool:
    return all(covers(node, line) for line in lines)


def _is_declared_elsewhere(scope: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Global | ast.Nonlocal) and name in each.names
        for each in ast.walk(scope)
    )


def _reads_free(node: ast.AST, name: str) -> bool:
    """True for a function that reads a variable of that name which is not its own."""
    if not isinstance(node, _Function) or not _mentions(node, name):
        return False
    return not any(
        (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store))
        or (isinstance(each, ast.arg) and each.arg == name)
        for each in ast.walk(node)
    )


def _mentions(node: ast.AST | None, name: str) -> bool:
    """True if the name is read anywhere below; also by a function, which may be called later."""
    return node is not None and any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
        for each in ast.walk(node)
    )


def _binds(target: ast.AST | None, name: str) -> bool:
    return target is not None and any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
        for each in ast.walk(target)
    )


@dataclass(frozen=True)
class _After:
    """Whether the variable is read at each of the places where a statement may lead to."""

    next: bool
    broken: bool = False
    """After `break`."""
    continued: bool = False
    """After `continue`."""


class _Reads:
    """Goes backwards through statements: is the variable read before it is assigned?

    Where the code does not say, the answer is yes.
    """

    def __init__(self, name: str, loop: ast.For | ast.AsyncFor | ast.While) -> None:
        self._name, self._loop = name, loop
        self.is_read_after = False
        """True if what comes after the loop reads it; known once the loop was gone through."""

    def in_pass(self, loop: ast.For | ast.AsyncFor | ast.While) -> bool:
        """Return whether a pass of the loop may read the variable before it assigns it."""
        if isinstance(loop, ast.While):
            if _mentions(loop.test, self._name):
                return True
        elif _binds(loop.target, self._name):
            return False
        return self.before(loop.body, _After(False))

    def before(self, statements: Sequence[ast.stmt], after: _After) -> bool:
        """Return whether the variable's value before some statements may be read."""
        is_read = after.next
        for statement in reversed(statements):
            is_read = self._before_one(statement, replace(after, next=is_read))
        return is_read

    def _before_one(self, node: ast.stmt, after: _After) -> bool:
        name = self._name
        match node:
            case ast.If():
                parts = [self.before(each, after) for each in (node.body, node.orelse)]
                return _mentions(node.test, name) or any(parts)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._before_loop(node, after)
            case ast.Try() | ast.TryStar():
                return self._before_try(node, after)
            case ast.With() | ast.AsyncWith():
                read = any(_mentions(item.context_expr, name) for item in node.items)
                if not read and any(_binds(item.optional_vars, name) for item in node.items):
                    return False
                return read or self.before(node.body, after)
            case ast.Match():
                parts = [self.before(case.body, after) for case in node.cases]
                return _mentions(node.subject, name) or after.next or any(parts)
            case ast.Break():
                return after.broken
            case ast.Continue():
                return after.continued
            case ast.Return() | ast.Raise():
                return _mentions(node, name)
            case ast.AugAssign() if _binds(node.target, name):
                return True
            case ast.Delete():
                # It raises where the variable is gone already.
                return after.next or any(
                    isinstance(each, ast.Name) and each.id == name for each in ast.walk(node)
                )
            case _:
                read = _mentions(node, name)
                return read or (after.next and not self._assigns(node))

    def _assigns(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Assign):
            return any(_binds(target, self._name) for target in node.targets)
        if isinstance(node, ast.AnnAssign):
            return node.value is not None and _binds(node.target, self._name)
        return False

    def _before_loop(self, node: ast.For | ast.AsyncFor | ast.While, after: _After) -> bool:
        done = self.before(node.orelse, after)
        if node is self._loop:
            self.is_read_after = self.is_read_after or done or after.next
        head = done
        # Twice: what the first pass leaves is what the second finds.
        for _ in range(2):
            inside = self.before(node.body, _After(head, broken=after.next, continued=head))
            if isinstance(node, ast.While):
                head = _mentions(node.test, self._name) or inside or done
            else:
                head = done or (inside and not _binds(node.target, self._name))
        read = isinstance(node, ast.For | ast.AsyncFor) and _mentions(node.iter, self._name)
        return read or head

    def _before_try(self, node: ast.Try | ast.TryStar, after: _After) -> bool:
        finally_ = self.before(node.finalbody, after)
        ended = replace(after, next=finally_)
        handled = any(self.before(handler.body, ended) for handler in node.handlers)
        inner = self.before(node.body, replace(ended, next=self.before(node.orelse, ended)))
        # A handler is reached from anywhere in the body.
        return inner or handled or self.before(node.finalbody, replace(after, next=False))
