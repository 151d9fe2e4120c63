"""Steps are those of the optimizer that steps first, whichever was made first."""

import copy
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.listener import State, hide_own_optimizer
from hotlap.attach.roles.count import CountStep
from hotlap.attach.roles.memory import WatchMemory
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.profile import ProfileSteps
from hotlap.attach.roles.record import RecordLosses
from hotlap.attach.roles.sampling import place_of
from hotlap.attach.roles.session import Session
from hotlap.plan import Plan
from hotlap.trace.recorder import Limits
from hotlap.trial.protocol import Config, Role


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> torch.optim.Optimizer:
    """An optimizer within another one, which never steps itself."""
    model = nn.Linear(2, 1)
    outer, inner = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    monkeypatch.setattr(State, "optimizers", [weakref.ref(outer), weakref.ref(inner)])
    monkeypatch.setattr(inner, "outer", outer, raising=False)
    return inner


def watched(role: Role, folder: Path) -> tuple[Session, Watch]:
    options = {"started": 0.0, "folder": str(folder), "seconds": 60, "kinds": ()}
    channel: Any = SimpleNamespace(send=lambda *_, **__: None)
    session = Session(Config(role, options=options), channel, PlanInProcess(Plan()))
    return session, Watch(session, Limits())


def steps_of(part: Any, watch: Watch, *optimizers: Any) -> None:
    for optimizer in optimizers:
        for each in (watch, part):
            each.step_begins(optimizer)
        watch.step_ends(optimizer)
        for each in (watch, part):
            each.step_done(optimizer)


def test_memory_counts_the_steps_that_are_made(stepping: Any, tmp_path: Path) -> None:
    session, watch = watched("memory", tmp_path)
    memory, steps = WatchMemory(session, watch, SimpleNamespace()), []  # pyright: ignore[reportArgumentType]
    counter: Any = SimpleNamespace(steps=0, enter_phase=print, step_ends=steps.append)
    memory._recorder = counter
    memory._began = float("inf")
    # Another one that steps after it counts no steps of its own.
    second = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    steps_of(memory, watch, stepping, second, stepping)
    assert len(steps) == 2


def test_a_profile_counts_the_steps_that_are_made(stepping: Any, tmp_path: Path) -> None:
    session, watch = watched("profile", tmp_path)
    profile, steps = ProfileSteps(session, watch), []
    window: Any = SimpleNamespace(step_done=lambda: steps.append(1))
    profile._window = window
    steps_of(profile, watch, stepping, stepping)
    assert len(steps) == 2


def test_a_count_begins_with_the_first_that_steps(stepping: Any, tmp_path: Path) -> None:
    session, watch = watched("count", tmp_path)
    # It lets nothing be compiled any more in its process.
    with torch.compiler.set_stance("default"):
        count, firsts = CountStep(session, watch), []
    counter: Any = SimpleNamespace(
        note_gradients=lambda _, *, is_first: firsts.append(is_first), step_ends=bool
    )
    count._counter = counter
    second = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    steps_of(count, watch, stepping, second, stepping)
    assert firsts == [True, False, True]


def test_losses_of_the_steps_that_are_made_are_recorded(
    stepping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = SimpleNamespace(config=SimpleNamespace(options={"record": {}}))
    record, steps = RecordLosses(session), []
    monkeypatch.setattr(record, "_record", lambda: steps.append(record._steps))
    second = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    for optimizer in (stepping, second, stepping):
        record.step_done(optimizer)
    assert steps == [1, 2] and record._problem is None


def test_one_that_wraps_another_and_never_steps_is_not_waited_for(
    stepping: Any, tmp_path: Path
) -> None:
    _, watch = watched("verify", tmp_path)
    part: Any = SimpleNamespace(step_begins=bool, step_done=bool)
    assert not watch.is_between_steps()
    # In the first round it may be one that steps after the others.
    steps_of(part, watch, stepping)
    assert not watch.is_between_steps()
    steps_of(part, watch, stepping)
    assert watch.is_between_steps()


def test_of_several_that_step_the_last_one_ends_the_step(stepping: Any, tmp_path: Path) -> None:
    _, watch = watched("verify", tmp_path)
    part: Any = SimpleNamespace(step_begins=bool, step_done=bool)
    second = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    State.optimizers.append(weakref.ref(second))
    found = []
    for optimizer in (stepping, second) * 3:
        steps_of(part, watch, optimizer)
        found.append(watch.is_between_steps())
    assert found == [False, False, False, True, False, True]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Optimizers of which a listener is told, while the seams of optimizers are patched."""
    told: list[Any] = []
    listener: Any = SimpleNamespace(optimizer_made=told.append, wants_phases=False)
    for name in ("__init__", "_patch_step_function"):
        monkeypatch.setattr(torch.optim.Optimizer, name, getattr(torch.optim.Optimizer, name))
    monkeypatch.setattr(torch.optim.Adam, "step", torch.optim.Adam.step)
    monkeypatch.setattr(State, "optimizers", [])
    monkeypatch.setattr(State, "listener", listener)
    seams._patch_optimizers()
    return told


def test_one_that_is_copied_or_loaded_has_a_place_too(made: list[Any], tmp_path: Path) -> None:
    first = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    torch.save(first, tmp_path / "optimizer.pt")
    copied = copy.deepcopy(first)
    loaded = torch.load(tmp_path / "optimizer.pt", weights_only=False)
    assert [place_of(each) for each in (first, copied, loaded)] == [0, 1, 2]
    # What is loaded into one makes no other.
    copied.load_state_dict(first.state_dict())
    assert [id(each) for each in made] == [id(each) for each in (first, copied, loaded)]
    with hide_own_optimizer():
        own = copy.deepcopy(first)
    assert len(made) == 3 and own not in seams.known_optimizers()


def test_optimizers_that_are_gone_are_not_looked_through(made: list[Any]) -> None:
    """A script may make one for each of its steps."""
    kept = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    before = State.optimizers_made
    for _ in range(50):
        torch.optim.Adam([nn.Parameter(torch.ones(2))])
        made.clear()
    assert seams.known_optimizers() == [kept]
    assert len(State.optimizers) <= 2 and State.optimizers_made == before + 50
