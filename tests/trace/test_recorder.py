"""When a recorder has seen enough, and what it then has."""

import gc
import math
import time

import pytest
import torch

from hotlap.task import TaskFacts
from hotlap.trace import recorder
from hotlap.trace.clock import DATA, FORWARD, OTHER, PhaseClock
from hotlap.trace.recorder import Limits, Recorder, number_of
from hotlap.trace.schema import PHASES, Anchor, Trace


class Now:
    """A clock that is moved by hand, in ms."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * 10**6


class Run:
    """A recorder on a clock that is moved by hand, and what it has told."""

    ends_at_once = False
    """Steps are ended by `end_step`, as those of a script with one optimizer."""

    def __init__(self, **limits: float) -> None:
        self.told: list[float] = []
        self.now = Now()
        self.recorder = Recorder(Limits(**limits), time.monotonic() - 5, self.told.append)  # pyright: ignore[reportArgumentType]
        self.recorder.clock = PhaseClock(self.now)
        self.starts: list[int] = []

    def epoch(self, steps: int) -> None:
        self.recorder.begin()
        self.starts.append(self.recorder.steps)
        self.recorder.look_soon()
        for _ in range(steps):
            if self.recorder.is_over:
                return
            self.step()

    def step(self) -> None:
        clock = self.recorder.clock
        for phase, ms in ((DATA, 1), (FORWARD, 2), (OTHER, 3)):
            clock.enter(phase)
            self.now.ms += ms
        self.recorder.note_loss(torch.tensor(0.5))
        if self.ends_at_once:
            self.recorder.end_step([self.starts])
            return
        self.recorder.count_step()
        self.recorder.mark_step()
        self.recorder.tell_step()
        self.recorder.commit()
        self.recorder.check_limits([self.starts])

    def trace(self) -> Trace:
        self.recorder.close()
        anchor = Anchor("optimizer.step", "high", {})
        return self.recorder.trace(TaskFacts(), anchor, [self.starts])


@pytest.fixture(autouse=True, params=[False, True])
def ends_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "ends_at_once", request.param)
    # The machine may stall.
    monkeypatch.setattr(recorder, "_ENOUGH_S", math.inf)


def test_whole_epochs_are_enough_once_a_step_of_the_next_was_seen() -> None:
    run = Run(epochs=2)
    for _ in range(4):
        run.epoch(15)
    assert run.recorder.is_over and run.recorder.steps == 31
    trace = run.trace()
    assert trace.epoch_starts == [0, 15, 30]
    assert trace.steps[1][: len(PHASES)] == (1.0, 2.0, 0.0, 0.0, 3.0)
    assert trace.losses == [0.5] * 31
    assert trace.setup_s >= 5


def test_the_next_epoch_is_seen_in_its_first_step_however_fast_steps_are() -> None:
    run = Run(epochs=2)
    for _ in range(3):
        run.epoch(20)
    assert run.recorder.is_over and run.recorder.steps == 41


@pytest.mark.parametrize("steps", [1, 3])
def test_epochs_of_few_steps_are_enough_once_they_hold_enough_of_them(steps: int) -> None:
    run = Run(epochs=1)
    for _ in range(40):
        run.epoch(steps)
    assert run.recorder.is_over and run.recorder.steps == 31
    assert run.trace().covers_whole_periods
    assert run.trace().step_ms()["n"] == 30


def test_whole_epochs_of_a_few_slow_steps_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_ENOUGH_S", 0.0)
    run = Run(epochs=1)
    for _ in range(2):
        run.epoch(3)
    assert run.recorder.is_over and run.recorder.steps == 4


def test_two_epochs_that_begin_at_one_step_are_one_beginning() -> None:
    run = Run()
    for _ in range(2):
        run.epoch(3)
    run.starts += [3, 0]
    assert run.trace().epoch_starts == [0, 3]


def test_an_epoch_that_has_begun_without_a_step_does_not_end_the_watch() -> None:
    # What comes between two epochs belongs to the first step of the later one.
    run = Run(epochs=1)
    run.epoch(30)
    run.starts.append(30)
    run.recorder.look_soon()
    run.recorder.check_limits([run.starts])
    assert not run.recorder.is_over
    run.step()
    assert run.recorder.is_over


@pytest.mark.parametrize("limits", [{"steps": 4}, {"seconds": 0.0}])
def test_steps_or_seconds_are_enough_in_the_middle_of_an_epoch(limits: dict[str, float]) -> None:
    run = Run(**limits)
    run.epoch(9)
    assert run.recorder.is_over
    assert run.recorder.steps == (4 if "steps" in limits else 1)


def test_without_a_limit_it_goes_on() -> None:
    run = Run()
    for _ in range(3):
        run.epoch(9)
    assert not run.recorder.is_over and not run.recorder.is_timed


def test_steps_in_which_lines_are_sampled_are_not_timed() -> None:
    run = Run(steps=3, naming_s=0.05)
    run.epoch(3)
    assert run.recorder.is_timed and not run.recorder.is_over
    while not run.recorder.is_over:
        run.step()
        time.sleep(0.01)
    trace = run.trace()
    assert run.recorder.steps > 3 and len(trace.steps) == 3
    assert trace.lines, "nothing was sampled"


def test_fast_steps_are_counted_one_by_one_and_their_limits_are_seen_in_time() -> None:
    # Seconds of this process: the host may stall, and others' garbage may be waited for.
    run = Run(seconds=0.3)
    run.epoch(1)
    began, busy_s = time.monotonic(), time.process_time()
    while not run.recorder.is_over:
        run.step()
    assert time.monotonic() - began > 0.2
    assert time.process_time() - busy_s < 3.0
    trace = run.trace()
    assert len(trace.steps) == len(trace.losses) == run.recorder.steps > 20
    assert set(trace.steps[1:]) == {(1.0, 2.0, 0.0, 0.0, 3.0)}


def test_steps_before_a_loader_is_read_are_kept() -> None:
    run = Run()
    for _ in range(30):
        run.step()
    run.epoch(3)
    assert len(run.trace().steps) == 33


def test_only_the_first_steps_are_told() -> None:
    run = Run()
    run.epoch(5)
    assert len(run.told) == 2


def test_a_step_that_was_marked_and_goes_on_is_one_step() -> None:
    # A second optimizer steps after the first one's step was marked.
    run = Run()
    run.recorder.begin()
    run.recorder.mark_step()
    run.now.ms += 4
    run.recorder.mark_step()
    run.recorder.commit()
    run.recorder.commit()
    (row,) = run.trace().steps
    assert sum(row) == 4.0


@pytest.mark.parametrize(
    ("on_cuda", "is_capturing", "is_copied"),
    [(False, False, False), (True, False, True), (True, True, False)],
)
def test_a_loss_on_a_device_is_copied_since_a_graph_may_write_over_it(
    on_cuda: bool, is_capturing: bool, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", on_cuda)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    loss = torch.tensor(3.0)
    kept = number_of(loss)
    loss.fill_(4.0)
    assert kept == (3.0 if is_copied else 4.0)


@pytest.mark.gpu
def test_the_loss_of_a_replayed_graph_is_that_of_its_own_step() -> None:
    given = torch.ones((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = given * 2
    kept = []
    for number in range(3):
        given.fill_(float(number))
        graph.replay()
        kept.append(number_of(loss))
    assert [float(each) for each in kept] == [0.0, 2.0, 4.0]


def test_what_the_process_does_beside_its_timed_steps_is_counted() -> None:
    before = list(gc.callbacks)
    run = Run(steps=40, naming_s=60)
    for number in range(50):
        run.epoch(1)
        if number < 45:
            gc.collect()
    run.recorder.close()
    trace = run.recorder.trace(TaskFacts(), Anchor("optimizer.step", "high", {}), [run.starts])
    # From the tenth step on, up to where lines are sampled.
    assert trace.process is not None and trace.process.steps == 30
    assert 29 <= trace.process.collections <= 45
    assert gc.callbacks == before
    short = Run(steps=40)
    short.epoch(5)
    short.recorder.close()
    trace = short.recorder.trace(TaskFacts(), Anchor("optimizer.step", "high", {}), [short.starts])
    assert trace.process is None
