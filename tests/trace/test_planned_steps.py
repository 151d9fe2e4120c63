"""How many steps a run has, by the loops around its step."""

from types import SimpleNamespace
from typing import Any

from hotlap.trace.facts import count_steps_per_epoch, plan_steps
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


def at(where: str, total: int | None, *done: int, depth: int = 0) -> list[Loop]:
    """One loop, as it is at several steps."""
    line = int(where.rpartition(":")[2])
    return [Loop(where, line, total, passed, depth, total is None) for passed in done]


def test_batches_from_next_are_counted_by_the_loop_that_asks_for_them() -> None:
    elsewhere: Any = SimpleNamespace(where="b.py:4", function="cycle")
    before, now = at("a.py:8", 10_000, 1, 2)
    for loader in (LOADER, elsewhere):
        found = plan_steps([now], STACK, [loader], 469, [before], 3)
        assert found == (10_000, "a.py:8 goes round 10000 times")
    outer_before, outer_now = at("a.py:7", 12, 1, 1)
    nested = plan_steps([now, outer_now], STACK, [elsewhere], 469, [before, outer_before], 3)
    assert nested[0] == 12 * 10_000 - (10_000 + 3) + 3


def test_several_passes_for_each_step_are_counted() -> None:
    # The third step after 12 passes, or after 1,003 of which the first had none.
    accumulating = at("a.py:8", 8_000, 7, 11)
    steps, why = plan_steps(accumulating[1:], [], [], None, accumulating[:1], 3)
    assert (steps, why) == (2000, "a.py:8 goes round 8000 times, 4 times for each step")
    waiting = at("a.py:8", 10_000, 1001, 1002)
    assert plan_steps(waiting[1:], [], [], None, waiting[:1], 3)[0] == 10_000 - 1_003 + 3


def test_a_loop_whose_pass_holds_several_steps_does_not_count_them() -> None:
    # The batches are read in a comprehension, which is no statement.
    before, now = at("a.py:8", 12, 0, 0)
    assert plan_steps([now], STACK, [LOADER], 250, [before], 3)[0] == 3000


def test_a_while_around_the_step_leaves_the_length_open() -> None:
    updates, forever = Loop("a.py:9", 9, 80, 0, 0), at("a.py:5", None, 0)[0]
    steps, why = plan_steps([updates, forever], [], [], None)
    assert steps is None and "a.py:5" in why
    assert plan_steps([BATCHES, EPOCHS, forever], STACK, [LOADER], 250)[0] is None
    elsewhere: Any = SimpleNamespace(where="b.py:4", function="batches")
    assert plan_steps([BATCHES, EPOCHS, forever], STACK, [elsewhere], 250)[0] is None
    # The innermost one is over the batches.
    asks = at("a.py:9", None, 0)[0]
    assert plan_steps([asks, EPOCHS], STACK, [elsewhere], 250)[0] == 3000


def test_several_steps_with_each_batch_are_in_an_epoch() -> None:
    known: Any = SimpleNamespace(starts=[0], loader=range(100), batches=8)
    assert [count_steps_per_epoch([known], steps) for steps in (40, 8, 2)] == [500, 100, 25]


def test_a_single_pass() -> None:
    inner = Loop("a.py:11", 11, 4, 0, 0)
    assert plan_steps([inner, BATCHES], STACK, [LOADER], 250)[0] == 250
    assert plan_steps([BATCHES], STACK, [LOADER], 250)[0] is None
