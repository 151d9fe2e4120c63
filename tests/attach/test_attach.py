"""Attaching to real processes: what is seen, and that nothing else is changed."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.attach.runner import run
from hotlap.lab.observing import Observation, watch
from hotlap.lab.proving import Prover
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import EXACT_PLAN, registry

TINY = Path(__file__).parents[1] / "tiny.py"


def tiny(*args: str) -> Script:
    return Script(path=str(TINY), args=args, cwd=str(TINY.parent))


def hotlap_run(*argv: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "hotlap", "run", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=TINY.parent,
        env={**os.environ, **environment},
    )


@functools.cache
def plain_output(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "tiny.py", *args], capture_output=True, text=True, cwd=TINY.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_run_prints_byte_for_byte_what_the_plain_script_prints() -> None:
    expected = plain_output("--epochs", "3")
    done = hotlap_run("tiny.py", "--epochs", "3")
    assert done.stdout == expected
    assert f"plan {EXACT_PLAN.hash}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_comparison_of_outputs_can_fail() -> None:
    assert plain_output("--epochs", "3") != plain_output("--epochs", "3", "--optimizer", "SGD")


def test_a_module_runs_like_a_path() -> None:
    assert hotlap_run("-m", "tiny", "--epochs", "3").stdout == plain_output("--epochs", "3")


def test_a_data_set_that_augments_gives_what_it_gives_in_a_plain_run() -> None:
    done = hotlap_run("tiny.py", "--epochs", "3", "--augment")
    assert done.stdout == plain_output("--epochs", "3", "--augment")
    assert "Error" not in done.stderr


def test_switched_off_it_is_the_plain_script() -> None:
    done = hotlap_run("tiny.py", "--epochs", "3", HOTLAP_OFF="1")
    assert done.stdout == plain_output("--epochs", "3")
    assert "HOTLAP_OFF" in done.stderr


def test_the_exit_code_is_the_scripts_own() -> None:
    assert hotlap_run("tiny.py", "--fault", "crash").returncode == 1


def test_what_is_saved_is_what_the_plain_script_saves(tmp_path: Path) -> None:
    plain_output("--save", str(tmp_path / "weights.pt"))
    first = (tmp_path / "weights.pt").read_bytes()
    hotlap_run("tiny.py", "--save", str(tmp_path / "weights.pt"))
    assert (tmp_path / "weights.pt").read_bytes() == first


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    done = hotlap_run("tiny.py", "--epochs", "1", PYTHONPATH=str(tmp_path))
    assert done.stdout.startswith("mine\n")
    assert "resident" in done.stderr


def test_the_script_does_not_see_how_it_was_reached(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import json, os, sys\n"
        "mine = {k: v for k, v in os.environ.items() if 'HOTLAP' in k or k == 'PYTHONPATH'}\n"
        "print(json.dumps([mine, sys.path[1:], sys.argv, __name__]))\n"
    )
    expected = subprocess.run(
        [sys.executable, str(script), "a"], capture_output=True, text=True, cwd=TINY.parent
    ).stdout
    done = hotlap_run(str(script), "a")
    assert json.loads(done.stdout) == json.loads(expected)
    # It trains nothing, which is no error.
    assert done.returncode == 0


def test_a_script_that_cannot_be_reached_says_so_and_runs(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -E "$@"\n')
    wrapper.chmod(0o755)
    done = hotlap_run("--python", str(wrapper), "tiny.py", "--epochs", "1")
    assert done.returncode == 0
    assert "hotlap could not attach to" in done.stderr


@pytest.fixture(scope="module")
def seen() -> Observation:
    """A run of four epochs that was watched to its end."""
    with Lab(tiny("--epochs", "4")) as lab:
        return watch(lab, seconds=30, epochs=9)


def test_an_observed_run_learns_what_a_plain_one_learns_and_its_phases_add_up(
    seen: Observation,
) -> None:
    losses = [0.0] * 4
    for step, loss in enumerate(seen.trace.losses):
        losses[step // 16] += loss
    printed = [
        line.split()[3].rstrip(",") for line in plain_output("--epochs", "4").splitlines()[:4]
    ]
    assert [repr(loss) for loss in losses] == printed
    trace = seen.trace
    assert trace.ended == "script"
    assert trace.epoch_starts == (0, 16, 32, 48)
    assert sum(trace.phase_means().values()) == pytest.approx(trace.step_ms()["mean"], rel=1e-6)
    assert all(trace.phase_means()[name] > 0 for name in ("data", "forward", "backward"))
    assert trace.anchor.confidence == "high"


def test_what_is_seen_of_the_task_is_right(seen: Observation) -> None:
    facts = seen.trace.facts
    assert facts.planned_steps == 64
    assert facts.steps_per_epoch == 16
    (training,) = facts.training_loaders
    assert training.length == 256
    assert training.where.startswith("tiny.py:")
    assert training.getitem.startswith("tiny.py:")
    assert facts.optimizers[0].name == "torch.optim.adam.Adam"
    assert facts.layers["Linear"] == 2


@pytest.mark.slow
def test_a_saved_step_is_the_same_under_every_exact_plan() -> None:
    with Lab(tiny("--epochs", "3")) as lab:
        prover = Prover(lab, 40, registry())
        prover.run_plain()
        assert prover.differs is None
        verdict = prover.prove(EXACT_PLAN)
        assert verdict.tier == "exact"
        assert verdict.horizon_steps == 40
        fused = prover.prove(Plan({"optimizer": {"implementation": "fused"}}))
        assert fused.tier == "rounding"
        assert {check.name for check in fused.checks} >= {
            "batches",
            "hyperparameters",
            "gradient",
            "update",
        }


@pytest.mark.slow
def test_a_script_without_seeds_is_seeded_from_outside() -> None:
    with Lab(tiny("--epochs", "3", "--unseeded")) as lab:
        prover = Prover(lab, 20, registry())
        prover.run_plain()
        assert prover.prove(Plan({"resident": {}})).tier == "exact"
        assert lab.inject_seed == 0
        assert prover.differs is None


def test_the_planned_steps_are_found_across_functions() -> None:
    script = Script(path="nested.py", cwd=str(Path(__file__).parent))
    with Lab(script) as lab:
        facts = watch(lab, seconds=30, epochs=9).trace.facts
    assert facts.steps_per_epoch == 16
    assert facts.planned_steps == 80


def under_the_exact_plan(tmp_path: Path, text: str) -> subprocess.CompletedProcess:
    """Run a script plain and under the exact plan; return the second after a comparison."""
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, str(tmp_path / "script.py")]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert plain.returncode == 0, plain.stderr
    done = hotlap_run(str(tmp_path / "script.py"))
    assert done.stdout == plain.stdout, done.stderr
    lines = done.stderr.splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("hotlap: ")) == plain.stderr
    return done


AT_MODULE_LEVEL = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.rand(40, 4), torch.arange(40) % 3)
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for inputs, targets in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item())
# What a library holds outlives the script's module: the data set dies when torch is emptied.
torch.held_by_a_library = data
"""


