"""How many steps a run has, by the loops around its step."""

from types import SimpleNamespace
from typing import Any

from hotlap.trace.facts import plan_steps
from hotlap.trace.frames import Loop

LOADER: Any = SimpleNamespace(where="a.py:9", function="train")
STACK: Any = ["train", "main"]
BATCHES = Loop("a.py:9", 9, None, 0, 0)
EPOCHS = Loop("a.py:8", 8, 12, 0, 0)
FOLDS = Loop("a.py:30", 30, None, 0, 1)


def test_epochs_times_the_steps_of_one() -> None:
    assert plan_steps([BATCHES, EPOCHS], STACK, [LOADER], 250) == (
        3000,
        "a.py:8 goes round 12 times, 250 steps each",
    )


def test_a_loop_around_it_that_is_not_counted_leaves_the_length_open() -> None:
    steps, why = plan_steps([BATCHES, EPOCHS, FOLDS], STACK, [LOADER], 250)
    assert steps is None and "a.py:30" in why


def test_without_a_loader_every_loop_counts() -> None:
    episodes = Loop("a.py:5", 5, 10, 0, 0)
    assert plan_steps([episodes], [], [], None)[0] == 10
    assert plan_steps([EPOCHS, episodes], [], [], None)[0] == 120
    assert plan_steps([BATCHES, episodes], [], [], None)[0] is None


def test_the_loop_over_a_generator_around_the_loader_is_the_loader_s() -> None:
    elsewhere: Any = SimpleNamespace(where="b.py:4", function="batches")
    assert plan_steps([BATCHES, EPOCHS], STACK, [elsewhere], 250)[0] == 3000


def test_a_single_pass() -> None:
    inner = Loop("a.py:11", 11, 4, 0, 0)
    assert plan_steps([inner, BATCHES], STACK, [LOADER], 250)[0] == 250
    assert plan_steps([BATCHES], STACK, [LOADER], 250)[0] is None
