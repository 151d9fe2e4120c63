"""What is planted in which script, and whether a report names it."""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "planted"
SCRIPTS, CORRECTED = FOLDER / "scripts", FOLDER / "corrected"
KINDS = ("slow", "mistake", "clean")


@dataclass(frozen=True)
class Planted:
    """A script, and what is planted in it."""

    name: str
    kind: str
    problem: str = ""
    rules: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """Texts of the lines that are the cause."""
    period: int = 1
    """Optimizer steps after which the script does the same again."""

    @property
    def script(self) -> Path:
        return SCRIPTS / f"{self.name}.py"

    @property
    def corrected(self) -> Path:
        """The same script without what is planted; a clean script has none."""
        return CORRECTED / f"{self.name}.py"

    @property
    def digest(self) -> str:
        """Of both texts: what was measured of others does not count."""
        texts = [path.read_bytes() for path in (self.script, self.corrected) if path.exists()]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]

    def line_numbers(self) -> tuple[int, ...]:
        """Return where the lines of the cause stand.

        Raises:
            ValueError: one of them does not occur exactly once.
        """
        texts = [line.strip() for line in self.script.read_text().splitlines()]
        for line in self.lines:
            if texts.count(line) != 1:
                raise ValueError(
                    f"{self.name}: a line occurs {texts.count(line)} times, not once: {line!r}"
                )
        return tuple(texts.index(line) + 1 for line in self.lines)

    def is_at_cause(self, where: str) -> bool:
        """True if `where`, a `file:line`, is a line of the cause."""
        file, _, line = where.rpartition(":")
        at = int(line) if line.isdigit() else 0
        return Path(file).name == self.script.name and at in self.line_numbers()

    def rank(self, found: Sequence[Mapping[str, Any]]) -> int | None:
        """Return at which place, from 1, what is planted is named: by its rule or by its line."""
        for place, one in enumerate(found, 1):
            if one["rule"] in self.rules or self.is_at_cause(one["where"]):
                return place
        return None


def read_index() -> dict[str, Planted]:
    """Return all scripts by name, in the order of the index.

    Raises:
        ValueError: the index and the files beside it do not fit.
    """
    listed = tomllib.loads((FOLDER / "index.toml").read_text())
    found = {
        name: Planted(
            name,
            each["kind"],
            each.get("problem", ""),
            tuple(each.get("rules", ())),
            tuple(each.get("lines", ())),
            each.get("period", 1),
        )
        for name, each in listed.items()
    }
    unlisted = {path.stem for path in SCRIPTS.glob("*.py")} ^ set(found)
    unpaired = {path.stem for path in CORRECTED.glob("*.py")} ^ {
        name for name, each in found.items() if each.kind != "clean"
    }
    if unlisted or unpaired:
        raise ValueError(f"index.toml and its files differ in: {sorted(unlisted | unpaired)}")
    return found
