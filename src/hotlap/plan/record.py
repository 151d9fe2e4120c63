"""`Plan`: technique names and their options, immutable: its hash, its words, and differences.

Names and options of techniques are not known here; `hotlap.techniques.check` looks at them.
"""

import contextlib
import importlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from hotlap.errors import PlanError

Option = bool | int | float | str
"""What an option of a technique may be."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_NAMES = "a letter, then at most 63 letters, digits, '_' or '-'"
_WORD = re.compile(r"[A-Za-z0-9 _.,+-]{0,64}")


class Plan:
    """The techniques that a run is executed with, and their options.

    Plans are equal if they say the same, whatever order it was said in; `1`, `1.0` and `true` are
    not the same.

    >>> plan = Plan({"optimizer": {"implementation": "foreach"}}).with_technique("resident")
    >>> plan.techniques
    {'optimizer': {'implementation': 'foreach'}, 'resident': {}}
    """

    canonical: str
    """The plan as JSON with sorted keys: what is compared and hashed."""

    def __init__(self, techniques: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Make a plan from technique -> option -> value.

        Raises:
            PlanError: a name is no plain word, or a value is not a bool, finite number or plain
                text of at most 64 characters.
        """
        plain = {name: _plain_options(name, given) for name, given in (techniques or {}).items()}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        # Past `__setattr__`, which refuses: a plan is immutable.
        vars(self)["canonical"] = text

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a plan cannot be changed: use `with_technique` to set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a plan cannot be changed: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)

    @property
    def techniques(self) -> dict[str, dict[str, Option]]:
        """Technique -> option -> value, sorted by name. A copy: changing it leaves the plan."""
        return json.loads(self.canonical)

    def to_json(self) -> dict[str, dict[str, Option]]:
        """Return what `Plan` takes."""
        return self.techniques

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name the plan."""
        return _sha256()(self.canonical.encode()).hexdigest()[:12]

    def with_technique(self, name: str, /, **options: Option) -> "Plan":
        """Return the plan with this technique in it, in place of one of the same name."""
        return Plan({**self.techniques, name: options})

    def without(self, name: str) -> "Plan":
        """Return the plan without this technique; the same plan if it was not in it."""
        return Plan({key: value for key, value in self.techniques.items() if key != name})

    def diff(self, other: "Plan") -> tuple[str, ...]:
        """Return one line for each thing to do to make `other` of this plan; none if equal.

        >>> Plan({"resident": {}}).diff(Plan({"threads": {"count": 2}}))
        ('- resident', '+ threads(count=2)')
        """
        mine, theirs = self.techniques, other.techniques
        lines: list[str] = []
        for name in sorted(mine.keys() | theirs.keys()):
            if name not in theirs:
                lines.append(f"- {in_words(name, mine[name])}")
            elif name not in mine:
                lines.append(f"+ {in_words(name, theirs[name])}")
            else:
                lines.extend(_changed_options(name, mine[name], theirs[name]))
        return tuple(lines)

    def __str__(self) -> str:
        parts = [in_words(name, options) for name, options in self.techniques.items()]
        return ", ".join(parts) or "(plain)"

    def __repr__(self) -> str:
        return f"Plan({self.techniques!r})"

    def __bool__(self) -> bool:
        return self.canonical != "{}"


def _sha256() -> Any:
    # The builtin one: `hashlib` loads OpenSSL, for which `hotlap run` would have to wait.
    for name in ("_sha2", "_sha256"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).sha256
    import hashlib

    return hashlib.sha256


def _plain_options(name: str, given: Any) -> dict[str, Option]:
    what = f"technique '{name}'"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PlanError(f"{what} is not a valid name. Expected: {_NAMES}.")
    if not isinstance(given, Mapping):
        raise PlanError(
            f"the options of {what} are {given!r}. Expected: a table of options, which may be "
            f"empty: `[techniques.{name}]` in a plan file, a dict in Python."
        )
    for key, value in given.items():
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise PlanError(f"{what}: option '{key}' is not a valid name. Expected: {_NAMES}.")
        _check_value(value, f"{what}, option '{key}'")
    return dict(given)


def _check_value(value: Any, what: str) -> None:
    if type(value) not in (bool, int, float, str):
        raise PlanError(
            f"{what}: {value!r} has type {type(value).__name__}. Expected: true, false, a number, "
            "or a word such as 'foreach'."
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        raise PlanError(f"{what}: {value} is too large. Expected: a 64-bit integer.")
    if isinstance(value, float) and not math.isfinite(value):
        raise PlanError(f"{what}: {value} is not allowed. Expected: a finite number.")
    # Neither '/' nor '$' nor ':' is a letter of a plain word: no path, variable or import fits in.
    if isinstance(value, str) and not _WORD.fullmatch(value):
        raise PlanError(
            f"{what}: {value!r} is not a plain word. Expected: at most 64 letters, digits, spaces "
            "and . , _ + -"
        )


def in_words(name: str, options: Mapping[str, Option]) -> str:
    """Return a technique with its options, as in `threads(count=2)`."""
    words = ", ".join(f"{key}={_word(value)}" for key, value in sorted(options.items()))
    return f"{name}({words})" if words else name


def _word(value: Option) -> str:
    # Text that could be taken for a number or a boolean is quoted.
    plain = isinstance(value, str) and value[:1].isalpha() and value not in ("true", "false")
    return str(value) if plain else json.dumps(value)


def _changed_options(
    name: str, mine: Mapping[str, Option], theirs: Mapping[str, Option]
) -> list[str]:
    lines: list[str] = []
    for key in sorted(mine.keys() | theirs.keys()):
        before = _word(mine[key]) if key in mine else "(not set)"
        after = _word(theirs[key]) if key in theirs else "(not set)"
        if before != after:
            lines.append(f"~ {name}: {key} = {before} -> {after}")
    return lines
