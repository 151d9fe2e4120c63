"""Steps that were kept of a live process say whether what acts late learns the same there."""

from dataclasses import replace
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.lab.duel import Duel
from hotlap.lab.late_steps import LateSteps, draw_late_steps, judge_late, split_late
from hotlap.lab.observing import watch
from hotlap.lab.proving import Prover
from hotlap.lab.sampled_steps import SampledSteps
from hotlap.lab.script_repetition import repeat_steps
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.techniques import registry

HERE = Path(__file__).parent
FUSED = Plan({"optimizer": {"implementation": "fused"}})
LENGTHENED = Plan({"lengthened": {}})
EARLY = Verdict("rounding", "early", 64, not_checked=("everything after step 64", "saving"))
TECHNIQUES = ("tests.lab.late_techniques:LENGTHENED",)


@pytest.mark.slow
def test_late_steps_tell_what_learns_the_same_from_what_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    script = Script(path="loading.py", args=("1000000",), cwd=str(HERE))
    with Lab(script, techniques=TECHNIQUES) as lab:
        seen = watch(lab, seconds=1.0, stays=True)
        taken, step_ms = len(seen.trace.steps), seen.trace.step_ms()["median"]
        plans = [FUSED, LENGTHENED]
        with Duel(lab, plans, step_ms=step_ms, age=3, taken=taken, trial=seen.trial) as duel:
            fused, lengthened = (
                duel.keep((number,), lab.exchange / f"late-{number}") for number in (0, 1)
            )
            # The process goes on taking turns.
            race = duel.race([(0,)], seconds=0.5)
            assert race.rounds
        assert fused.are_whole and lengthened.are_whole
        assert fused.after == taken + 3
        assert [row["step"] for row in fused.rows[:2]] == [fused.after, fused.after + 1]
        assert lengthened.rows[0]["step"] > fused.rows[-1]["step"]
        both = repeat_steps(
            lab,
            [*fused.rows, *lengthened.rows],
            evaluations=(),
            rounding=True,
            memory_format="",
            drawn="",
        )
        # In a proof, whose first steps show nothing, they are repeated beside its own samples.
        lab.inject_seed = 0
        prover = Prover(lab, 8, registry(TECHNIQUES), late={LENGTHENED: lengthened}, seed=1)
        prover.run_plain()
        proven = prover.prove(LENGTHENED)
        assert proven.tier == "changed" and proven.failed == ("late",)
    others, of_fused = split_late(both, fused)
    assert [len(others.rows), len(of_fused.rows)] == [6, 6]
    honest = judge_late(EARLY, fused, of_fused)
    assert honest.tier == "rounding" and honest.checks[-1].name == "late"
    assert honest.not_checked == (
        f"everything after step 64, except 6 steps after step {fused.after}",
        "saving",
    )
    lie = judge_late(EARLY, lengthened, split_late(both, lengthened)[1])
    assert lie.tier == "changed" and "update" in lie.evidence


def test_late_steps_that_are_missing_prove_nothing() -> None:
    none = LateSteps(4000, (), "its batches do not come from a DataLoader")
    assert not none.are_whole
    found = judge_late(EARLY, none, SampledSteps())
    assert found.tier == "unproven" and "DataLoader" in found.evidence
    # Control: what is changed already stays so.
    changed = replace(EARLY, tier="changed")
    assert judge_late(changed, none, SampledSteps()) is changed


def test_late_steps_are_pairs_drawn_anew_behind_the_first() -> None:
    drawn = [draw_late_steps() for _ in range(200)]
    assert all(steps[:2] == (0, 1) for steps in drawn) and len(set(drawn)) > 50
    for steps in drawn:
        assert steps[1::2] == tuple(first + 1 for first in steps[::2])
        assert list(steps) == sorted(set(steps))
