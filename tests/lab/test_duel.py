"""Plans are switched in one live process, and what is faster is told from what is not."""

from math import comb, log
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.lab.duel import Duel, duel, evidence, ratio_of
from hotlap.lab.trial import Lab
from hotlap.plan import Plan

HERE = Path(__file__).parent
TECHNIQUES = tuple(f"tests.lab.nap_techniques:{name}" for name in ("SHORT", "IDLE", "LONG"))


def run(steps: int, *names: str, seconds: float = 6.0) -> Duel:
    script = Script(path="napping.py", args=(str(steps),), cwd=str(HERE))
    plans = [Plan({name: {}}) for name in names]
    with Lab(script, techniques=TECHNIQUES) as lab:
        return duel(lab, plans, step_ms=4.5, seconds=seconds, steps=steps, age=5)


def test_a_planted_gain_is_found_and_idleness_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    found = run(20_000, "short", "idle", "long")
    short, idle, long = found.decisions
    assert short.state == "faster" and short.ratio is not None and short.ratio.low > 1.2
    assert idle.state != "faster"
    assert long.state == "not_faster" and long.ratio is not None and long.ratio.high < 0.8
    assert found.placebo is not None and found.placebo.pairs == found.rounds


def test_a_script_that_ends_leaves_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    found = run(120, "short")
    assert 0 < found.rounds < 5
    assert found.decisions[0].state == "undecided"


def test_evidence_grows_with_agreement_and_is_a_fair_bet() -> None:
    assert evidence(0, 0) == 1
    assert evidence(9, 9) > 100 > evidence(8, 8)
    assert evidence(14, 13) > 100 > evidence(14, 12)
    # Under no gain it is a bet that wins nothing in the mean.
    for count in (1, 5, 30):
        mean = sum(comb(count, k) * evidence(count, k) for k in range(count + 1)) / 2**count
        assert mean == pytest.approx(1.0)


def test_the_interval_is_wide_until_there_is_evidence() -> None:
    logs = [log(1.5 + 0.01 * number) for number in range(8)]
    early = ratio_of(logs)
    assert (early.low, early.high) == (pytest.approx(1.5), pytest.approx(1.57))
    assert early.median == pytest.approx(1.535, rel=1e-3)
    late = ratio_of([log(1.5 + 0.01 * (number % 8)) for number in range(64)])
    assert early.low < late.low < late.high < early.high
