"""`hotlap run` switches an exact technique off that costs more than it saves."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hotlap.attach.apply import PlanInProcess
from hotlap.attach.entry import Script
from hotlap.attach.roles.guard import Guard
from hotlap.attach.roles.session import Part, Session
from hotlap.attach.runner import Outcome, run
from hotlap.plan import Plan

ROOT = Path(__file__).parents[2]


def nap(monkeypatch: pytest.MonkeyPatch, name: str, steps: int) -> Outcome:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    script = Script(path="napping.py", args=(str(steps),), cwd=str(ROOT / "tests" / "lab"))
    spec = f"tests.lab.nap_techniques:{name.upper()}"
    done = run(script, Plan({name: {}}), techniques=(spec,))
    assert done.exit_code == 0 and done.steps == steps
    return done


def test_what_costs_is_switched_off_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = nap(monkeypatch, "long", 600).techniques
    assert row["state"] == "refused"
    assert row["why"].startswith("switched off after ")
    assert "ms with it and " in row["why"] and " pairs of turns" in row["why"]


def test_what_gains_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = nap(monkeypatch, "short", 600).techniques
    assert row == {"name": "short", "state": "applied", "why": "so it says"}


@pytest.mark.slow
def test_a_short_run_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = nap(monkeypatch, "long", 49).techniques
    assert row["state"] == "applied"


def test_a_run_that_was_divided_into_turns_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the script's own process finds the techniques.
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    plan = {"counted_resident": {}, "counted_optimizer": {"implementation": "foreach"}}
    specs = tuple(f"tests.attach.counted:{name}" for name in ("RESIDENT", "OPTIMIZER"))
    script = Script(path="tests/tiny.py", args=("--epochs", "25"), cwd=str(ROOT))
    printed = []
    for given in (Plan(plan), Plan()):
        with (tmp_path / "out").open("w+") as out:
            done = run(script, given, techniques=specs, stdout=out.fileno())
            out.seek(0)
            printed.append(out.read())
        assert done.exit_code == 0
        if given:
            # On a busy machine one of them may seem to cost something, and stays off.
            assert max(int(row["why"]) for row in done.techniques) >= 9, done.techniques
    assert printed[0] == printed[1] != ""


class Followed(PlanInProcess):
    """Whose techniques cost nothing but what `costs` says; nothing is really switched."""

    def __init__(self, plan: Plan, costs: dict[str, float]) -> None:
        super().__init__(plan)
        self.costs, self.on = costs, dict.fromkeys(costs, True)
        self.ready = set(costs)
        self.switches = 0
        self.slow_steps: list[bool] = []

    @property
    def step_ms(self) -> float:
        return 10.0 + sum(self.costs[name] for name, is_on in self.on.items() if is_on)

    def is_ready(self, name: str) -> bool:
        return name in self.ready

    def switch(self, name: str, *, on: bool) -> None:
        self.switches += 1
        self.on[name] = on


class Recording(Part):
    """Counts steps, as what records a run does."""

    def __init__(self) -> None:
        self.steps = 0

    def step_done(self, optimizer: Any) -> None:
        self.steps += 1


class Following(Session):
    def __init__(self, *parts: Part) -> None:
        self.plan = PlanInProcess(Plan())
        self.play(*parts)

    def guard(self, plan: PlanInProcess) -> Guard:
        """Make the guard of a plan and let it hear the steps, before all other parts."""
        guard = Guard(self, plan)
        self.play(guard, *self.parts)
        return guard


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Takes steps of a run whose clock is the plan's `step_ms`."""
    now = [0]
    monkeypatch.setattr("hotlap.trial.turns.time.perf_counter_ns", lambda: now[0])
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)

    def take(guard: Guard, plan: Followed, steps: int) -> None:
        for _ in range(steps):
            now[0] += round(plan.step_ms * 1e6)
            plan.slow_steps.append(not plan.on["optimizer"])
            guard.step_done(optimizer)

    return take


EXACT = Plan({"resident": {}, "optimizer": {"implementation": "foreach"}})


