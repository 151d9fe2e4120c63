"""How fast a step could be: a bound that is withheld where the step itself contradicts it."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.diagnosis import limits
from hotlap.diagnosis.limits import Limits, find_limits
from hotlap.diagnosis.time_plan import Clock
from hotlap.errors import TrialError
from hotlap.host.ceilings import Ceilings
from hotlap.host.facts import Host
from hotlap.lab.counting import count_step
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab
from hotlap.report.limits import lines
from hotlap.trace.costs import StepCosts
from tests.rules.test_rules import trace

TINY = Path(__file__).parents[1] / "tiny.py"
TINY_RECIPE = Path(__file__).parents[1] / "tiny_recipe.py"
COSTS = StepCosts(
    flops={"float32": 2 * 10**9}, state_bytes=5 * 10**9, cache_bytes=10**9, device="cpu"
)
CEILINGS = Ceilings("cpu", 500.0, 1000.0, 10.0, 2, 0.0, 1.0)


def test_a_step_takes_what_its_products_or_its_state_take() -> None:
    found = Limits(COSTS, CEILINGS, step_ms=800.0)
    assert (found.computing_ms, found.moving_ms, found.least_ms) == (4.0, 400.0, 400.0)
    assert found.utilization == 4.0 / 800.0
    cached = Limits(replace(COSTS, state_bytes=10**8), CEILINGS, step_ms=800.0)
    assert (cached.moving_ms, cached.least_ms) == (0.0, 4.0)


def test_products_that_may_be_shortened_are_as_fast_as_shorter_ones() -> None:
    reduced = replace(COSTS, is_reduced=True)
    assert Limits(reduced, CEILINGS, step_ms=800.0).computing_ms == 2.0


def test_a_bound_that_the_step_contradicts_is_withheld() -> None:
    found = Limits(COSTS, CEILINGS, step_ms=300.0)
    assert found.is_contradicted and found.least_ms is None and found.utilization is None
    assert found.to_json()["least_step_ms"] is None


def test_of_what_is_not_known_nothing_is_claimed() -> None:
    assert Limits().least_ms is None and Limits().utilization is None
    assert Limits(COSTS, None, 800.0).least_ms is None
    nothing = replace(CEILINGS, fp32_gflops=None, bf16_gflops=None, copy_gb_s=None)
    assert Limits(COSTS, nothing, 800.0).least_ms is None
    assert Limits(replace(COSTS, cache_bytes=None), CEILINGS, 800.0).least_ms == 4.0


def found(
    monkeypatch: pytest.MonkeyPatch,
    *,
    counted: StepCosts | Exception = COSTS,
    kept: Ceilings | None = CEILINGS,
    budget_s: float = 60.0,
    measured: Ceilings = CEILINGS,
    setup_s: float = 1.0,
    step_ms: float = 800.0,
    reserve_s: float = 0.0,
) -> tuple[Limits, list[str]]:
    done: list[str] = []

    def count(lab: Any, **options: Any) -> StepCosts:
        del lab, options
        done.append("counted")
        if isinstance(counted, Exception):
            raise counted
        return counted

    def measure(**options: Any) -> Ceilings:
        del options
        done.append("measured")
        return measured

    monkeypatch.setattr(limits, "count_step", count)
    monkeypatch.setattr(limits, "measure", measure)
    monkeypatch.setattr(limits.kept_ceilings, "load", lambda host, device: kept)
    monkeypatch.setattr(limits.kept_ceilings, "keep", lambda host, new: new)
    lab: Any = SimpleNamespace(subject=Script(path="train.py"))
    seen = replace(trace(), setup_s=setup_s, steps=[(step_ms, 0.0, 0.0, 0.0, 0.0)] * 9)
    clock = Clock(budget_s)
    return find_limits(lab, Host(), seen, clock, reserve_s=reserve_s), done


def test_a_step_is_counted_within_a_tenth_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch)[1] == ["counted"]
    late, done = found(monkeypatch, setup_s=20.0)
    assert not done and "use --budget 240s or more" in late.why
    # Trials say more.
    short, done = found(monkeypatch, reserve_s=58.5)
    assert not done and "use --budget 64s or more" in short.why
    assert found(monkeypatch, reserve_s=50.0)[1] == ["counted"]


def test_a_trial_that_fails_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, _ = found(monkeypatch, counted=TrialError("it died\nthere", reason="crashed"))
    assert failed.why == "the step could not be counted: it died"
    empty, _ = found(monkeypatch, counted=replace(COSTS, flops={}))
    assert empty.why.startswith("no matrix product")


def test_rates_are_measured_where_none_are_kept_or_the_step_contradicts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(monkeypatch, kept=None)[1] == ["counted", "measured"]
    slow = replace(CEILINGS, copy_gb_s=1.0)
    again, done = found(monkeypatch, kept=slow)
    assert done == ["counted", "measured"] and again.least_ms == 400.0 and not again.why
    never, _ = found(monkeypatch, kept=slow, measured=slow)
    assert never.least_ms is None and "faster than the rates" in never.why


def test_what_is_printed_says_what_is_counted_and_what_is_left_out() -> None:
    text = " ".join(lines(Limits(replace(COSTS, uncounted=("my.op",)), CEILINGS, 800.0)))
    assert "2.00 GFLOP in float32 (a multiply-add is 2)" in text
    assert "could not run faster than 400.00 ms on this machine (reading and writing" in text
    assert "it takes 800.00 ms. FLOPs utilization: 0.5% of the measured rate of products" in text
    assert "Not counted, so the true figures are higher: my.op." in text
    tiny = replace(COSTS, flops={"float32": 512}, state_bytes=0, cache_bytes=0)
    small = " ".join(lines(Limits(tiny, CEILINGS, 0.27)))
    assert "0.00 ms" not in small and re.search(r"not run faster than 0\.00\d+ µs on", small)
    withheld = lines(Limits(COSTS, CEILINGS, 300.0, "the step is faster"))
    assert not any("could not run faster" in line for line in withheld)
    assert withheld[-1] == "The limits of this machine are not known: the step is faster."


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["script", "recipe"])
def test_real_steps_are_counted(kind: str) -> None:
    subject: Any = Script(path=str(TINY), args=("--epochs", "3"))
    if kind == "recipe":
        subject = RecipeRun(path=str(TINY_RECIPE), python=sys.executable)
    with Lab(subject) as lab:
        costs = count_step(lab, seconds=5.0)
    forward = 2 * 16 * (64 * 32 + 32 * 10)
    assert costs.flops == {"float32": forward + 2 * 16 * (64 * 32 + 2 * 32 * 10)}
    weights = 64 * 32 + 32 + 32 * 10 + 10
    assert costs.state_bytes >= 2 * 16 * weights and costs.device == "cpu"
