"""Waits for a loader belong to the phase `data` where training reads it, else to `other`."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hotlap.attach.apply import PlanInProcess
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Session
from hotlap.plan import Plan
from hotlap.trace.clock import BACKWARD, DATA, FORWARD, OTHER, PhaseClock
from hotlap.trace.recorder import Limits
from hotlap.trial.protocol import Config


class Ticks:
    now = 0

    def __call__(self) -> int:
        return self.now


class Iterator:
    """Of a loader."""


class Loop:
    """A script's loop whose every wait takes so long, as a watch is told of it."""

    def __init__(self) -> None:
        self.ticks, channel = Ticks(), SimpleNamespace(send=lambda *_, **__: None)
        config: Any = Config("observe", options={"started": 0.0})
        self.watch = Watch(Session(config, channel, PlanInProcess(Plan())), Limits())  # pyright: ignore[reportArgumentType]
        self.clock = self.watch.recorder.clock = PhaseClock(self.ticks)
        self.watch.recorder.setup_s = 1.0

    def begin(self, loader: Any) -> Any:
        iterator = Iterator()
        self.watch.iterator_made(loader, iterator)
        return iterator

    def wait(self, iterator: Any, ms: int) -> None:
        self.watch.batch_begins(iterator)
        self.ticks.now += ms
        self.watch.batch_ends(iterator, 1)

    def step(self) -> list[int]:
        """Go backward, take a step, and return what it took by phase."""
        self.clock.enter(BACKWARD)
        self.watch.backward_begins(torch.tensor(1.0))
        self.clock.enter(OTHER)
        self.watch.recorder.count_step()
        self.clock.mark_boundary()
        return self.clock.take()

    def evaluate(self) -> None:
        self.watch.evaluation_forward_ends(torch.nn.Linear(1, 1).eval(), (), {}, None)


def a_loader() -> Any:
    return DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2)


@pytest.mark.parametrize("is_begun_first", [False, True])
def test_waits_of_an_evaluation_are_not_the_training_loops(is_begun_first: bool) -> None:
    loop, training, held_out = Loop(), a_loader(), a_loader()
    # As a sanity check, or an iterator that is kept.
    evaluating = loop.begin(held_out) if is_begun_first else None
    if evaluating is not None:
        loop.wait(evaluating, 1)
        loop.evaluate()
    given = loop.begin(training)
    for _ in range(2):
        loop.wait(given, 5)
        loop.step()
    evaluating = evaluating or loop.begin(held_out)
    for _ in range(2):
        loop.wait(evaluating, 100)
        loop.evaluate()
    given = loop.begin(training)
    loop.wait(given, 5)
    row = loop.step()
    assert (row[DATA], row[OTHER]) == (5, 200)


def test_loaders_of_which_one_comes_last_are_all_waited_for() -> None:
    """As in `zip(labelled, unlabelled)`: a backward follows the last one only."""
    loop = Loop()
    labelled, unlabelled = loop.begin(a_loader()), loop.begin(a_loader())
    for _ in range(3):
        loop.wait(labelled, 5)
        loop.wait(unlabelled, 7)
        row = loop.step()
        assert (row[DATA], row[OTHER]) == (12, 0)


def test_loaders_that_are_begun_later_are_all_waited_for() -> None:
    loop = Loop()
    loop.wait(loop.begin(a_loader()), 5)
    loop.step()
    labelled, unlabelled, held_out = (loop.begin(a_loader()) for _ in range(3))
    rows = []
    for _ in range(3):
        # What is evaluated in between is no part of the step.
        loop.wait(held_out, 100)
        loop.evaluate()
        loop.wait(labelled, 5)
        loop.wait(unlabelled, 7)
        rows.append(loop.step()[DATA])
    assert rows == [0, 12, 12]


def test_a_training_loader_that_is_begun_later_is_waited_for() -> None:
    loop = Loop()
    loop.wait(loop.begin(a_loader()), 5)
    loop.step()
    fold = loop.begin(a_loader())
    rows = []
    for _ in range(3):
        loop.wait(fold, 5)
        rows.append(loop.step()[DATA])
    # Before its first backward nobody knows that it trains.
    assert rows == [0, 5, 5]


def in_thread(work: Any, *given: Any) -> None:
    thread = threading.Thread(target=work, args=given)
    thread.start()
    thread.join()


def test_a_thread_that_reads_ahead_moves_no_phase_and_does_not_begin_the_run() -> None:
    loop = Loop()
    given = loop.begin(a_loader())
    loop.watch.recorder.setup_s = 0.0
    in_thread(loop.wait, given, 5)
    assert loop.watch.recorder.setup_s == 0.0
    loop.watch.forward_begins(None, ())
    assert loop.watch.recorder.setup_s > 0.0
    for _ in range(2):
        loop.clock.enter(FORWARD)
        in_thread(loop.wait, given, 5)
        row = loop.step()
        assert (row[DATA], row[FORWARD]) == (0, 5)


@pytest.mark.parametrize("looks_first", [True, False])
def test_waits_of_a_loop_in_another_thread_are_known_once_it_trains(looks_first: bool) -> None:
    loop, rows = Loop(), []
    given = loop.begin(a_loader())
    loop.watch.recorder.setup_s = 0.0
    if looks_first:
        loop.wait(given, 1)

    def train() -> None:
        for _ in range(2):
            loop.wait(given, 5)
            loop.watch.forward_begins(None, ())
            rows.append(loop.step())

    in_thread(train)
    assert rows[1][DATA] == 5
