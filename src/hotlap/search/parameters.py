"""`Space`: the parameters of a recipe that a search moves, from its annotations and `--space`."""

import ast
import inspect
import itertools
import logging
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from hotlap.errors import UnknownName, UsageError, unknown_name
from hotlap.recipe import Recipe
from hotlap.search.members import as_recipe_has_it, enum_of, members_of, plain
from hotlap.search.space import KINDS, Choice, Derived, Distribution, Value

log = logging.getLogger("hotlap")

_DRAWS, _EXAMPLES_TRIED = 100, 20
"""Draws in which derived parameters must have a value, and how many of these the recipe reads."""
_SPACE = re.compile(r"(?P<name>[\w-]+)=(?P<kind>\w+)\((?P<values>.*)\)", re.DOTALL)
_EXAMPLES = (
    "`lr: Annotated[float, hotlap.LogUniform(1e-4, 1e-1)] = 1e-3` in the recipe, or "
    "--space 'lr=loguniform(1e-4,1e-1)'"
)


@dataclass(frozen=True)
class Space:
    """What is searched, and what the other parameters are."""

    distributions: Mapping[str, Distribution]
    derived: Mapping[str, Derived]
    others: Mapping[str, Any]
    """Name -> value of all of the recipe's parameters, as given or by default."""
    enums: Mapping[str, type[Enum]] = field(default_factory=dict[str, type[Enum]])
    """Of what is searched, the parameters that are an Enum: their values are words for members."""

    @cached_property
    def _order(self) -> tuple[str, ...]:
        """Derived parameters, each after those that it follows from."""
        order: list[str] = []

        def visit(name: str, trail: tuple[str, ...]) -> None:
            if name in trail:
                circle = " -> ".join((*trail, name))
                raise UsageError(
                    f"Derived parameters depend on each other in a circle: {circle}. Replace "
                    "Derived in the annotation of any one of these parameters in task() by a "
                    "distribution, such as hotlap.LogUniform(1e-4, 1e-1)."
                )
            if name not in order and name in self.derived:
                for needed in self.derived[name].needs:
                    visit(needed, (*trail, name))
                order.append(name)

        for name in self.derived:
            visit(name, ())
        return tuple(order)

    def complete(self, drawn: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values that were drawn, and those that follow from them.

        Raises:
            UsageError: a derived value cannot be given on a command line.
        """
        values: dict[str, Any] = {**drawn}
        for name in self._order:
            source = self.derived[name]
            known = {**self.others, **values}
            # The function has members of an Enum, as task() has; a command line has their names.
            needed = {n: as_recipe_has_it(known[n], self.enums.get(n)) for n in source.needs}
            value = plain(source.function(**needed), self.enums.get(name))
            if not _can_be_given(value):
                raise UsageError(
                    f"the function of Derived parameter `{name}` returned {value!r} "
                    f"({type(value).__name__}) for {needed}. Expected: a finite number, a string "
                    "or a bool, which can be passed on a command line. Correct the function in "
                    f"`hotlap.Derived(...)`, in the annotation of `{name}` in task()."
                )
            values[name] = value
        return values

    def examples(self) -> Iterator[dict[str, Value]]:
        """Give the values at the middle of the ranges, then drawn ones, the same each time.

        Values for which a derived parameter has none are left out, as a search draws again.

        Raises:
            UsageError: a derived parameter has no value for any of them.
        """
        problem: Exception | None = None
        drawn: dict[str, Value] = {}
        has_any = False
        for number in range(_DRAWS):
            shares = {n: random.Random(f"{number} {n}").random() for n in self.distributions}
            drawn = {
                name: each.draw(shares[name] if number else 0.5)
                for name, each in self.distributions.items()
            }
            try:
                values = self.complete(drawn)
            except Exception as error:
                log.info("no derived value for %s: %s", drawn, error)
                problem = error
                continue
            has_any = True
            yield values
        if not has_any:
            raise UsageError(
                f"the Derived parameters ({', '.join(self.derived)}) have no value for any of "
                f"{_DRAWS} configurations that were drawn. The last, {drawn}, raised "
                f"{type(problem).__name__}: {str(problem).rstrip('.')}. Make the functions in "
                "`hotlap.Derived(...)` in task() accept all values of the ranges, or use narrower "
                "ranges, in task() or --space."
            ) from problem

    @property
    def defaults(self) -> dict[str, Value | None] | None:
        """The recipe's own values of what is searched; None if one has none that can be written
        down. A default that is None is one."""
        names = [*self.distributions, *self.derived]
        own = {n: plain(self.others[n], self.enums.get(n)) for n in names if n in self.others}
        is_known = all(value is None or _can_be_given(value) for value in own.values())
        return own if is_known and len(own) == len(names) else None

    def to_json(self) -> dict[str, Any]:
        """Return what is searched as plain data."""
        return {name: each.to_json() for name, each in self.distributions.items()} | {
            name: {"kind": "derived", "from": list(each.needs)}
            for name, each in self.derived.items()
        }


def _can_be_given(value: Any) -> bool:
    """Return whether a value can be passed on a command line, and written down as JSON."""
    return isinstance(value, Value) and not (isinstance(value, float) and not math.isfinite(value))


def words_of(values: Mapping[str, Value | None]) -> list[str]:
    """Return values as a recipe's command line gives them: `--lr 0.001 --no-augment`.

    None is a default of the recipe, for which there is no word.
    """
    words: list[str] = []
    for name, value in values.items():
        option = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif str(value).startswith("-") or not str(value):
            words.append(f"--{option}={value}")
        else:
            words += [f"--{option}", str(value)]
    return words


def read_space(recipe: Recipe, arguments: Sequence[str], given: Sequence[str] = ()) -> Space:
    """Return what is searched of a recipe.

    Args:
        recipe: whose parameters are annotated.
        arguments: of the recipe; a parameter that is given there is fixed.
        given: `NAME=KIND(VALUES)` of `--space`, in place of annotations.

    Raises:
        UsageError: a space is wrong, or there is none.
        UnknownName: a parameter or a kind of distribution does not exist.
    """
    names = recipe.parameters()
    hints = _annotations(recipe)
    found: dict[str, Any] = {}
    for name in names:
        spaces = [m for m in _metadata(hints.get(name)) if isinstance(m, Distribution | Derived)]
        if len(spaces) > 1:
            raise UsageError(
                f"parameter `{name}` of '{recipe.path}' is annotated with {len(spaces)} "
                "distributions. Expected: one. Remove all but one from its `Annotated[...]` in "
                "task()."
            )
        if spaces:
            found[name] = spaces[0]
    overridden = dict(_parse(text, recipe) for text in given)
    fixed, others = recipe.given_values(arguments)
    for name in fixed:
        if name in overridden:
            raise UsageError(
                f"--{name.replace('_', '-')} sets a fixed value, but --space searches parameter "
                f"`{name}`. Remove --{name.replace('_', '-')} to search this parameter, or remove "
                f"the --space of `{name}` to keep the value."
            )
        found.pop(name, None)
    found |= overridden
    types = {name: _type_of(recipe, name, hints.get(name)) for name in found}
    enums = {name: enum for name, each in types.items() if (enum := enum_of(each)) is not None}
    for name, space in found.items():
        if isinstance(space, Choice):
            found[name] = Choice(*(plain(value, enums.get(name)) for value in space.values))
        _check_type(recipe, name, types[name], found[name], names)
    distributions = {n: space for n, space in found.items() if isinstance(space, Distribution)}
    derived = {n: space for n, space in found.items() if isinstance(space, Derived)}
    if not distributions:
        raise UsageError(_nothing(recipe, names, fixed))
    made = Space(distributions, derived, others, enums)
    needed = {n for each in derived.values() for n in each.needs}
    missing = sorted(n for n in needed if n not in found and n not in others)
    if missing:
        of = next(name for name, each in derived.items() if missing[0] in each.needs)
        raise UsageError(
            f"Derived parameter `{of}` of '{recipe.path}' depends on parameter `{missing[0]}`, "
            "which has neither a value nor a search space. Pass "
            f"--{missing[0].replace('_', '-')} VALUE, or give `{missing[0]}` a default in task()."
        )
    if derived:
        _check_derived(recipe, arguments, made)
    return made


def _check_derived(recipe: Recipe, arguments: Sequence[str], made: Space) -> None:
    """Refuse derived values that the recipe does not take, before a trial of each one fails."""
    for values in itertools.islice(made.examples(), _EXAMPLES_TRIED):
        words = words_of({name: values[name] for name in made.derived})
        try:
            recipe.given_values([*arguments, *words])
        except UsageError as error:
            drawn = ", ".join(f"{name}={values[name]!r}" for name in made.distributions)
            raise UsageError(
                f"'{recipe.path}' does not accept `{' '.join(words)}`, which the functions of its "
                f"Derived parameters returned for {drawn}. Return values of the parameter's type "
                "from the function in `hotlap.Derived(...)` in task(), as in Derived(lambda width: "
                f"round(1.5 * width)) for an int. The recipe's error: {error}"
            ) from error


def _nothing(recipe: Recipe, names: Sequence[str], fixed: Sequence[str]) -> str:
    have = f"parameters {', '.join(names)}" if names else "no parameters"
    given = f", of which the command line sets {', '.join(fixed)}" if fixed else ""
    return (
        f"no parameter of '{recipe.path}' has a search space: task() has {have}{given}. Expected: "
        f"{_EXAMPLES}."
    )


def _annotations(recipe: Recipe) -> dict[str, Any]:
    try:
        return get_type_hints(recipe.function, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"an annotation of task() in '{recipe.path}' cannot be resolved: {error}. Import the "
            "type, or remove the annotation."
        ) from error


def _metadata(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _parse(text: str, recipe: Recipe) -> tuple[str, Distribution]:
    """Return the name and the distribution of one `--space`."""
    match = _SPACE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--space '{text}' is not valid. Expected: NAME=KIND(VALUES), as in "
            "'lr=loguniform(1e-5,1e-2)' or 'model=choice(mlp,cnn)'."
        )
    name = match["name"].replace("-", "_")
    if name not in recipe.parameters():
        raise UnknownName(
            unknown_name(name, recipe.parameters(), f"--space '{text}': parameter of task()")
        )
    if match["kind"].lower() not in KINDS:
        raise UnknownName(unknown_name(match["kind"], KINDS, f"--space '{text}': distribution"))
    values = [_literal(each.strip()) for each in match["values"].split(",") if each.strip()]
    kind = KINDS[match["kind"].lower()]
    if kind is not Choice and len(values) != 2:
        raise UsageError(
            f"--space '{text}' has {len(values)} values. Expected: two, the ends of the range, as "
            "in 'lr=loguniform(1e-5,1e-2)'."
        )
    try:
        return name, kind(*values)
    except UsageError as error:
        error.args = (f"--space '{text}': {error}",)
        raise


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _type_of(recipe: Recipe, name: str, hint: Any) -> Any:
    """Return a parameter's type without what it is annotated with; by default that of the default.

    None if it has neither.
    """
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if inner is None:
        default = inspect.signature(recipe.function).parameters[name].default
        inner = type(default) if default is not inspect.Parameter.empty else None
    return inner


def _check_enum(recipe: Recipe, name: str, inner: Any, space: Distribution) -> None:
    enum = enum_of(inner)
    strange = [v for v in space.grid(2) if enum is not None and v not in members_of(enum)]
    if enum is not None and strange:
        raise UsageError(
            f"parameter `{name}` of '{recipe.path}' is the Enum {enum.__name__}, but {space} gives "
            f"{strange[0]!r}, which names no member. Use Choice with some of "
            f"{', '.join(members_of(enum))}."
        )


def _check_type(
    recipe: Recipe, name: str, inner: Any, space: Distribution | Derived, names: Sequence[str]
) -> None:
    """Refuse a space whose values a parameter of the type `inner` does not take."""
    if isinstance(space, Derived):
        for needed in space.needs:
            if needed not in names:
                raise UnknownName(
                    unknown_name(
                        needed,
                        names,
                        f"argument of the Derived function of `{name}`: parameter of task()",
                    )
                )
        return
    _check_enum(recipe, name, inner, space)
    if inner is int and space.kind in ("uniform", "loguniform"):
        raise UsageError(
            f"parameter `{name}` of '{recipe.path}' is an int, but {space} gives fractions. Use "
            "IntRange, PowerOfTwo or Choice."
        )
    if get_origin(inner) is Literal:
        strange = [v for v in space.grid(2) if v not in get_args(inner)]
        if strange:
            raise UsageError(
                f"parameter `{name}` of '{recipe.path}' cannot be {strange[0]!r}, but {space} "
                "gives that value. Use Choice with some of "
                f"{', '.join(map(repr, get_args(inner)))}."
            )
    if inner in (int, float) and isinstance(space, Choice):
        allowed = (int,) if inner is int else (int, float)
        strange = [v for v in space.values if type(v) not in allowed]
        if strange:
            raise UsageError(
                f"parameter `{name}` of '{recipe.path}' is {'an' if inner is int else 'a'} "
                f"{inner.__name__}, but {space} gives {strange[0]!r}. Use Choice with "
                f"{'integers' if inner is int else 'numbers'} only."
            )
    if inner is bool and isinstance(space, Choice):
        strange = [v for v in space.values if type(v) is not bool]
        if strange:
            raise UsageError(
                f"parameter `{name}` of '{recipe.path}' is a bool, but {space} gives "
                f"{strange[0]!r}. Use Choice with True and False, as in "
                f"--space '{name}=choice(True,False)'."
            )
    if inner in (str, bool) and not isinstance(space, Choice):
        raise UsageError(
            f"parameter `{name}` of '{recipe.path}' is a {inner.__name__}, but {space} gives "
            "numbers. Use Choice with the values to try."
        )
