"""What a command line gives a recipe, and what its code may do when it is read."""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from hotlap.cli import stopping
from hotlap.errors import UsageError
from hotlap.plan.outside import load_object
from hotlap.recipe import Recipe, load
from hotlap.search.parameters import words_of
from hotlap.task import Task


def given(hint: Any, *arguments: str) -> int | None:
    def task(*, count: hint = 1) -> Task:
        return Task(model=list, loss=max, data=[0], optimizer=list, batch_size=1, steps=count)

    return Recipe(Path("recipe.py"), task).task(arguments).steps


@pytest.mark.parametrize("hint", [int, int | None, None | int, int | float, int | str], ids=str)
def test_a_whole_number_is_not_rounded_from_another(hint: Any) -> None:
    assert given(hint, "--count", "3") == 3
    for arguments in (["--count", "2.7"], ["--count=2.7"]):
        with pytest.raises(UsageError, match=r"--count 2\.7 is not allowed.*an integer"):
            given(hint, *arguments)


@pytest.mark.parametrize("hint", [float, float | None, float | int], ids=str)
def test_other_numbers_are_taken_as_they_are(hint: Any) -> None:
    # The task takes no such number of steps, and says which one it got.
    with pytest.raises(UsageError, match=r"steps=2\.7"):
        given(hint, "--count", "2.7")


@dataclass
class Config:
    epochs: int = 3
    lr: float = 0.1


def untyped(steps=3, *, dropout=0, rate=0.5): ...


def typed(
    steps: int = 3,
    config: Config = Config(),  # noqa: B008
    *,
    pair: tuple[int, float] = (1, 2.0),
    sizes: list[int] | None = None,
    named: dict[str, int] | None = None,
    either: Literal["auto"] | int = "auto",
    small: Annotated[int, "small"] | None = None,
    text: str | int = "",
    **more: int,
): ...


def read(function: Callable[..., Any], *words: str) -> dict[str, Any]:
    return Recipe(Path("recipe.py"), function).values(words)


@pytest.mark.parametrize(
    ("function", "words", "expected"),
    [
        (untyped, ["2.7"], "--steps 2.7 is not allowed. Expected: an integer, like its default 3"),
        (untyped, ["--dropout", "0.5"], "`dropout: float = 0` in task() if it may have a fraction"),
        (untyped, words_of({"dropout": 0.3}), "--dropout 0.3 is not allowed"),
        (typed, ["2.7"], "--steps 2.7 is not allowed. Expected: an integer."),
        (typed, ["--config.epochs", "2.7"], "--config.epochs 2.7 is not allowed"),
        (typed, ["--config", '{"epochs": 2.7}'], "--config.epochs 2.7 is not allowed"),
        (typed, ["--pair", "1.5", "2"], "--pair 1.5 is not allowed"),
        (typed, ["--sizes", "1", "--sizes", "1.5"], "--sizes 1.5 is not allowed"),
        (typed, ["--named.first", "1.5"], "--named.first 1.5 is not allowed"),
        (typed, ["--either", "1.5"], "--either 1.5 is not allowed"),
        (typed, ["--small", "1.5"], "--small 1.5 is not allowed"),
        (typed, ["--other", "1.5"], "--other 1.5 is not allowed"),
    ],
)
def test_no_fraction_is_rounded_wherever_it_is_given(
    function: Callable[..., Any], words: list[str], expected: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        read(function, *words)


def test_fractions_are_taken_where_there_may_be_one() -> None:
    assert read(untyped, "4", "--dropout", "1", "--rate", "0.7") == {
        "steps": 4,
        "dropout": 1,
        "rate": 0.7,
    }
    words = ["4", "--config.lr", "0.5", "--pair", "1", "2.5", "--sizes", "2", "--text", "2.7"]
    found = read(typed, *words, "--either", "7", "--small", "0x10", "--other", "2.0")
    assert found["config"] == Config(3, 0.5) and found["more"] == {"other": 2}
    assert (found["pair"], found["sizes"], found["text"]) == ((1, 2.5), [2], "2.7")
    assert (found["either"], found["small"]) == (7, 16)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recipe in a process that a signal ends by an exception, as `hotlap train` is ended."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    before = signal.signal(signal.SIGTERM, stopping._leave)
    yield tmp_path / "asked_to_end.py"
    signal.signal(signal.SIGTERM, before)
    stopping._asked.clear()


@pytest.mark.parametrize("where", ["import", "task", "technique"])
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_signal_while_the_users_code_is_read_is_no_exit_of_its_own(
    where: str, is_asked: bool, recipe: Path
) -> None:
    ends = "signal.raise_signal(signal.SIGTERM)" if is_asked else "sys.exit(143)"
    task = f"def task(): {ends if where == 'task' else ''}"
    recipe.write_text(f"import signal, sys\n{task.rstrip()} or 1\n")
    if where != "task":
        recipe.write_text(f"import signal, sys\n{ends}\ndef task(): ...\n")

    def run() -> None:
        if where == "technique":
            load_object("asked_to_end:task", "technique", object)
        load(recipe).task()

    if not is_asked:
        with pytest.raises(UsageError):
            run()
        return
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 128 + signal.SIGTERM
