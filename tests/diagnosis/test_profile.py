"""`diagnose --trace` and `--profile`: a labelled trace of some steps, and the run as it was."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.diagnosis.profile import request_profile
from hotlap.errors import UnknownName, UsageError
from hotlap.host.facts import Gpu, Host
from hotlap.lab.observing import watch
from hotlap.lab.profiling import record_window
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab
from hotlap.trace.chrome.reading import read_trace
from hotlap.trace.chrome.summary import Summary, summarize
from hotlap.trace.profile_schema import WindowRecord

Run = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(32, 32)
        self.drop = nn.Dropout(0.1)

    def forward(self, inputs):
        return inputs + self.drop(self.attention(inputs))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


model = COMPILED
data = TensorDataset(torch.randn(512, 32), torch.randn(512, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(repr(loss.item()), flush=True)
"""
RECIPE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap


def loss(model, batch):
    value = nn.functional.mse_loss(model(batch[0]), batch[1])
    print(repr(value.item()), flush=True)
    return value


def task():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 32), torch.randn(512, 32))
    return hotlap.Task(
        model=lambda: nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.Linear(32, 32)),
        loss=loss,
        data=data,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        batch_size=8,
        epochs=2,
    )
"""
NAME = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")
"""How TensorBoard's plugin finds traces, and the worker and the time in their names."""


def recorded(lab: Lab) -> tuple[Summary, WindowRecord, list[str]]:
    """Return what a trial in the role records, and the losses that its process has printed."""
    found: list[tuple[Summary, WindowRecord]] = []
    record_window(
        lab,
        ("cpu",),
        lambda file, record: found.append((summarize(read_trace(file)), record)),
        seconds=20,
    )
    return *found[0], losses_printed(lab)


def losses_printed(lab: Lab) -> list[str]:
    """Return the losses that the process of the last trial has printed."""
    printed = lab.trials[-1].output.splitlines()
    return [line for line in printed if re.fullmatch(r"\d+\.\d+(e-?\d+)?", line)]


