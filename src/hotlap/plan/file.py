"""The plan file (TOML): a plan, the host that it was measured on, and its verdict.

A plan file comes from a stranger: only known keys are read, its size is limited, and no value can
hold a path, the name of an environment variable or code. It is made for review, so it is sorted,
and each technique's comment gives the reason for it.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, PlanError, unknown_name
from hotlap.plan.record import Option, Plan

SCHEMA = 1
TIERS = ("exact", "rounding", "statistical", "unproven", "changed")
SIZE_LIMIT = 64 * 1024
"""Bytes of the largest plan file that is read. A real one has less than two thousand."""
TEXT_LIMIT = 1000
"""Characters of the longest text in a plan file; what is longer is cut when it is written."""

_HEADER = re.compile(
    r"# hotlap plan (?P<hash>[0-9a-f]{12})"
    r"(: (?P<median>\d{1,6}\.\d\d)x \((?P<low>\d{1,6}\.\d\d) to (?P<high>\d{1,6}\.\d\d)\))?",
    re.ASCII,
)
_TABLE = re.compile(r"\[techniques\.(?P<name>[A-Za-z0-9_-]+)\]")


@dataclass(frozen=True)
class Speedup:
    """How many times faster than plain, with the ends of its interval. Kept to two decimals."""

    median: float
    low: float
    high: float

    def __post_init__(self) -> None:
        # A plan file shows two decimals, and must read back as what was written.
        for name in ("median", "low", "high"):
            value = float(getattr(self, name))
            if not 0 <= value < 1e6:
                raise ValueError(f"a speedup's {name} is {value}. Expected: from 0 to a million.")
            object.__setattr__(self, name, round(value, 2))

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class MeasuredOn:
    """The host that a plan was measured on; on another one its verdict says nothing."""

    cpu: str
    torch: str
    cores: int | None = None
    """That a process could keep busy; None if it is not said."""
    gpus: str | None = None
    """Names of the GPUs, None if there were none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cpu", _one_line(self.cpu))
        object.__setattr__(self, "torch", _one_line(self.torch))
        if self.gpus is not None:
            object.__setattr__(self, "gpus", _one_line(self.gpus))
        if self.cores is not None and (type(self.cores) is not int or self.cores < 1):
            raise PlanError(
                f"host.cores = {self.cores!r} is not allowed. Expected: an integer of 1 or more."
            )

    def to_toml(self) -> dict[str, Option]:
        """Return what the table holds."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class PlanVerdict:
    """What was proven of a plan."""

    tier: str
    evidence: str
    horizon_steps: int

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise PlanError(unknown_name(str(self.tier), TIERS, "verdict.tier"))
        if type(self.horizon_steps) is not int or self.horizon_steps < 0:
            raise PlanError(
                f"verdict.horizon_steps = {self.horizon_steps!r} is not allowed. "
                "Expected: an integer of 0 or more."
            )
        object.__setattr__(self, "evidence", _one_line(self.evidence))


@dataclass(frozen=True)
class PlanFile:
    """A plan, with what is known of it."""

    plan: Plan
    host: MeasuredOn | None = None
    verdict: PlanVerdict | None = None
    speedup: Speedup | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    """Technique of the plan -> the reason for it and its measured gain, on one line."""
    measured: str | None = None
    """Hash of the plan that was measured. Left out, `plan` is what was measured; another hash, or
    none (""), says that somebody wrote or edited the file by hand."""

    def __post_init__(self) -> None:
        unused = self.notes.keys() - self.plan.techniques.keys()
        if unused:
            raise PlanError(
                f"`notes` has a note on technique '{min(unused)}', which is not in the plan "
                f"`{self.plan}`. Remove the note, or add the technique to the plan."
            )
        lines = {name: _one_line(note) for name, note in sorted(self.notes.items())}
        kept = {name: note for name, note in lines.items() if note}
        object.__setattr__(self, "notes", kept)
        if self.measured is None:
            object.__setattr__(self, "measured", self.plan.hash)

    @property
    def is_as_measured(self) -> bool:
        """False if verdict and gain are those of another plan: the file was edited."""
        return self.measured == self.plan.hash

    def to_toml(self) -> str:
        """Return the text of the plan file. Equal plan files have equal texts."""
        blocks = ["\n".join([*_header(self), f"schema = {SCHEMA}"])]
        if self.host is not None:
            blocks.append(_table("host", self.host.to_toml()))
        if self.verdict is not None:
            values = {
                "tier": self.verdict.tier,
                "horizon_steps": self.verdict.horizon_steps,
                "evidence": self.verdict.evidence,
            }
            blocks.append(_table("verdict", values))
        for name, options in self.plan.techniques.items():
            note = f"# {self.notes[name]}\n" if name in self.notes else ""
            blocks.append(note + _table(f"techniques.{name}", options))
        return "\n\n".join(blocks) + "\n"

    @classmethod
    def from_toml(cls, text: str, source: str) -> "PlanFile":
        """Read the text of a plan file.

        Args:
            text: what the file holds.
            source: its name, for messages.

        Raises:
            PlanError: the text is no TOML, too large, or holds a key, type or value that a plan
                file does not have.
        """
        try:
            return _parse(text)
        except PlanError as error:
            message = f"{source}: {error}"
            raise PlanError(message) from error

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "PlanFile":
        """Read a plan file.

        Raises:
            MissingFile: there is no such file.
            PlanError: see `from_toml`.
        """
        path = Path(path)
        if not path.is_file():
            words = "is not a file" if path.exists() else "was not found"
            raise MissingFile(
                f"plan file '{path}' {words}. Check the path, or run `hotlap tune SCRIPT` to write "
                "one."
            )
        with path.open("rb") as stream:
            content = stream.read(SIZE_LIMIT + 1)
        try:
            return cls.from_toml(content.decode(), str(path))
        except UnicodeDecodeError as error:
            raise PlanError(
                f"{path}: byte {error.start} is not valid UTF-8, so this is not a plan file. "
                "Expected: TOML, as `hotlap tune` writes it. Check the path."
            ) from error

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file, all of it or nothing."""
        path = Path(path)
        if not path.parent.is_dir():
            raise MissingFile(
                f"folder '{path.parent}' for the plan file was not found. Create it first."
            )
        import tempfile

        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(self.to_toml())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def is_plan_file(path: Path) -> bool:
    """True if a file is a plan file, or empty."""
    try:
        PlanFile.read(path)
    except PlanError:
        return path.is_file() and path.stat().st_size == 0
    except (OSError, MissingFile):
        return False
    return True


