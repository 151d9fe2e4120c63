"""The lecture's script as it is taught: each of its mistakes is named, with the line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "lecture"
CORRECTIONS = {
    "    scaler = torch.amp.GradScaler(DEVICE)\n": "",
    "\n\nclass Classifier": "scaler = torch.amp.GradScaler(DEVICE)\n\n\nclass Classifier",
    "scaler.scale(loss).backward()": "scaler.scale(loss / ACCUMULATE).backward()",
    "if index % ACCUMULATE == 0:": (
        "if (index + 1) % ACCUMULATE == 0 or index + 1 == len(loader):"
    ),
    "weights_only=False": "weights_only=True",
    '"scheduler_state": scheduler.state_dict(),': (
        '"scheduler_state": scheduler.state_dict(), "scaler_state": scaler.state_dict(),'
    ),
}
"""Text of the script -> what is right."""


def mistakes(script: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """Return rule -> file and line, and evidence, of a script that goes on from a former run."""
    # Without the data it trains on scikit-learn's digits.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HOTLAP_")}
    empty = kept | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    for command in (
        [str(script), "--epochs", "5"],
        ["-m", "hotlap", "diagnose", "--json", "--budget", "20s", str(script), "--epochs", "30"],
    ):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=empty
        )
        assert done.returncode == 0, done.stderr
    assert (folder / "checkpoint.pth").is_file()
    rows = json.loads(done.stdout)["mistakes"]
    return {row["rule"]: (Path(row["where"]).name, row["evidence"]) for row in rows}


@pytest.mark.slow
def test_every_mistake_of_the_lecture_is_named_with_its_line(tmp_path: Path) -> None:
    script = FOLDER / "plain.py"
    lines = {text.strip(): n for n, text in enumerate(script.read_text().splitlines(), 1)}
    found = mistakes(script, tmp_path)
    load = "checkpoint = torch.load(CHECKPOINT, weights_only=False)"
    expected = {
        "new_scaler": "scaler = torch.amp.GradScaler(DEVICE)",
        "single_first_micro_batch": "scaler.step(optimizer)",
        "summed_micro_batches": "scaler.scale(loss).backward()",
        "unsafe_load": load,
        "unused_micro_batches": "scaler.scale(loss).backward()",
    }
    where = {rule: line for rule, (line, _) in found.items()}
    # Whether a file is saved while it is watched depends on the machine.
    where.pop("incomplete_checkpoint", None)
    assert where == {rule: f"plain.py:{lines[text]}" for rule, text in expected.items()}
    assert "the last 3 of the 24 micro-batches of an epoch" in found["single_first_micro_batch"][1]


@pytest.mark.slow
def test_the_corrected_script_has_none_of_them(tmp_path: Path) -> None:
    text = (FOLDER / "plain.py").read_text()
    for wrong, right in CORRECTIONS.items():
        assert text.count(wrong) == 1, wrong
        text = text.replace(wrong, right)
    assert text.count("Path(__file__).parents[1]") == 1
    text = text.replace("Path(__file__).parents[1]", f"Path({str(FOLDER.parent)!r})")
    script = tmp_path / "corrected.py"
    script.write_text(text)
    assert mistakes(script, tmp_path) == {}
