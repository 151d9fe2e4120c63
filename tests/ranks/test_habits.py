"""Rules that look at several ranks, with real scripts: habits are named, corrected ones not."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., subprocess.CompletedProcess[str]]
HABITS = str(Path(__file__).parent / "habits.py")
TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node", "2", HABITS)
RULES = {
    "search": "unused_parameter_search",
    "sums": "sum_per_micro_batch",
    "order": "repeated_order",
    "stale": "stale_optimizer",
}


def diagnosed(hotlap: Call, *args: str) -> dict[str, Any]:
    ended = hotlap("diagnose", "--json", "--budget", "25s", *TORCHRUN, *args, timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("habit", RULES)
def test_a_habit_is_named_at_its_line(habit: str, hotlap: Call) -> None:
    found = diagnosed(hotlap, habit)
    kinds = ("mistakes",) if habit in ("order", "stale") else ("findings", "suspects")
    places = [row["where"] for kind in kinds for row in found[kind] if row["rule"] == RULES[habit]]
    # On a busy machine a cost may be within the noise: it is named among what was ruled out.
    places += [words for words in found["ruled_out"] if words.startswith(RULES[habit])]
    (place,) = places
    assert "habits.py:" in place


@pytest.mark.slow
# With micro-batches and without, under DDP; and sharded.
@pytest.mark.parametrize("habit", ["sums", "order", "stale"])
def test_no_habit_is_named_in_a_corrected_script(habit: str, hotlap: Call) -> None:
    found = diagnosed(hotlap, habit, "--corrected")
    # What trials have ruled out was suspected.
    for kind in ("mistakes", "findings", "suspects", "ruled_out"):
        assert not [rule for rule in RULES.values() if rule in json.dumps(found[kind])]


@pytest.mark.slow
def test_what_a_sharded_script_learns_is_proven_on_each_rank(hotlap: Call, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('schema = 1\n[techniques.optimizer]\nimplementation = "foreach"\n')
    script = (*TORCHRUN, "stale", "--corrected")
    ended = hotlap("verify", "--json", "--steps", "40", "plain", plan, *script, timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)["verdict"]
    assert verdict["tier"] == "exact", verdict
    assert "in each of 2 ranks" in verdict["evidence"]
