"""`tune` itself, on techniques that lie: nothing of them is chosen."""

import os
from pathlib import Path
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab import process_race
from hotlap.lab.process_race import Race
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.tuning import racing, stages, time_plan
from hotlap.tuning.result import Tuning
from tests.tuning import lies

SCRIPT = Path(__file__).parent / "three_layers.py"


def tuned(name: str, root: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float) -> Tuning:
    """Tune the script with one technique: a lie by its name in `lies`, else one of hotlap's own."""
    specs = (f"tests.tuning.lies:{name}",) if hasattr(lies, name) else ()
    only = getattr(lies, name).name if specs else name
    # Trials import the technique by name.
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), *([before] if before else [])]))
    script = Script(path=str(SCRIPT), args=("--epochs", "1000"), cwd=str(SCRIPT.parent))
    with Lab(script, techniques=specs) as lab:
        return stages.tune(lab, Host.detect(), budget_s=budget_s, only=(only,))


def check_nothing_is_chosen(found: Tuning) -> None:
    assert found.plan == Plan()
    assert not found.gained
    assert found.proven_plans == ()
    (row,) = found.techniques
    assert row["state"] in ("refused", "no_effect", "not_tried")


# One that saves time, and one that does nothing; others are raced in favour, below.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["FREEZE", "IDLE"])
def test_nothing_is_chosen_of_a_technique_that_lies(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_nothing_is_chosen(tuned(name, root, monkeypatch, 60))


@pytest.fixture
def in_favour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races that measure every plan to be twice as fast, whatever the machine is doing."""
    real = process_race.race

    def race(*args: Any, **options: Any) -> Race:
        found = real(*args, **options)
        for arm in found.arms.values():
            ms = options["step_ms"] / (2.0 if arm.plan else 1.0)
            arm.turns_ms[:] = arm.means_ms[:] = [ms] * len(arm.turns_ms)
        return found

    monkeypatch.setattr(racing, "race", race)
    # The figures are given, so the race may be short, and the proof need not be longer than a lie.
    monkeypatch.setattr(racing, "_ROUNDS", (2, 2))
    monkeypatch.setattr(racing, "TURN_S", 0.05)
    monkeypatch.setattr(time_plan, "_MOST_HORIZON", 120)


@pytest.mark.slow
@pytest.mark.usefixtures("in_favour")
@pytest.mark.parametrize("name", ["FREEZE_EXACTLY", "SKIP", "TRIPLE"])
def test_not_even_where_it_is_measured_to_gain(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuned(name, root, monkeypatch, 600)
    assert found.outcome == "not_proven"
    check_nothing_is_chosen(found)
    assert "verdict `changed`" in found.techniques[0]["why"]


@pytest.mark.slow
@pytest.mark.usefixtures("in_favour")
def test_an_honest_one_is_chosen_where_it_is_measured_to_gain(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuned("resident", root, monkeypatch, 600)
    assert found.outcome == "gain", found.reason
    assert found.plan == Plan({"resident": {}})
    assert found.verdict.tier == "exact"
    (row,) = found.techniques
    assert row["state"] == "applied"