def test_nothing_is_printed_at_the_end_of_a_script_with_all_at_module_level(
    tmp_path: Path,
) -> None:
    done = under_the_exact_plan(tmp_path, AT_MODULE_LEVEL)
    assert done.stderr.count("\n") == 1, done.stderr


FOLDS = """
import gc, weakref, torch
from torch.utils.data import DataLoader, Dataset
gc.disable()
class Fold(Dataset):
    def __init__(self, number): self.number = number
    def __len__(self): return 40
    def __getitem__(self, index): return torch.full((4,), index + self.number / 10), index % 3
alive = []
for fold in range(3):
    torch.manual_seed(fold)
    data, model = Fold(fold), torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(fold, loss.item(), [ref() is not None for ref in alive])
    alive += [weakref.ref(data), weakref.ref(model.weight)]
    del data, model, optimizer, loss, inputs, targets
"""


def test_what_the_script_drops_is_not_kept_alive_and_the_next_is_served_too(tmp_path: Path) -> None:
    done = under_the_exact_plan(tmp_path, FOLDS)
    assert "refused" not in done.stderr
    assert "no_effect" not in done.stderr


HOOKS = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def show(optimizer, args, kwargs):
    print(optimizer.param_groups[0]["foreach"])
optimizer.register_step_pre_hook(show)
optimizer.register_step_post_hook(show)
def closure():
    raise RuntimeError("planted")
for step in range(6):
    model(torch.ones(3, 4)).sum().backward()
    try:
        optimizer.step(closure if step in (0, 3) else None)
    except RuntimeError as error:
        print(error)
    print(step, optimizer.param_groups[0]["foreach"], model.weight.tolist())
