"""Mutants: one guard of the source broken each, with the tests that must see it."""

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FIELDS = {"file", "text", "replacement", "breaks", "tests"}


@dataclass(frozen=True)
class Mutant:
    """One change to one file that no test suite should let pass."""

    name: str
    file: str
    """Below `src/hotlap`."""
    text: str
    """What is replaced: found exactly once in the file, so that lines may move."""
    replacement: str
    breaks: str
    """What goes wrong with it, in one line."""
    tests: tuple[str, ...]
    """As pytest takes them: files or single tests, of which at least one must fail."""

    def path(self, root: Path = ROOT) -> Path:
        return root / "src" / "hotlap" / self.file

    def applied(self, source: str) -> str:
        """Return the file's text with the guard broken.

        Raises:
            ValueError: the text is not found exactly once, or what comes out is the same program.
            SyntaxError: what comes out is no Python.
        """
        count = source.count(self.text)
        if count != 1:
            raise ValueError(
                f"{self.name}: its text is found {count} times in {self.file}, not once. Write the "
                "guard down as it is now, or remove the mutant with the guard"
            )
        changed = source.replace(self.text, self.replacement)
        if self.text.split() == self.replacement.split():
            raise ValueError(f"{self.name}: its replacement is the same program")
        ast.parse(changed)
        return changed


def load(folder: Path = Path(__file__).parent) -> list[Mutant]:
    """Return the mutants of every TOML file in the folder, in the order in which they stand."""
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        for name, values in tomllib.loads(path.read_text()).items():
            if values.keys() != _FIELDS:
                raise ValueError(f"{path.name}, [{name}]: has {set(values)}, not {_FIELDS}")
            found.append(Mutant(name, **{**values, "tests": tuple(values["tests"])}))
    return found
