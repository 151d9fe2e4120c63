"""What the demo says of the runs that it shows."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hotlap import demo
from hotlap.attach.entry import Script
from hotlap.demo import (
    _against_the_prediction,
    _check_learning,
    _commands,
    _epochs_of,
    _epochs_to_show,
    _of_losses,
    _of_speeds,
)
from hotlap.errors import RunError
from hotlap.lab.command_turns import CommandRun
from hotlap.lab.whole_run import WholeRun
from tests.report.test_tuning import FOUND, without_gain

OUTPUT = """\
3 epochs
epoch 1: loss 0.512300, test accuracy 82.10 %, 5.0 s
epoch 2: loss 0.358609, test accuracy 85.49 %, 5.0 s
epoch 3: loss 0.323149, test accuracy 87.05 %, 5.1 s
"""


def run_of(output: str, seconds: float) -> CommandRun:
    """Return a run that printed its lines at even distances."""
    lines = output.splitlines()
    at = [seconds * (number + 1) / len(lines) for number in range(len(lines))]
    return CommandRun(tuple(zip(at, lines, strict=True)), seconds, 0)


def test_a_run_is_shown_with_its_epochs_and_when_they_had_ended() -> None:
    text = _epochs_of("plain", run_of(OUTPUT, 16.8))
    assert text.startswith("plain: 16.8 s\n  epoch 1: loss")
    # Not by the script's own clock, which counts while it stands still.
    assert "accuracy 85.49 %, after 12.6 s" in text and "5.0 s" not in text
    many = run_of("".join(f"epoch {n}: loss\n" for n in range(1, 121)), 12.0)
    assert _epochs_of("plain", many) == (
        "plain: 12.0 s\n  epoch 119: loss, after 11.9 s\n  epoch 120: loss, after 12.0 s"
    )


def test_how_far_losses_are_apart_is_said_beside_other_accuracies() -> None:
    plain = run_of(OUTPUT, 16.8)
    rounded = run_of(OUTPUT.replace("0.323149", "0.322436"), 10.6)
    assert _of_losses(plain, rounded).startswith("the last loss is 0.2% off. Runs that round")
    assert _of_losses(plain, run_of(OUTPUT.replace("5.1 s", "2.1 s"), 9.0)).startswith("byte for")
    other = run_of(OUTPUT.replace("82.10", "82.11"), 9.0)
    assert _of_losses(plain, other) == "the last loss is the same"
    # The digits that stand in for FashionMNIST are trained by the same script.
    assert _of_losses(run_of("nothing", 1.0), rounded).startswith("other output")


def test_the_commands_shown_are_those_that_a_user_types() -> None:
    script, plan = Script(path="plain.py", args=("--epochs", "3")), Path("tuned.toml")
    commands = list(_commands(script, FOUND, plan).values())
    assert [command[1:] for command in commands] == [
        ["plain.py", "--epochs", "3"],
        ["-m", "hotlap", "run", "plain.py", "--epochs", "3"],
        ["-m", "hotlap", "run", "--plan", "tuned.toml", "plain.py", "--epochs", "3"],
    ]
    assert len(_commands(script, without_gain("could_not_tell"), plan)) == 2


class Load:
    cores = 0.0

    def so_far(self) -> tuple[float, float]:
        return self.cores, 0.0


@pytest.mark.parametrize(
    ("cores", "own", "told"), [(0.5, None, None), (1.4, None, "passive"), (1.4, "active", "active")]
)
def test_threads_of_the_runs_shown_do_not_spin_on_a_busy_machine(
    cores: float, own: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    monkeypatch.setattr(Load, "cores", cores)
    monkeypatch.setattr(demo, "OtherLoad", Load)
    monkeypatch.setattr(demo, "_LOOK_S", 0.0)
    console = Console(file=io.StringIO(), record=True)
    with demo._wait_passively_if_busy(console) as is_passive:
        assert is_passive is (told == "passive")
        assert os.environ.get("OMP_WAIT_POLICY") == told
    assert os.environ.get("OMP_WAIT_POLICY") == own
    is_changed = told == "passive"
    assert ("kept 1.4 cores busy" in console.export_text()) is is_changed


def test_a_machine_that_was_faster_in_one_part_is_named() -> None:
    assert _of_speeds(5.0, 4.5) == _of_speeds(4.5, 5.0) == ""
    assert "took 7.30 ms in part 1 and 4.90 ms in part 2" in _of_speeds(7.3, 4.9)
    assert "took 4.90 ms in part 1 and 7.30 ms in part 2" in _of_speeds(4.9, 7.3)


def test_runs_are_shorter_where_the_machine_is_slow() -> None:
    quick, slow = (WholeRun(4.0 + 10 * epoch_s, "", start_s=4.0) for epoch_s in (9.0, 13.0))
    assert _epochs_to_show(85.0, quick) == 3
    assert _epochs_to_show(85.0, slow) == 2
    # Less would show nothing of what later epochs gain, and more takes longer.
    assert _epochs_to_show(1.0, slow) == 2 and _epochs_to_show(900.0, quick) == 3
    assert _epochs_to_show(85.0, WholeRun(None, "")) == 3


def runs_of(*seconds: float) -> list[tuple[str, CommandRun]]:
    names = ("plain", "exact", "tuned")
    return [(name, run_of(OUTPUT, each)) for name, each in zip(names, seconds, strict=True)]


def test_the_runs_are_set_beside_the_prediction_of_the_planned_one() -> None:
    planned = Script(path="plain.py", args=("--epochs", "11"))
    # A quarter of each is an epoch: 8 more than are shown take twice the time of all.
    words = _against_the_prediction(FOUND, planned, runs_of(16.0, 12.0, 10.0))
    assert words == (
        "At the pace of these runs 11 epochs take 48 s -> 30 s (1.60x); part 2 predicts 100 s -> "
        "61 s (1.64x). The machine was faster in these runs."
    )
    slower = _against_the_prediction(FOUND, planned, runs_of(16.0, 12.5, 12.4))
    assert "(1.29x)" in slower and "Of the two ratios the lower one is safer" in slower
    assert "no faster here than exact techniques alone, although" in slower
    near = replace(FOUND, proven_plans=(replace(FOUND.proven_plans[0], speedup=FOUND.speedup),))
    same = _against_the_prediction(near, planned, runs_of(33.0, 26.0, 26.0))
    assert "no faster here than exact techniques alone." in same and "machine" not in same
    exact = replace(FOUND, verdict=replace(FOUND.verdict, tier="exact"))
    assert "no faster here" not in _against_the_prediction(exact, planned, runs_of(16, 12.5, 12.4))
    nothing = without_gain("could_not_tell")
    assert not _against_the_prediction(nothing, planned, runs_of(16.0, 12.0, 10.0)[:2])


def test_an_exact_plan_that_changes_what_is_printed_is_an_error() -> None:
    script, plain = Script(path="plain.py"), run_of(OUTPUT, 16.8)
    later = run_of(OUTPUT.replace("5.0 s", "4.0 s"), 12.0)
    _check_learning(script, [("plain", plain), ("exact", later)])
    other = run_of(OUTPUT.replace("0.323149", "0.323148"), 12.0)
    with pytest.raises(RunError, match="changed what `plain"):
        _check_learning(script, [("plain", plain), ("exact", other)])


def test_the_commands_to_type_next_can_be_pasted() -> None:
    lines = [line for line in demo._NEXT.splitlines() if line]
    assert all(line.startswith(("# ", "hotlap ")) and len(line) < 80 for line in lines)