def test_each_is_compared_by_itself_and_then_nobody_listens(train: Any) -> None:
    plan, session = Followed(EXACT, {"resident": -4.0, "optimizer": 1.0}), Following()
    train(session.guard(plan), plan, 700)
    assert plan.on == {"resident": True, "optimizer": False}
    assert not session.parts
    states = {row["name"]: row["state"] for row in plan.proofs()}
    assert states == {"resident": "no_effect", "optimizer": "refused"}


def test_what_records_the_run_hears_its_steps_to_the_end(train: Any) -> None:
    plan, recording = Followed(EXACT, {"resident": 0.0, "optimizer": 1.0}), Recording()
    session = Following(recording)
    train(session.guard(plan), plan, 3000)
    assert list(session.parts) == [recording]
    session._once_done[0](None)
    assert recording.steps == 1


def test_what_makes_no_difference_stays(train: Any) -> None:
    plan, session = Followed(EXACT, {"resident": 0.0, "optimizer": 0.05}), Following()
    train(session.guard(plan), plan, 3000)
    assert all(plan.on.values()) and not session.parts


def test_what_gains_much_is_not_switched_off_for_long(train: Any) -> None:
    plan, session = Followed(EXACT, {"resident": -9.0, "optimizer": -9.0}), Following()
    plan.costs["resident"] = 0.0
    train(session.guard(plan), plan, 2000)
    assert not session.parts and all(plan.on.values())
    steps = sum(plan.slow_steps)
    assert steps < 60, f"{steps} steps of ten times the time"


def test_a_small_data_set_that_is_ready_does_not_speak_for_a_large_one() -> None:
    plan = PlanInProcess(Plan({"resident": {}}))
    for size, epochs in ((40, 1), (8, 3)):
        data = TensorDataset(torch.arange(float(size)))
        for _ in range(epochs):
            loader = DataLoader(data, batch_size=4)
            plan.iterator_wanted(loader)
            iterator = iter(loader)
            plan.iterator_made(loader, iterator)
            list(iterator)
        kept.append(data)
    assert not plan.is_ready("resident")
    for _ in range(2):
        loader = DataLoader(kept[0], batch_size=4)
        plan.iterator_wanted(loader)
        iterator = iter(loader)
        plan.iterator_made(loader, iterator)
        list(iterator)
    assert plan.is_ready("resident")


kept: list[Any] = []


def test_what_is_not_ready_is_waited_for(train: Any) -> None:
    plan, session = Followed(EXACT, {"resident": 3.0, "optimizer": -1.0}), Following()
    guard = session.guard(plan)
    plan.ready = {"optimizer"}
    train(guard, plan, 1000)
    assert plan.on["resident"] and session.parts
    plan.ready.add("resident")
    train(guard, plan, 500)
    assert not plan.on["resident"] and not session.parts


def test_only_what_leaves_every_bit_is_switched() -> None:
    plan = {"optimizer": {"implementation": "fused"}, "matmul_precision": {"level": "high"}}
    assert PlanInProcess(Plan(plan)).switchable_exactly() == []
    assert not Guard(Following(), PlanInProcess(Plan(plan))).has_work


def test_what_is_switched_off_stays_off_for_new_optimizers() -> None:
    plan = PlanInProcess(Plan({"optimizer": {"implementation": "foreach"}}))
    assert plan.switchable_exactly() == ["optimizer"]
    plan.switch_off("optimizer", "for a test")
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = torch.optim.Adam([weight])
    plan.step_begins(optimizer)
    seen: list[Any] = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["foreach"]))
    optimizer.step()
    assert seen == [None]
    assert plan.proofs()[0]["why"] == "switched off for a test"


def test_a_failing_switch_leaves_the_run_alone(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, session = Followed(EXACT, {"resident": 3.0, "optimizer": -1.0}), Following()

    def fail(name: str, *, on: bool) -> None:
        raise RuntimeError(f"{name} {on}")

    monkeypatch.setattr(plan, "switch", fail)
    train(session.guard(plan), plan, 300)
    assert not session.parts