@pytest.mark.slow
def test_a_recorded_script_has_the_losses_of_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("COMPILED", "Network()"))
    script = Script(path=str(path), cwd=str(tmp_path))
    with Lab(script) as lab:
        found, record, losses = recorded(lab)
    plain = subprocess.run(
        [script.python, str(path)], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout.splitlines()
    assert 15 < len(losses) < len(plain)
    assert losses == plain[: len(losses)]
    assert record.notes == ()
    assert found.steps == record.steps == 6
    regions = {region.name: region for region in found.regions}
    assert regions["blocks.3.attention"].count == 6
    assert regions["blocks.3.attention"].backward_ms > 0
    assert set(found.phases) == {"data", "forward", "backward", "optimizer", "other"}
    assert all(found.phases[phase] > 0 for phase in found.phases)
    lines = {(region, operator): where for region, operator, where in record.lines}
    called = SCRIPT.splitlines().index("        return inputs + self.drop(self.attention(inputs))")
    assert lines["blocks.3.attention", "aten::addmm"] == f"train.py:{called + 1}"
    backward = SCRIPT.splitlines().index("        loss.backward()") + 1
    assert lines["", "autograd::engine::evaluate_function: AddmmBackward0"].endswith(f":{backward}")


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_is_left_as_it_is(whole: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    made = "torch.compile(Network(), backend='eager')"
    if not whole:
        made = "Network()\nfor block in model.blocks[:2]:\n    block.compile(backend='eager')"
    counted = "import torch._dynamo.utils as utils\n        print('compiled', utils.counters"
    text = SCRIPT.replace("COMPILED", made)
    path.write_text(f"{text}        {counted}['frames']['total'])\n")
    with Lab(Script(path=str(path), cwd=str(tmp_path))) as lab:
        found, record, losses = recorded(lab)
        printed = lab.trials[-1].output.splitlines()
    counts = [line.split()[1] for line in printed if line.startswith("compiled")]
    assert len(losses) > 15
    assert counts[-1] == counts[3], "the hooks have caused a compilation"
    assert any("have no regions" in note for note in record.notes)
    regions = {region.name for region in found.regions}
    assert "blocks.1.attention" not in regions
    assert ("blocks.3.attention" in regions) == (not whole)


@pytest.mark.slow
def test_a_recorded_recipe_has_its_losses_and_its_names(tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    recipe = RecipeRun(path=str(path), cwd=str(tmp_path))
    with Lab(recipe) as lab:
        watch(lab, seconds=60, epochs=9)
        plain = losses_printed(lab)
        found, record, losses = recorded(lab)
    assert 15 < len(losses) < len(plain)
    assert losses == plain[: len(losses)]
    assert record.notes == ()
    assert found.steps == 6
    assert {"Sequential", "0", "1", "2"} <= {region.name for region in found.regions}
    assert all(found.phases[phase] > 0 for phase in ("data", "forward", "backward", "optimizer"))


@pytest.mark.slow
def test_the_command_writes_a_trace_for_viewers_and_reads_it_again(
    hotlap: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("COMPILED", "Network()"))
    options = ["--json", "--budget", "25s", "--trace", "traces"]
    done = hotlap("diagnose", "train.py", *options)
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)["profile"]
    (file,) = (tmp_path / "traces").iterdir()
    assert profile["file"] == str(file)
    assert NAME.match(file.name)
    assert profile["kinds"] == ["cpu"]
    assert profile["cost_ms"] == profile["recorded_step_ms"] - profile["plain_step_ms"]
    assert "blocks.0.attention" in {region["name"] for region in profile["regions"]}
    again = hotlap("diagnose", str(file), "--json")
    assert again.returncode == 0, again.stderr
    read = json.loads(again.stdout)
    assert read["phases"] == profile["phases"]
    assert read["idle"]["gaps"]
    page = hotlap("diagnose", str(file))
    assert "The longest gaps" in page.stdout
    assert "hotlap." not in page.stdout


@pytest.mark.slow
def test_without_a_folder_nothing_is_written_and_the_page_says_what_it_cost(
    hotlap: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("COMPILED", "Network()"))
    done = hotlap("diagnose", "train.py", "--budget", "40s", "--profile", "memory")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert "Recorded with torch.profiler (memory), 6 steps:" in done.stdout
    assert "Recording cost" in done.stdout
    assert "MiB" in done.stdout


@pytest.mark.slow
def test_a_run_that_is_too_short_is_diagnosed_and_the_report_says_why_it_has_no_trace(
    hotlap: Run, root: Path, tmp_path: Path
) -> None:
    script = str(root / "tests" / "tiny.py")
    options = ["--json", "--budget", "25s", "--trace", "traces"]
    done = hotlap("diagnose", *options, script, "--samples", "64", "--epochs", "1")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["phases"]["data"] > 0
    assert "profile" not in found
    assert "nothing was recorded with torch.profiler: the run is too short" in found["notes"]
    assert not (tmp_path / "traces").exists()


def test_what_cannot_be_recorded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host()
    assert request_profile((), None, host) is None
    with pytest.raises(UnknownName, match="Did you mean 'cuda'"):
        request_profile(("cudda",), None, host)
    with pytest.raises(UsageError, match="no CUDA GPU was found"):
        request_profile(("cuda",), None, host)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"is a file\. Expected: a folder"):
        request_profile((), tmp_path / "file", host)
    with pytest.raises(UsageError, match=r"was not found\. Create it"):
        request_profile((), tmp_path / "a" / "b", host)
    with_gpu = Host(gpus=(Gpu(0, "GPU-1", "a GPU", 2**34, 2**34, "9.0", "580"),))
    asked = request_profile(("cpu", "cuda", "cpu"), tmp_path / "new", with_gpu)
    assert asked is not None
    assert asked.kinds == ("cpu", "cuda")
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path or mode != os.W_OK)
    with pytest.raises(UsageError, match="cannot be written to"):
        request_profile((), tmp_path / "new", host)
