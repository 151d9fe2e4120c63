"""Once the first steps were looked at, most steps of a watched script are not listened to."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.attach.entry import Script
from hotlap.attach.learning.naps import Naps
from hotlap.attach.learning.watch import WatchLearning
from hotlap.diagnosis.causes import watch
from hotlap.lab.trial import Lab
from hotlap.rules import registry
from hotlap.rules.mistakes.windows import split
from hotlap.trace.event_kinds import BACKWARD, OPTIMIZER_STEP, ZERO_GRAD
from hotlap.trace.events import Events
from hotlap.trace.schema import Trace

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(16000, 8), torch.randint(0, 2, (16000,)))
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train(batch_size, epochs):
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

train(8, 1)
"""

ACCUMULATING = SCRIPT.replace(
    "train(8, 1)",
    """
for _ in range(2):
    for number, (x, y) in enumerate(DataLoader(data, 11, shuffle=True), 1):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
)


def watched(folder: Path, more: str, script: str = SCRIPT) -> Trace:
    (folder / "script.py").write_text(script + more)
    with Lab(Script(path="script.py", cwd=str(folder), python=sys.executable)) as lab:
        return watch(lab, seconds=60.0, epochs=10**6).trace


def test_it_sleeps_through_three_of_four_stretches() -> None:
    naps, asleep = Naps(), []
    for look in range(1, 9):
        naps.look(10 * look, may_sleep=True)
        asleep.append(naps.is_asleep)
    assert asleep == [True, True, True, False] * 2
    # Of 80 steps, 60 were slept through from step 10 to 40 and from 50 to 80.
    assert naps.estimate(20, 80) == 80
    assert naps.look(90, may_sleep=False) is None and not naps.is_asleep
    assert naps.look(100, may_sleep=True) == 0 and naps.estimate(40, 140) == 140
    assert naps.wake(150) == 50 and naps.wake(150) is None
    # Of a new epoch more than a step is heard, though it is looked at after the first one.
    naps.look(151, may_sleep=True)
    assert not naps.is_asleep and naps.look(160, may_sleep=True) == 0


def test_counts_are_those_of_all_steps(tmp_path: Path) -> None:
    trace = watched(tmp_path, "")
    learning = trace.learning
    assert len(trace.steps) == len(trace.losses) == 2000
    assert learning.forwards == pytest.approx(2000, rel=0.02)
    (loss,) = learning.losses
    assert loss.backwards == learning.forwards and loss.is_mean
    (size,) = learning.batch_sizes
    assert (size.samples, size.first_step) == (8, 0)
    # Control: it did sleep.
    assert size.steps < 1900


@pytest.mark.parametrize("persistent", [False, True])
def test_each_pass_of_persistent_workers_begins(persistent: bool, tmp_path: Path) -> None:
    train = f"""
options = dict(num_workers=1, persistent_workers={persistent})
loader = DataLoader(TensorDataset(*data[:160]), 16, shuffle=True, **options)
for _ in range(4):
    torch.manual_seed(7)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
    trace = watched(tmp_path, train, SCRIPT.replace("train(8, 1)", ""))
    assert trace.epoch_starts == (0, 10, 20, 30)
    (loader,) = trace.facts.training_loaders
    # Each is drawn from the same state; workers that persist draw more when they start.
    assert len(loader.draws) == 4 and len({*loader.draws[1:]}) == 1
    assert registry()["repeated_seed"].nominate(trace)


def test_events_are_those_of_whole_steps(tmp_path: Path) -> None:
    windows = split(watched(tmp_path, "").events)[:-1]
    in_every_step = [ZERO_GRAD, BACKWARD, OPTIMIZER_STEP]
    for window in windows:
        assert [e.kind for e in window.events if e.kind in in_every_step] == in_every_step
    # Control: it did sleep.
    assert 64 <= len(windows) < 1900


def test_what_accumulation_leaves_at_the_end_of_an_epoch_is_found(tmp_path: Path) -> None:
    trace = watched(tmp_path, "", ACCUMULATING)
    (lost,) = registry()["unused_micro_batches"].nominate(trace)
    assert "1 backward passes at the end of an epoch" in lost.evidence
    assert len(split(trace.events)) - 1 == len(trace.steps) == 2 * 727


def test_a_forward_that_a_backward_may_follow_wakes_it() -> None:
    session: Any = SimpleNamespace(steps=500, bind=bool, bind_steps=bool)
    learning = WatchLearning(session, Events())
    model = torch.nn.Linear(2, 2).eval()
    for is_decided, output in ((True, torch.ones(2)), (False, model(torch.ones(2)))):
        learning._naps.look(session.steps, may_sleep=True)
        assert not learning.hears("backward_begins")
        learning.evaluation_forward_ends(model, (), {}, output)
        # What has no graph is an evaluation, and it sleeps on.
        assert learning.hears("backward_begins") is not is_decided


def test_a_new_epoch_wakes_it() -> None:
    session: Any = SimpleNamespace(steps=500, bind=bool, bind_steps=bool)
    learning = WatchLearning(session, Events())
    learning._naps.look(session.steps, may_sleep=True)
    assert not learning.hears("forward_begins")
    loader: Any = SimpleNamespace(num_workers=0)
    learning.iterator_made(loader, None)
    assert learning.hears("forward_begins") and learning.hears("step_begins")


def test_steps_of_another_optimizer_are_counted_while_it_sleeps(tmp_path: Path) -> None:
    more = "optimizer = torch.optim.Adam(model.parameters(), 0.01)\ntrain(32, 2)\n"
    trace = watched(tmp_path, more)
    assert len(trace.steps) == 3000 and [*trace.epoch_starts] == [0, 2000, 2500]
    later = [event.step for event in trace.events if event.step >= 2000]
    assert later[0] == 2000 and later[-1] <= 3000 and sorted(later) == later


def test_what_begins_while_it_sleeps_is_found(tmp_path: Path) -> None:
    trace = watched(tmp_path, "train(32, 2)\nmodel.eval()\ntrain(32, 1)\n")
    (grown,) = registry()["grown_batch"].nominate(trace)
    assert "from 8 to 32 at step 2001" in grown.evidence
    (loss,) = trace.learning.losses
    assert loss.in_evaluation_mode == 500
    assert registry()["trained_in_evaluation_mode"].nominate(trace)
