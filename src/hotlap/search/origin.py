"""`Origin`: what a search was begun with: code, machine, versions, time. No torch."""

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from hotlap.usercode import imported_files


@dataclass(frozen=True)
class Origin:
    """What a search was begun with, besides its settings; in the first line of its journal."""

    recipe: str = ""
    """Its resolved path; empty if not known."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What the recipe imports, relative to its folder -> SHA-256."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """Time, versions and machine, as a document has them."""

    @classmethod
    def of(cls, recipe: str, made: Mapping[str, Any]) -> Self:
        """Return that of a search that begins now.

        Args:
            recipe: its path; it was imported in this process, and its task was made.
            made: time, versions and machine.
        """
        path = Path(recipe).resolve()
        # The recipe's own file has its digest in the settings; how hotlap was started is no part.
        others = {str(path), os.path.abspath(vars(sys.modules["__main__"]).get("__file__") or "")}
        files = {}
        for each in imported_files():
            digest = _digest_of(Path(each))
            is_code = each.endswith(".py") and os.path.abspath(each) not in others
            if digest is not None and is_code:
                files[os.path.relpath(each, path.parent)] = digest
        return cls(str(path), files, made)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], written: float) -> Self:
        """Return what `to_json` wrote.

        Args:
            data: that; empty in journals of earlier versions, which do not say.
            written: when the journal was written last, for those.
        """
        made = data.get("made") or {"time": in_words(written)}
        return cls(data.get("recipe", ""), data.get("files", {}), made)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def changed_file(self, recipe: str) -> str | None:
        """Return one of the files that is another one now, None if all are as they were.

        One that is missing was not needed: the recipe was just imported.
        """
        folder = Path(recipe).resolve().parent
        now = {name: _digest_of(folder / name) for name in self.files}
        return next((k for k, v in self.files.items() if now[k] not in (None, v)), None)

    def other_versions(self, now: "Origin") -> str:
        """Return in words which versions are others now, empty if none is."""
        names = [each for each in ("torch", "hotlap") if self.made.get(each)]
        other = [each for each in names if now.made.get(each, self.made[each]) != self.made[each]]
        return ", ".join(f"{k} was {self.made[k]}, now it is {now.made[k]}" for k in other)


def in_words(at: float) -> str:
    """Return a time, in seconds since 1970, as documents have it."""
    return time.strftime("%Y-%m-%d at %H:%M %z", time.localtime(at))


def _digest_of(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
