"""How many steps a run has, by the loops around its step."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hotlap.trace.facts import count_steps_per_epoch, plan_steps
from hotlap.trace.frames import Loop

LOADER: Any = SimpleNamespace(where="a.py:9", function="train")
STACK: Any = ["train", "main"]
BATCHES = Loop("a.py:9", 9, None, 0, 0)
EPOCHS = Loop("a.py:8", 8, 12, 0, 0)
FOLDS = Loop("a.py:30", 30, None, 0, 1)
FOLDS_OF_3 = Loop("a.py:7", 7, 3, 0, 0)


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


def steps_in(
    *loops: list[Loop], training: Sequence[Any] = (), per_epoch: int | None = None
) -> tuple[int | None, str]:
    """Plan by loops that were seen at some steps."""
    *before, now = [list(each) for each in zip(*loops, strict=True)]
    return plan_steps(now, STACK, list(training), per_epoch, before)


def test_batches_from_next_are_counted_by_the_loop_that_asks_for_them() -> None:
    elsewhere: Any = SimpleNamespace(where="b.py:4", function="cycle")
    steps = at("a.py:8", 10_000, 0, 1, 2)
    for loader in (LOADER, elsewhere):
        found = steps_in(steps, training=[loader], per_epoch=469)
        assert found == (10_000, "a.py:8 goes round 10000 times")
    nested = steps_in(steps, at("a.py:7", 12, 1, 1, 1), training=[elsewhere], per_epoch=469)
    assert nested[0] == 12 * 10_000 - (10_000 + 3) + 3


def test_several_passes_for_each_step_are_counted() -> None:
    steps, why = steps_in(at("a.py:8", 8_000, 3, 7, 11))
    assert (steps, why) == (2000, "a.py:8 goes round 8000 times, 4 times for each step")
    # The first step after 1,000 passes that had none; one that is skipped in between.
    assert steps_in(at("a.py:8", 10_000, 1000, 1001, 1002))[0] == 10_000 - 1_003 + 3
    assert steps_in(at("a.py:8", 10_000, 0, 1, 3))[0] == 10_000 - 4 + 3
    # The inner loop begins again.
    assert steps_in(at("a.py:8", 2, 0, 1, 0), at("a.py:7", 50, 0, 0, 1))[0] == 100


def test_of_loops_that_share_a_variable_only_the_rounds_count() -> None:
    # The outer one's number is the inner one's.
    shared = at("a.py:8", 100, 0, 1, 2), at("a.py:7", 3, 0, 1, 2)
    assert steps_in(*shared)[0] == 300


def test_a_loop_whose_pass_holds_several_steps_does_not_count_them() -> None:
    # The batches are read in a comprehension, which is no statement.
    assert steps_in(at("a.py:8", 12, 0, 0, 0), training=[LOADER], per_epoch=250)[0] == 3000


def test_a_while_that_asks_for_the_batches_of_an_epoch_is_the_loader_s() -> None:
    known: Any = SimpleNamespace(where="a.py:10", function="train")
    asks = at("a.py:9", None, 0)[0]
    assert plan_steps([asks, EPOCHS], STACK, [known], 250)[0] == 3000
    # Control: one around a `for` over the loader is not.
    assert (
        plan_steps([BATCHES, at("a.py:8", None, 0)[0], FOLDS_OF_3], STACK, [LOADER], 250)[0] is None
    )


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
    # Loaders that are made anew for each epoch: the steps are those of all of them.
    assert count_steps_per_epoch([known] * 5, 40) == 100


def test_a_single_pass() -> None:
    inner = Loop("a.py:11", 11, 4, 0, 0)
    assert plan_steps([inner, BATCHES], STACK, [LOADER], 250)[0] == 250
    assert plan_steps([BATCHES], STACK, [LOADER], 250)[0] is None
