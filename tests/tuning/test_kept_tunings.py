"""What a tuning keeps for the next one: when it is used, and when it must not be."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab.check import Check
from hotlap.lab.decisions import Decision
from hotlap.lab.statistics import Ratio
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.tuning import proofs
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.concluding import conclude
from hotlap.tuning.continuing import continued_races, without_decided_ones
from hotlap.tuning.hints import HintAnswer
from hotlap.tuning.kept_tunings import KeptTuning, kept_tuning, key_of
from hotlap.tuning.result import ProvenPlan, TrialRow
from tests.tuning import faked

RESIDENT = Plan({"resident": {}})
FUSED = Plan({"optimizer": {"implementation": "fused"}})
HOST = Host(cpu="a CPU", cores=2, torch="2.13.0")
REQUEST = {"accept": "rounding", "only": ()}
EXACT = Verdict("exact", "bit-equal", 100, (Check("losses", "passed", "all"),), {"steps": 100})
FASTER = Decision((0,), "faster", Ratio(1.5, 1.4, 1.6, 20))
USELESS = Decision((1,), "not_faster", Ratio(1.0, 0.99, 1.01, 20))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text("import part")
    (tmp_path / "part.py").write_text("rate = 0.1")
    return Script(path="train.py", args=("--epochs", "2"), cwd=str(tmp_path))


def files(script: Script) -> list[str]:
    return [str(script.folder / name) for name in ("train.py", "part.py")]


def opened(script: Script, host: Host = HOST, **more: Any) -> KeptTuning:
    return kept_tuning(script, host, REQUEST | more)


def begun(script: Script) -> KeptTuning:
    kept = opened(script)
    kept.keep_files(files(script))
    alone = {RESIDENT: FASTER, FUSED: USELESS}
    kept.keep_live(alone, {RESIDENT: FASTER.ratio or Ratio(1, 1, 1, 1)}, [], 0.02, 60.0)
    kept.keep_verdict(RESIDENT, EXACT)
    return kept


def test_what_was_measured_is_there_after_an_interruption(script: Script) -> None:
    begun(script)
    kept = opened(script)
    assert kept.finalists == {RESIDENT: FASTER.ratio}
    assert kept.decisions == {
        RESIDENT: replace(FASTER, on=()),
        FUSED: replace(USELESS, on=()),
    }
    assert kept.verdicts == {RESIDENT: EXACT}
    assert kept.had_as_much(60.0) and not kept.had_as_much(180.0)
    assert kept.result_for(10.0) is None


def test_a_gain_within_the_noise_of_its_race_is_raced_again(script: Script) -> None:
    kept = opened(script)
    kept.keep_files(files(script))
    noisy = Ratio(1.55, 1.25, 2.24, 12)
    alone = {RESIDENT: replace(FASTER, ratio=noisy), FUSED: USELESS}
    kept.keep_live(alone, {RESIDENT: noisy}, [], 0.3, 60.0)
    again = opened(script)
    assert again.finalists == {} and list(again.decisions) == [FUSED]
    # Control: above the noise it is kept.
    kept.keep_live(alone, {RESIDENT: noisy}, [], 0.2, 60.0)
    again = opened(script)
    assert again.finalists == {RESIDENT: noisy} and RESIDENT in again.decisions


@pytest.mark.parametrize("name", ["train.py", "part.py"])
def test_nothing_is_used_of_a_script_that_has_changed(script: Script, name: str) -> None:
    begun(script)
    with (script.folder / name).open("a") as file:
        file.write("\n")
    assert opened(script) == KeptTuning(opened(script).path)


def test_files_that_change_while_it_is_continued_are_noticed(script: Script) -> None:
    begun(script)
    kept = opened(script)
    (script.folder / "part.py").write_text("rate = 0.2")
    kept.keep_files(files(script))
    assert (kept.finalists, kept.decisions, kept.verdicts) == ({}, {}, {})


@pytest.mark.parametrize(
    "other",
    [
        *("arguments", "a file given", "torch", "cores", "request", "environment"),
        *("another terminal", "nothing"),
    ],
)
def test_another_tuning_has_a_file_of_its_own(
    script: Script, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script.folder / "config.yaml").write_text("model: small")
    script = script._replace(args=("config.yaml",))
    begun(script)
    if other == "a file given":
        (script.folder / "config.yaml").write_text("model: large")
    if other == "environment":
        monkeypatch.setenv("MODEL", "large")
    if other == "another terminal":
        monkeypatch.setenv("GNOME_TERMINAL_SCREEN", "/org/gnome/Terminal/screen/1")
        monkeypatch.setenv("KONSOLE_DBUS_SESSION", "/Sessions/7")
    found = opened(
        script._replace(args=("--epochs", "3")) if other == "arguments" else script,
        replace(
            HOST, torch="2.12.0" if other == "torch" else "2.13.0", cores=2 + (other == "cores")
        ),
        **({"accept": "exact"} if other == "request" else {}),
    )
    assert bool(found.finalists) is (other in ("another terminal", "nothing"))


def test_a_large_file_that_is_given_is_not_read(script: Script) -> None:
    large = script.folder / "train.bin"
    with open(large, "wb") as stream:
        # Sparse: to read it would take minutes.
        stream.truncate(2**40)
    os.utime(large, (1, 1))
    script = script._replace(args=("train.bin",))
    before = key_of(script, HOST, REQUEST)
    assert key_of(script, HOST, REQUEST) == before
    os.utime(large, (2, 2))
    assert key_of(script, HOST, REQUEST) != before


def test_a_pipe_that_is_given_is_left_to_the_script(script: Script) -> None:
    os.mkfifo(script.folder / "pipe")
    assert key_of(script._replace(args=("pipe",)), HOST, REQUEST)


def test_what_changed_learning_is_no_finalist_again(script: Script) -> None:
    begun(script)
    tuner = faked.tuner(60.0)
    tuner.kept = opened(script)
    tuner.kept.raced_s = 60.0
    assert continued_races(tuner, []) is not None
    for plan in tuner.kept.finalists:
        tuner.kept.verdicts[plan] = Verdict("changed", "another gradient", 20)
    assert continued_races(tuner, []) is None


def test_again_forgets(script: Script) -> None:
    begun(script)
    assert not kept_tuning(script, HOST, REQUEST, again=True).finalists
    assert opened(script).finalists


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 1, "files": {}}', "{"])
def test_a_file_that_cannot_be_read_is_none(script: Script, content: str) -> None:
    path = begun(script).path
    assert path is not None
    path.write_text(content)
    assert not opened(script).decisions


def test_an_error_is_no_verdict_that_is_kept(script: Script) -> None:
    kept = begun(script)
    kept.keep_verdict(FUSED, Verdict("unproven", "it crashed", 0))
    assert FUSED not in opened(script).verdicts


def result(outcome: str) -> Any:
    ratio = FASTER.ratio
    assert ratio is not None
    return replace(
        conclude(faked.tuner(), faked.watched(), None, []),
        outcome=outcome,
        plan=RESIDENT,
        live=ratio,
        proven_plans=(ProvenPlan("exact", RESIDENT, ratio, EXACT, ratio, None, 2.0),),
        trials=(TrialRow(RESIDENT, 0, ratio, None), TrialRow(FUSED, 0, None, None, "failed")),
        hints=(HintAnswer(RESIDENT, 1.4, ratio, "both", agrees=True),),
    )


@pytest.mark.parametrize(
    ("outcome", "budget_s", "is_given"),
    [
        ("gain", 60.0, True),
        ("gain", 30.0, True),
        ("gain", 61.0, False),
        ("nothing_to_gain", 60.0, True),
        ("could_not_tell", 60.0, False),
        ("not_proven", 60.0, False),
    ],
)
def test_a_result_that_had_as_much_time_is_given_once_more(
    script: Script, outcome: str, budget_s: float, is_given: bool
) -> None:
    found = result(outcome)
    begun(script).keep_result(found, 60.0)
    given = opened(script).result_for(budget_s)
    assert (given is not None) is is_given
    if given is not None:
        assert json.dumps(given.to_json()) == json.dumps(found.to_json())
        assert given == opened(script).result


def test_a_verdict_that_is_known_is_not_proven_again(script: Script) -> None:
    class Never:
        plain = ""

        def prove(self, plan: Plan) -> Verdict:
            raise AssertionError(plan)

    tuner = faked.tuner()
    tuner.kept = begun(script)
    final = faked.raced({RESIDENT: 1.5})
    names = [faked.name_of(RESIDENT)]
    never: Any = Never()
    rung = proofs.prove_tier(tuner, never, final, names, "exact", [])
    assert rung is not None
    assert rung.verdict == EXACT
    with pytest.raises(AssertionError):
        proofs.prove_tier(faked.tuner(), _with_plain(never), final, names, "exact", [])


def _with_plain(prover: Any) -> Any:
    prover.plain, prover.has_plain = "followed", True
    return prover


def test_what_gave_nothing_is_not_tried_again(script: Script) -> None:
    tuner = faked.tuner()
    tuner.kept = begun(script)
    useless = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
    useful = Candidate("resident", {}, Numerics.EXACT)
    assert without_decided_ones(tuner, [useless, useful]) == [useful]
    (row,) = tuner.notes.rows(["optimizer"])
    assert "in an earlier tuning: 1.00x (0.99 to 1.01), no gain" in row["why"]
