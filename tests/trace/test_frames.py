"""The loops around a running line are counted without running anything of the user's."""

import linecache
import sys
from pathlib import Path
from typing import Any

import pytest

from hotlap.trace import frames

LOOPS = """
class Config:
    def __init__(self):
        self.epochs = 7
        self.table = {"n": 3}
    runs = 0
    @property
    def trap(self):
        Config.runs += 1
        return 7

def tqdm(x, **kwargs):
    return x

def go(look):
    args = Config()
    start = 2
    HEADER
        look()
        break
"""


def loops_of(header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[frames.Loop]:
    path = tmp_path / "users.py"
    path.write_text(LOOPS.replace("HEADER", header))
    namespace: dict[str, Any] = {"__name__": "users"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    frames.is_users.cache_clear()
    frames.tree_of.cache_clear()
    linecache.clearcache()
    found: list[frames.Loop] = []
    namespace["go"](lambda: found.extend(frames.loops_around(sys._getframe(1))))
    assert namespace["Config"].runs <= 1, "a property was run once more, to count the loop"
    return [loop for loop in found if loop.where.endswith("users.py:18")]


@pytest.mark.parametrize(
    ("header", "total"),
    [
        ("for epoch in range(args.epochs):", 7),
        ("for epoch in range(1, args.epochs + 1):", 7),
        ("for epoch in range(start, args.table['n'] * 4, 2):", 5),
        ("for epoch in tqdm(range(args.epochs), desc='x'):", 7),
        ("for i, epoch in enumerate(range(args.epochs)):", 7),
    ],
)
def test_counted_loops_are_counted(
    header: str, total: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (loop,) = loops_of(header, tmp_path, monkeypatch)
    assert loop.total == total
    assert loop.done == 0


@pytest.mark.parametrize(
    "header",
    [
        "for epoch in range(args.trap):",
        "for epoch in [1, 2]:",
        "for e in range(len('ab')):",
    ],
)
def test_what_would_have_to_be_run_is_not_counted(
    header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (loop,) = loops_of(header, tmp_path, monkeypatch)
    assert loop.total is None


def test_passes_of_a_while_loop_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = loops_of("while True:", tmp_path, monkeypatch)
    assert found.is_while and found.total is None


def test_libraries_are_not_the_users(tmp_path: Path) -> None:
    assert not frames.is_users(frames.__file__)
    assert not frames.is_users(sys.modules["json"].__file__ or "")
    assert not frames.is_users("<string>")
    assert frames.is_users(str(tmp_path / "train.py"))


def test_every_instruction_of_a_loop_belongs_to_one_of_its_lines() -> None:
    def count(things: list[int]) -> int:
        found = 0
        for thing in things:
            if thing > 1:
                found += 1
        return found

    code = count.__code__
    first = code.co_firstlineno
    lines = {frames.Running(code, place, "").line for place in range(2, len(code.co_code) // 2)}
    assert lines <= {first + offset for offset in range(1, 6)}
    assert any(line is None for line, *_ in code.co_positions())


def test_paths_stay_absolute_where_the_working_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = str(tmp_path / "train.py")
    folder.rmdir()
    assert frames.shorten_path(path) == path
    assert frames.shorten_path("train.py") == "train.py"