def _one_line(text: str) -> str:
    """Return the text as a plan file can hold it: one line, printable, not too long."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
    if len(line) <= TEXT_LIMIT:
        return line
    kept = line[: TEXT_LIMIT - 3]
    # A line of one word has nowhere else to be cut.
    return f"{kept.rpartition(' ')[0] or kept}..."


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise PlanError(f"{what} = {value!r} has type {type(value).__name__}. Expected: a string.")
    if not value.isprintable() or len(value) > TEXT_LIMIT or value != value.strip():
        raise PlanError(
            f"{what} = {value[:80]!r} is not allowed. Expected: one line of printable text, at "
            f"most {TEXT_LIMIT} characters, without spaces at its ends."
        )


def _header(file: PlanFile) -> list[str]:
    # Without a hash the file reads back as one that was written by hand, which it then is.
    if not file.measured:
        return []
    parts = [str(file.speedup)] if file.speedup is not None else []
    if file.verdict is not None:
        steps = file.verdict.horizon_steps
        parts.append(f"verdict {file.verdict.tier} over {steps} step{'s' * (steps != 1)}")
    return [f"# hotlap plan {file.measured}" + (f": {', '.join(parts)}" if parts else "")]


def _table(name: str, values: Mapping[str, Option]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())])


def _toml(value: Option) -> str:
    # A JSON string is a TOML string, as long as nothing in it needs a surrogate pair.
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)


def _parse(text: str) -> PlanFile:
    # `hotlap run` needs it only where there is a file.
    import tomllib

    if len(text.encode("utf-8", "replace")) > SIZE_LIMIT:
        raise PlanError(
            f"the plan file is larger than {SIZE_LIMIT} bytes. Use one that `hotlap tune` wrote."
        )
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise PlanError(
            "the plan file is nested too deeply. Expected: only `schema`, `[host]`, `[verdict]` "
            "and `[techniques.NAME]`. Remove what is nested deeper."
        ) from None
    except ValueError as error:
        raise PlanError(
            f"this plan file is not valid TOML: {error}. Correct the file, or run `hotlap tune "
            "SCRIPT` to write a new one."
        ) from error
    _check_keys(data, ("schema", "host", "verdict", "techniques"), "top-level key")
    if type(data.get("schema")) is not int or data["schema"] != SCHEMA:
        given = f"schema = {data['schema']!r}" if "schema" in data else "no `schema`"
        raise PlanError(
            f"the plan file has {given}, and this version of hotlap reads only schema = {SCHEMA}. "
            f"If you wrote the file by hand, write the line `schema = {SCHEMA}` above its first "
            "table. Otherwise, run `hotlap tune SCRIPT` again with this version."
        )
    plan = Plan(_section(data, "techniques") or {})
    speedup, measured = _read_header(text)
    file = PlanFile(
        plan=plan,
        host=_record(data, "host", MeasuredOn),
        verdict=_record(data, "verdict", PlanVerdict),
        speedup=speedup,
        notes=_read_notes(text, plan),
        measured=measured,
    )
    # The first line says what was proven, too: another verdict below it was put there by hand.
    as_written = _header(file) == text.splitlines()[:1]
    return file if as_written else replace(file, measured="")


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise PlanError(
            f"{name} = {value!r} is not allowed. Expected: a table [{name}] with its keys, as "
            "`hotlap tune` writes it; or remove the line."
        )
    return value


def _record(data: Mapping[str, Any], name: str, kind: type) -> Any:
    values = _section(data, name)
    if values is None:
        return None
    keys = tuple(item.name for item in fields(kind))
    _check_keys(values, keys, f"key in [{name}]")
    for item in fields(kind):
        key = item.name
        if key not in values and item.default is None:
            continue
        if key not in values:
            raise PlanError(
                f"the table [{name}] has no key '{key}'. Expected keys: {', '.join(keys)}. Remove "
                f"[{name}], or run `hotlap tune SCRIPT` to write a new plan file."
            )
        if key not in ("horizon_steps", "cores"):
            _check_text(values[key], f"{name}.{key}")
    return kind(**values)


def _check_keys(data: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    for key in data:
        if key not in known:
            raise PlanError(unknown_name(key, known, what))


def _read_header(text: str) -> tuple[Speedup | None, str]:
    match = _HEADER.match(text)
    if match is None:
        return None, ""
    if match["median"] is None:
        return None, match["hash"]
    return Speedup(*(float(match[key]) for key in ("median", "low", "high"))), match["hash"]


def _read_notes(text: str, plan: Plan) -> dict[str, str]:
    """Return technique -> the comment right above its table."""
    notes: dict[str, str] = {}
    comment: list[str] = []
    known = plan.techniques
    for line in text.splitlines():
        table = _TABLE.fullmatch(line.strip())
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
            continue
        if table and table["name"] in known and comment:
            notes[table["name"]] = " ".join(comment)
            _check_text(notes[table["name"]], f"the comment above [techniques.{table['name']}]")
        comment = []
    return notes
