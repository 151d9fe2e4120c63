"""What a command line gives a recipe."""

from pathlib import Path
from typing import Any

import pytest

from hotlap.errors import UsageError
from hotlap.recipe import Recipe
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