"""


def test_hooks_and_failed_steps_of_the_script_see_its_own_optimizer(tmp_path: Path) -> None:
    script = HOOKS.replace("torch.nn.Linear(4, 2)", "torch.nn.Linear(4, 2)\ntorch.manual_seed(0)")
    script = script.replace("import torch\n", "import torch\ntorch.manual_seed(1)\n", 1)
    done = under_the_exact_plan(tmp_path, script)
    # What was not applied says so, as `resident` does where nothing is loaded.
    assert "resident: " in done.stderr
    assert "optimizer: " not in done.stderr


FORKING = """
import os, time, torch
if os.fork() == 0:
    os.close(1); os.close(2)
    time.sleep(10)
    os._exit(0)
os.system("sleep 10 > /dev/null 2>&1 &")
"""


def test_children_that_outlive_the_script_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FORKING)
    outcome = run(Script(path=str(tmp_path / "script.py"), cwd=str(tmp_path)), EXACT_PLAN)
    still_there = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True)
    assert outcome.torch is not None
    assert still_there.returncode == 0


@pytest.mark.slow
def test_closed_standard_streams_are_no_obstacle() -> None:
    for closed in ("<&-", "2>&-"):
        line = f"{sys.executable} -m hotlap run tiny.py --epochs 1 {closed}"
        done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=TINY.parent)
        assert done.returncode == 0, done.stderr
        assert done.stdout == plain_output("--epochs", "1")


CHANGES = """
import copy, io, torch
torch.manual_seed(0)
def save(optimizer):
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(), stream)
    return len(stream.getvalue()), sorted(optimizer.param_groups[0])
def show(optimizer, args, kwargs):
    print(optimizer.param_groups[0].get("foreach"), optimizer.param_groups[0].get("fused"))
for name in ("Adam", "SGD", "RMSprop", "Adadelta", "Adamax", "Rprop", "AdamW", "Adagrad"):
    model = torch.nn.Linear(4, 2)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
    for step in range(12):
        if step == 3:
            optimizer.register_step_pre_hook(show)
            optimizer.register_step_post_hook(show)
        if step == 5 and name == "Adam":
            optimizer.param_groups[0]["lr"] = torch.tensor(1e-3)
        if step == 7:
            optimizer.param_groups[0]["foreach"] = False
        if step == 8:
            optimizer.param_groups[0]["capturable"] = False
        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4) * step).square().mean()
            loss.backward()
            print(save(optimizer), optimizer)
            return loss
        closure()
        optimizer.step(closure if step % 2 else None)
        print(name, step, model.weight.tolist(), save(optimizer))
"""


def test_whatever_a_script_does_to_its_optimizer_it_sees_its_own(tmp_path: Path) -> None:
    under_the_exact_plan(tmp_path, CHANGES)


READS_AHEAD = """
import os, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.full((4,), float(index)), index, os.getpid()

torch.manual_seed(0)
rows, model = Rows(), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader, pids = DataLoader(rows, 4, shuffle=True), set()
for epoch in range(4):
    # The first loader serves two epochs, every later one its own.
    for x, index, pid in loader if epoch < 2 else DataLoader(rows, 4, shuffle=True):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pids.update(pid.tolist())
        print(loss.item(), index.tolist(), x.is_shared(), x.dtype)
    print(loader.collate_fn is torch.utils.data.default_collate, loader.collate_fn([1, 2]))
with open(os.environ["PIDS"], "w") as file:
    print(len(pids), os.getpid() in pids, file=file)
"""


def test_batches_out_of_given_workers_are_those_of_the_script(tmp_path: Path) -> None:
    script, plan = tmp_path / "ahead.py", tmp_path / "workers.toml"
    script.write_text(READS_AHEAD)
    plan.write_text("schema = 1\n[techniques.workers]\ncount = 2\n")
    planned = hotlap_run("--plan", str(plan), str(script), PIDS=str(tmp_path / "planned"))
    plain = hotlap_run(str(script), HOTLAP_OFF="1", PIDS=str(tmp_path / "plain"))
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 24 + 4
    assert (tmp_path / "plain").read_text() == "1 True\n"
    # Two of each iteration, and never the script's own process.
    assert (tmp_path / "planned").read_text() == "8 False\n"
