"""What a writer does to a disk, recorded, and every state in which a crash may leave that disk.

The model is the most relaxed one: what was written and not synced may be there, cut or missing;
a name that was made, moved or deleted and whose folder was not synced may be as it was before, in
any combination. What was synced is there.
"""

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Op = tuple[Any, ...]


class Recorder:
    """Stands in for `os` in the modules that write, does what they say, and notes it.

    Args:
        root: paths are told from there.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.ops = root, []
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _at(self, path: Any) -> str:
        return os.path.relpath(path, self.root)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        self._paths[descriptor] = self._at(path)
        if flags & os.O_CREAT:
            self.ops.append(("create", self._at(path)))
        return descriptor

    def write(self, descriptor: int, content: Any) -> int:
        # As a system may: not all at once.
        path, half = self._paths[descriptor], max(1, len(content) // 2)
        is_begun = self.ops[-1][:2] == ("write", path)
        written = os.write(descriptor, content if is_begun else content[:half])
        self.ops.append(("write", self._paths[descriptor], bytes(content[:written])))
        return written

    def fsync(self, descriptor: int) -> None:
        self.ops.append(("fsync", self._paths[descriptor]))

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self.ops.append(("mkdir", self._at(path)))

    def rename(self, old: Any, new: Any) -> None:
        os.rename(old, new)
        self.ops.append(("rename", self._at(old), self._at(new)))

    def replace(self, old: Any, new: Any) -> None:
        os.replace(old, new)
        self.ops.append(("rename", self._at(old), self._at(new)))

    def delete(self, path: Path) -> None:
        """Stand in for `litter.delete`."""
        for each in sorted(path.iterdir()):
            each.unlink()
            self.ops.append(("unlink", self._at(each)))
        path.rmdir()
        self.ops.append(("rmdir", self._at(path)))


class Disk:
    """Folders and files by number, with what is sure and what is not."""

    def __init__(self) -> None:
        self.names: dict[int, dict[str, int]] = {0: {}}
        """Folder -> name -> folder or file, as a process sees it."""
        self.sure: dict[int, dict[str, int]] = {0: {}}
        self.changes: dict[int, list[dict[str, int | None]]] = {0: []}
        """Of each folder, since it was synced: what one operation did to its names."""
        self.contents: dict[int, bytes] = {}
        self.safe: dict[int, bytes] = {}
        self._numbers = itertools.count(1)

    def find(self, path: str) -> tuple[int, str, int | None]:
        """Return a path's folder, its name there, and what it is."""
        *parts, name = path.split("/")
        folder = 0
        for part in parts:
            folder = self.names[folder][part]
        return folder, name, self.names[folder].get(name)

    def do(self, op: Op) -> None:
        """Do one operation."""
        kind, path = op[0], op[1]
        folder, name, number = self.find(path) if path != "." else (0, "", 0)
        if kind in ("create", "mkdir"):
            new = next(self._numbers)
            if kind == "create":
                self.contents[new] = self.safe[new] = b""
            else:
                self.names[new], self.sure[new], self.changes[new] = {}, {}, []
            self._change(folder, {name: new})
        elif kind == "write":
            assert number is not None
            self.contents[number] += op[2]
        elif kind == "fsync":
            assert number is not None
            if number in self.contents:
                self.safe[number] = self.contents[number]
            else:
                self.sure[number] = dict(self.names[number])
                self.changes[number] = []
        elif kind == "rename":
            other, there, _ = self.find(op[2])
            assert other == folder and number is not None
            self._change(folder, {name: None, there: number})
        else:
            self._change(folder, {name: None})

    def _change(self, folder: int, change: dict[str, int | None]) -> None:
        for name, number in change.items():
            if number is None:
                self.names[folder].pop(name)
            else:
                self.names[folder][name] = number
        self.changes[folder].append(change)

    def crashes(self, most: int) -> Iterator["Disk"]:
        """Give the states that a crash now may leave, at most so many for each folder."""
        folders = [number for number, changes in self.changes.items() if changes]
        loose = [n for n, content in self.contents.items() if content != self.safe[n]]
        choices = [list(_subsets(len(self.changes[number]), most)) for number in folders]
        for kept in itertools.product(*choices):
            for cut in range(3) if loose else (0,):
                left = Disk()
                left.names = {number: dict(names) for number, names in self.sure.items()}
                for number, chosen in zip(folders, kept, strict=True):
                    for place in chosen:
                        for name, what in self.changes[number][place].items():
                            if what is None:
                                left.names[number].pop(name, None)
                            else:
                                left.names[number][name] = what
                left.contents = dict(self.safe)
                for number in loose:
                    whole = self.contents[number]
                    left.contents[number] = (self.safe[number], whole[: len(whole) // 2], whole)[
                        cut
                    ]
                yield left

    def put(self, folder: Path, number: int = 0) -> None:
        """Make that state in an empty folder."""
        if number == 0:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        for name, what in self.names[number].items():
            if what in self.contents:
                (folder / name).write_bytes(self.contents[what])
            else:
                self.put(folder / name, what)

    def key(self, number: int = 0) -> Any:
        """Return what tells one state from another."""
        return tuple(
            (name, self.contents[what] if what in self.contents else self.key(what))
            for name, what in sorted(self.names[number].items())
        )


def _subsets(count: int, most: int) -> Iterator[tuple[int, ...]]:
    """Give which of the changes are there: all choices of few, of many those next to one."""
    if 2**count <= most:
        for size in range(count + 1):
            yield from itertools.combinations(range(count), size)
        return
    everything = tuple(range(count))
    for place in range(count + 1):
        yield everything[:place]
        yield everything[place:]
    for place in everything:
        yield (place,)
        yield everything[:place] + everything[place + 1 :]
