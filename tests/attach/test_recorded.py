"""`hotlap run --run-dir`: the losses of an unedited script, as it computed them."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotlap.attach.recorded import RecordedScript
from hotlap.plan import Plan
from hotlap.track.feeding import files_of
from hotlap.track.runs import Run, read_run

Start = Callable[..., subprocess.CompletedProcess[str]]
OWN = "tests.track.trackers"

SCRIPT = """
import hashlib, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kind = sys.argv[1] if len(sys.argv) > 1 else ""
inputs = torch.randn(96, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaled", init_scale=1024.0)
if kind == "fails":
    loader = list(loader)[:5] + [(None, None)]
losses = []
for number, (x, y) in enumerate(loader, 1):
    loss = torch.nn.functional.mse_loss(model(x), y)
    losses.append(loss.item())
    scaler.scale(loss).backward()
    if kind != "twice" or number % 2 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
print(repr(losses))
print(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def losses(run: Run) -> dict[int, float]:
    found = run.curves["step/loss"]
    return dict(zip(found.steps, found.values, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "scaled"])
@pytest.mark.usefixtures("script")
def test_the_losses_are_those_that_the_script_computed(
    kind: str, hotlap: Start, tmp_path: Path, root: Path
) -> None:
    plain = hotlap("run", "train.py", kind) if kind else None
    # Where the tests' own trackers are found.
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    done = hotlap(
        "run", "--run-dir", "run", "--track", f"{OWN}:Writes", "train.py", kind, PYTHONPATH=path
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[0])
    run = read_run(tmp_path / "run")
    assert losses(run) == dict(enumerate(printed, 1))
    info = run.info
    assert info is not None and info.state == "finished"
    assert info.task == {"script": str(tmp_path / "train.py"), "arguments": kind}
    assert info.command[:2] == ("hotlap", "run") and info.plan
    calls = files_of(tmp_path / "run", f"{OWN}:Writes") / "calls.jsonl"
    first, *logged, last = [json.loads(line) for line in calls.read_text().splitlines()]
    assert first[0] == "begin" and last == ["end", "finished"]
    assert [(step, values["step/loss"]) for _, step, values in logged] == [*losses(run).items()]
    if plain is not None:
        # Nothing of it reaches what is learned.
        assert plain.stdout == done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("script")
def test_a_step_of_two_backwards_has_their_mean(hotlap: Start, tmp_path: Path) -> None:
    done = hotlap("run", "--run-dir", "run", "train.py", "twice")
    printed = json.loads(done.stdout.splitlines()[0])
    expected = [sum(printed[2 * step : 2 * step + 2]) / 2 for step in range(6)]
    assert list(losses(read_run(tmp_path / "run")).values()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("script")
def test_a_script_that_fails_leaves_what_it_did(hotlap: Start, tmp_path: Path) -> None:
    done = hotlap("run", "--run-dir", "run", "train.py", "fails")
    assert done.returncode == 1
    run = read_run(tmp_path / "run")
    assert run.info is not None and (run.info.state, run.info.error) == ("failed", "exit code 1")
    assert list(losses(run)) == [1, 2, 3, 4, 5]
    again = hotlap("run", "--run-dir", "run", "train.py")
    assert again.returncode == 2 and "already holds a run" in again.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("script")
def test_what_cannot_be_recorded_does_not_disturb_the_script(hotlap: Start, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        SCRIPT.replace("losses = []", "losses = []\nimport shutil; shutil.rmtree('run')")
    )
    done = hotlap("run", "--run-dir", "run", "train.py")
    assert done.returncode == 0 and len(json.loads(done.stdout.splitlines()[0])) == 12
    assert "after step 1 nothing is recorded: FileNotFoundError" in done.stderr


@pytest.mark.slow
def test_of_two_ranks_the_first_one_records(hotlap: Start, tmp_path: Path) -> None:
    # As DDP scripts do it: the same model on each rank, and other samples.
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("torch.manual_seed(0)", "torch.manual_seed(0)\n"
        "torch.distributed.init_process_group('gloo')\nrank = torch.distributed.get_rank()")
        .replace("model = torch.nn.Linear(4, 1)",
                 "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))")
        .replace("model.weight", "model.module.weight")
        .replace("inputs = torch.randn(96, 4)", "inputs = torch.randn(96, 4) + rank")
        .replace("print(repr(losses))", "open(f'losses-{rank}', 'w').write(repr(losses))")
        + "torch.distributed.destroy_process_group()\n"
    )  # fmt: skip
    done = hotlap("run", "--run-dir", "run", "torchrun", "--nproc_per_node", "2", "train.py")
    assert done.returncode == 0, done.stderr
    expected = json.loads((tmp_path / "losses-0").read_text())
    assert losses(read_run(tmp_path / "run")) == dict(enumerate(expected, 1))
    assert "recorded" not in done.stderr


@pytest.mark.slow
def test_a_script_without_a_loss_is_said(hotlap: Start, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(1))\n")
    done = hotlap("run", "--run-dir", "run", "train.py")
    assert done.returncode == 0 and "no loss was recorded" in done.stderr
    run = read_run(tmp_path / "run")
    assert run.info is not None and run.info.state == "finished" and not run.records


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "the script's own process did not say why"),
        ({"problems": []}, "no process that hotlap is attached to called backward()"),
    ],
)
def test_a_process_that_said_nothing_is_not_said_to_have_trained_nothing(
    told: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    notices: list[str] = []
    recorded = RecordedScript(tmp_path / "run", (), 2.0, notices.append)
    recorded.begin({"script": "train.py"}, Plan())
    recorded.end(0, told)
    assert len(notices) == 1 and "no loss was recorded" in notices[0] and words in notices[0]


@pytest.mark.usefixtures("script")
def test_what_cannot_be_recorded_is_refused_before_the_script_starts(
    hotlap: Start, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for options, words in (
        (["--track", "tensorbord", "--run-dir", "run"], "tracker 'tensorbord' is not known"),
        (["--track", "tensorboard"], "needs a folder to record the run in. Pass --run-dir FOLDER"),
        (["--run-dir", "file/run"], "is not a folder"),
        (["--run-dir", "run", "--every", "0.1s"], "is too short"),
    ):
        done = hotlap("run", *options, "train.py")
        assert done.returncode == 2 and words in done.stderr, (options, done.stderr)
        assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "train.py"]
