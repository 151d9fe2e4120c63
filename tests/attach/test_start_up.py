"""`hotlap run` starts soon: what it imports is counted, because times differ between machines."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from hotlap.plan.before_start import AT_PROCESS_SEAM
from hotlap.techniques import Technique, registry

SLOW = (
    *("ast", "cyclopts", "dataclasses", "hashlib", "inspect", "numpy", "rich", "torch"),
    *("hotlap.failures", "hotlap.lab", "hotlap.report.terminal", "hotlap.task", "hotlap.trace"),
)
"""What `hotlap run` must not import in its own process, in which the script does not run."""
MOST_OF_HOTLAP = 40
MOST_OF_HOTLAP_IN_SCRIPT = 75
"""Modules of hotlap in each of the two processes, at most."""
PARENT = """
import sys
from hotlap.cli import main
code = main(sys.argv[1:])
print(code, *sys.modules)
"""
SCRIPT = """
import sys
import torch

torch_has = set(sys.modules)
optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    (optimizer.param_groups[0]["params"][0] ** 2).sum().backward()
    optimizer.step()
import json
print(json.dumps(sorted(sys.modules)))
"""


def slow_ones(modules: Iterable[str], but: Iterable[str] = ()) -> list[str]:
    """Return those of some modules that take long to import, or belong to a package that does."""
    slow = set(SLOW) - set(but)
    return sorted(each for each in modules if any(f"{each}.".startswith(f"{s}.") for s in slow))


def parent_modules(folder: Path, *options: str) -> list[str]:
    """Return the modules of the process of `hotlap run`, in the order of their import."""
    (folder / "train.py").write_text("")
    command = [sys.executable, "-c", PARENT, "run", *options, "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)
    code, *modules = done.stdout.split()
    assert code == "0", done.stderr
    return modules


@pytest.mark.parametrize("options", [(), ("--plan", "auto")])
def test_little_is_imported_before_and_beside_the_script(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    modules = parent_modules(tmp_path, *options)
    assert slow_ones(modules) == []
    assert slow_ones([*modules, "hotlap.lab.trial", "inspect"]) == ["hotlap.lab.trial", "inspect"]
    assert not [each for each in modules if each.startswith("hotlap.techniques")]
    assert 15 < len([each for each in modules if each.startswith("hotlap")]) < MOST_OF_HOTLAP


def test_only_techniques_of_the_plan_are_imported(tmp_path: Path) -> None:
    plan = tmp_path / "fast.toml"
    plan.write_text('schema = 1\n[techniques.optimizer]\nimplementation = "foreach"\n')
    modules = parent_modules(tmp_path, "--plan", "fast.toml")
    assert "hotlap.techniques.optimizer" in modules and "hotlap.plan.file" in modules
    techniques = {f"hotlap.techniques.{name}" for name in registry()}
    assert techniques & set(modules) == {"hotlap.techniques.optimizer"}
    assert {"torch", "numpy", "cyclopts", "rich", "hotlap.lab"}.isdisjoint(modules)


@pytest.mark.slow
def test_little_is_imported_in_the_scripts_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    found: dict[str, set[str]] = {}
    for way in ([], ["-m", "hotlap", "run"]):
        command = [sys.executable, *way, "train.py"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        found["run" if way else "plain"] = set(json.loads(done.stdout))
    more = found["run"] - found["plain"]
    ours = {each for each in more if each.partition(".")[0] == "hotlap"}
    assert more - ours <= {"sitecustomize", "__mp_main__"}
    assert {"hotlap.attach.start", "hotlap.techniques.resident"} <= ours
    late = ("cli", "failures", "lab", "engine", "plan.file", "trace.recorder", "attach.runner")
    assert not [each for each in ours if each.startswith(tuple(f"hotlap.{it}" for it in late))]
    assert len(ours) < MOST_OF_HOTLAP_IN_SCRIPT


def acts_on_process(technique: Technique) -> bool:
    # Where it acts may depend on its options: then a process is none of the places.
    return technique.seam == "process"


def test_techniques_of_the_process_are_known_before_they_are_loaded() -> None:
    known = registry()
    assert {name for name in known if acts_on_process(known[name])} == AT_PROCESS_SEAM
    assert [name for name in known if callable(known[name].seam)] == ["sharding"]


def test_a_module_that_hides_one_of_pythons_own_is_named_and_the_script_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "statistics.py").write_text("def summary(x):\n    return f'mine {x}'\n")
    (tmp_path / "train.py").write_text(
        "import statistics\nimport torch\nprint(statistics.summary(int(torch.ones(3).sum())))\n"
    )
    command = [sys.executable, "-m", "hotlap", "run", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (0, "mine 3\n")
    said = " ".join(done.stderr.split())
    assert "the plan was not applied: hotlap cannot be imported into the script" in said
    assert "statistics.py" in said and "rename it" in said
    assert "Traceback" not in said
