"""A technique and a rule that are not part of the package, a file each, do what ours do."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotlap import rules, techniques
from hotlap.diagnosis.tried import Tried
from hotlap.engine.memory.estimate import estimate
from hotlap.errors import PlanError, UsageError
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.report.explaining import explain
from hotlap.techniques import Numerics
from hotlap.techniques.record import by_name
from hotlap.tuning.candidates import combinations, nominate
from tests.diagnosis.test_conviction import trace_of
from tests.engine.test_run import make
from tests.tuning.faked import FACTS
from tests.tuning.test_tune import HOST

HERE = Path(__file__).parent
TECHNIQUE, RULE = "no_nap:TECHNIQUE", "naps:RULE"
NO_NAP = Plan({"no_nap": {}})
GAIN = Ratio(1.5, 1.4, 1.6, 8)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(HERE))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *([before] if before else [])]))
    yield


def test_its_record_says_what_tuning_needs() -> None:
    known = techniques.registry([TECHNIQUE])
    phases = {"data": 6.0, "forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    found, _ = nominate(FACTS, HOST, known, Numerics.EXACT, phases=phases)
    own = next(c for c in found if c.technique == "no_nap")
    names = [candidate.technique for candidate in found]
    # Its set-up is long: whatever is quicker to try goes before it.
    assert names.index("resident") < names.index("no_nap")
    assert known["no_nap"].saved_ms(phases, known["no_nap"].options({})) > 2
    workers = next(c for c in found if c.technique == "workers")
    plans = combinations({own: GAIN, workers: GAIN}, [own, workers], limit=9)
    assert NO_NAP in plans.values()
    assert all(not {"no_nap", "workers"} <= {*plan.techniques} for plan in plans.values())


def test_its_options_are_checked_and_it_is_estimated() -> None:
    known = techniques.registry([TECHNIQUE])
    with pytest.raises(PlanError, match="Expected: 0 or more"):
        techniques.check(Plan({"no_nap": {"ms": -1}}), known)
    found = estimate(make(), NO_NAP, find_largest=False, techniques=(TECHNIQUE,))
    assert found.chosen.peak is not None and found.chosen.peak.bytes > 0
    with pytest.raises(PlanError, match="no_nap"):
        estimate(make(), NO_NAP, find_largest=False)


def test_it_says_what_does_the_same_in_a_script() -> None:
    known = techniques.registry([TECHNIQUE])
    for plan, ms in ((NO_NAP, 0), (Plan({"no_nap": {"ms": 2}}), 2)):
        assert Tried(plan, GAIN, "", known=known).by_hand == f"sleep for {ms} ms"


def test_both_have_their_page() -> None:
    page = explain(TECHNIQUE)
    assert page.kind == "technique" and "Shorter naps between" in page.text and "ms:" in page.text
    page = explain(RULE)
    assert page.kind == "finding" and "The loop naps before each batch" in page.text
    with pytest.raises(UsageError, match="Expected: an instance of Rule or Technique"):
        explain("naps:Plan")


def test_a_rule_from_outside_nominates_under_its_name() -> None:
    known = rules.registry([RULE])
    found = rules.nominate(trace_of(12.0, 0.2), known.values())
    assert {"naps", "per_item_decode"} <= {nomination.rule for nomination in found}
    assert next(n for n in found if n.rule == "naps").kind == "speed"
    with pytest.raises(UsageError, match="instance of Rule"):
        rules.registry([TECHNIQUE])


def test_a_function_that_takes_something_else_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="takes `wishes`"):
        by_name(lambda wishes: wishes, ("task", "host", "options"))
    assert by_name(lambda options: options, ("task", "host", "options"))(1, 2, 3) == 3
    assert by_name(lambda: "none", ("target", "options"))(1, 2) == "none"
    assert by_name(lambda *given: given, ("target", "options"))(1, 2) == (1, 2)


@pytest.mark.slow
def test_it_is_tuned_verified_and_reported(hotlap: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    argv = ("--technique", TECHNIQUE, "--only", "no_nap", "--budget", "90s", "--out", str(plan))
    done = hotlap("tune", "--json", *argv, str(HERE / "script.py"), timeout_s=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plan"] == {"no_nap": {}} and found["verdict"]["tier"] == "exact"
    assert found["speedup"]["median"] > 1.3
    assert [row["state"] for row in found["techniques"]] == ["applied"]
    ran = hotlap("run", "--plan", str(plan), "--technique", TECHNIQUE, str(HERE / "script.py"))
    assert ran.returncode == 0 and "no_nap (verdict exact" in ran.stderr


@pytest.mark.slow
def test_a_rule_from_outside_convicts(hotlap: Run) -> None:
    argv = ("--rule", RULE, "--technique", TECHNIQUE, "--budget", "45s", str(HERE / "script.py"))
    done = hotlap("diagnose", "--json", *argv, timeout_s=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    naps = next(row for row in found["findings"] if row["rule"] == "naps")
    assert naps["plan"] == {"no_nap": {}} and naps["cost_ms"] > 3
    assert "remove the call of sleep" in naps["remedy"]
