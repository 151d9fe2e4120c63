"""Whole runs on a GPU: what the host waits for, what was predicted, what fails, and what a save is.

    python -m benchmarks.on_gpu_runs RUN_DIR DEVICE

trains a small run under a graph, resumes it if RUN_DIR holds one, and prints a digest of what was
learned: the part `killed` ends such a process in the middle.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import hotlap
from benchmarks.gpu_turns import (
    FUSED,
    RESIDENT,
    Engine,
    Sizes,
    Way,
    attempted,
    forget,
    memory,
    tell,
)
from benchmarks.on_gpu import decoder, mlp
from hotlap.checkpoint.write import content_of
from hotlap.device.accelerator import Cuda, device_of
from hotlap.engine.build import BuiltRun, build
from hotlap.engine.memory.limit import Limit, enforce
from hotlap.engine.state.content import capture
from hotlap.engine.state.position import Position
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan
from hotlap.schedules import warmup_cosine

ROOT = Path(__file__).parents[1]
GRAPH: dict[str, dict[str, Any]] = {**RESIDENT, "cuda_graph": {}}
HOST: dict[str, dict[str, Any]] = {"resident": {"where": "host"}}
_STEPS = 24
"""Of the run that is killed."""


def waits(sizes: Sizes) -> None:
    """How often a step makes the host wait for the device, and where: for a value that it reads, by
    torch's own count, and for an event. How long it waits neither of them says."""
    plain, scheduled = mlp(sizes), replace(mlp(sizes), schedule=warmup_cosine(total=10**6))
    clipped = replace(plain, clip_norm=1.0)
    ways: dict[str, tuple[hotlap.Task, dict[str, Any]]] = {
        "moved as they come": (plain, {}),
        "pinned": (plain, {**HOST, "pinned": {}}),
        "on the device": (plain, RESIDENT),
        "fused": (plain, {**RESIDENT, **FUSED}),
        "fused, clipped": (clipped, {**RESIDENT, **FUSED}),
        "fused, schedule": (scheduled, {**RESIDENT, **FUSED}),
        "graph": (plain, GRAPH),
        "graph, clipped": (clipped, GRAPH),
        "graph, schedule": (scheduled, GRAPH),
    }
    for name, (task, plan) in ways.items():
        attempted(name, lambda n=name, t=task, p=plan: _waits(n, t, p, sizes), sizes)


def _waits(name: str, task: hotlap.Task, plan: dict[str, Any], sizes: Sizes) -> None:
    engine, steps = Engine(task, plan, sizes), 20
    # Into the second epoch: rows and their order are there.
    engine(2 * (task.steps_per_epoch or 0) + 3 if sizes.is_small else 1200)
    hardware = engine.built.hardware
    reads, waits = list[str](), list[str]()
    if isinstance(hardware, Cuda):
        with hardware.host_reads() as reads, _event_waits(hardware) as waits:
            engine(steps)
    else:
        engine(steps)
    places = Counter(place.removeprefix(f"{ROOT}/") for place in reads + waits)
    sizes.rows.add(
        way=name,
        reads_per_step=len(reads) / steps,
        event_waits_per_step=len(waits) / steps,
        places=dict(places.most_common(6)),
    )
    engine.end()
    forget()


@contextlib.contextmanager
def _event_waits(hardware: Cuda) -> Iterator[list[str]]:
    """Collect `file:line` of every place in the block where this thread waits for an event: of
    these torch's debug mode says nothing."""
    found, wait, mine = list[str](), type(hardware).wait_on_host, threading.get_ident()

    def noted(device: Cuda, event: Any) -> None:
        # The thread of `pinned` waits for its own copies, which no step does.
        if threading.get_ident() == mine:
            caller = sys._getframe(1)
            found.append(f"{caller.f_code.co_filename}:{caller.f_lineno}")
        wait(device, event)

    with patch.object(type(hardware), "wait_on_host", noted):
        yield found


def predicted(sizes: Sizes) -> None:
    """Peak memory as `--estimate` predicts it, and as the allocator and the driver count it."""
    task = decoder(sizes)
    plans: dict[str, dict[str, Any]] = {
        "plain": {},
        "fused": FUSED,
        "autocast": {**FUSED, "autocast": {}},
        "masters": {**FUSED, "master_weights": {}},
        "micro_batch": {**FUSED, "micro_batch": {"size": 2}},
        "recompute": {**FUSED, "recompute": {}},
        "resident": {**FUSED, **RESIDENT},
        "graph": GRAPH,
    }
    for name, plan in plans.items():
        attempted(name, lambda n=name, p=plan: _predicted(n, task, p, sizes), sizes)
        if sizes.left_s() < 10:
            return


def _predicted(name: str, task: hotlap.Task, plan: dict[str, Any], sizes: Sizes) -> None:
    found = hotlap.estimate(
        task,
        Plan(plan),
        device=sizes.device.name,
        memory_bytes=None if sizes.is_cuda else 2**36,
        find_largest=False,
    )
    way = Way(name, lambda: Engine(task, plan, sizes), sizes)
    sizes.rows.add(
        way=name, predicted_bytes=found.needed_bytes, peak_bytes=way.peak_bytes, **memory(sizes)
    )
    way.end()


def too_large(sizes: Sizes) -> None:
    """Steps that do not fit: real errors of the allocator, and what the run makes of them."""
    task = replace(decoder(sizes), epochs=None, steps=6)
    if not sizes.is_cuda:
        sizes.rows.add(way="half of a step", skipped="there is no device to fill")
        return
    hardware = sizes.device
    way = Way("a whole step", lambda: Engine(_lasting(task), FUSED, sizes), sizes)
    needed = way.peak_bytes
    way.end()
    forget()
    for share in (0.7, 0.1):
        room = torch.cuda.memory_reserved(hardware.name) + int(share * needed)
        with enforce(Limit(hardware, room)):
            done = attempted(
                f"in {share:g} of what it needs",
                lambda: hotlap.train(task, Plan(FUSED), device=hardware.name),
                sizes,
            )
        if done is not None:
            retries = [[each.step, each.samples, each.then] for each in done.retries]
            sizes.rows.add(way=f"in {share:g} of what it needs", retries=retries, steps=done.steps)
        del done
        forget()


def _lasting(task: hotlap.Task) -> hotlap.Task:
    return replace(task, epochs=None, steps=10**6)


def killed(sizes: Sizes) -> None:
    """A run under a graph, ended by SIGKILL and resumed: the same bits as a whole one."""
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder, "whole"), Path(folder, "parts")
        expected = _run(whole, sizes).communicate()[0]
        begun = _run(parts, sizes)
        deadline = time.monotonic() + max(30.0, sizes.left_s() / 2)
        while not list(parts.glob("ckpt/step-*/MANIFEST.json")) and time.monotonic() < deadline:
            if begun.poll() is not None:
                break
            time.sleep(0.02)
        begun.send_signal(signal.SIGKILL)
        begun.communicate()
        at = sorted(path.name for path in parts.glob("ckpt/step-*"))
        again = _run(parts, sizes)
        found = again.communicate()[0]
    if again.returncode or not expected.strip():
        raise RuntimeError(f"a run ended with {again.returncode} and gave {found!r}")
    sizes.rows.add(
        way="resumed after SIGKILL",
        killed_with=begun.returncode,
        after=at[-1:],
        is_equal=found == expected,
        **json.loads(found),
    )
    if found != expected:
        raise RuntimeError(f"resumed: {found!r}, whole: {expected!r}")


def _run(run_dir: Path, sizes: Sizes) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.on_gpu_runs", str(run_dir), sizes.device.name]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _train(run_dir: str, device: str) -> None:
    sizes = Sizes(device_of(device), 1, 0.0, True)
    # Data, too, are the same in each process.
    torch.manual_seed(0)
    task = replace(
        mlp(sizes), epochs=None, steps=_STEPS, schedule=warmup_cosine(total=_STEPS, warmup=4)
    )
    done = hotlap.train(
        task,
        Plan(GRAPH if sizes.is_cuda else RESIDENT),
        device=device,
        run_dir=run_dir,
        resume="auto",
        save_every="4steps",
        # So that there is a middle in which it can be killed.
        progress=lambda _: time.sleep(0.5),
    )
    content = hashlib.sha256()
    for tensor in done.model.state_dict().values():
        content.update(tensor.cpu().contiguous().numpy().tobytes())
    print(json.dumps({"learned": content.hexdigest()[:16], "steps": done.steps}))


def saving(sizes: Sizes) -> None:
    """Seconds of a save by its stages, while training stands still: collect, copy, hash, write."""
    built: BuiltRun = build(
        _lasting(decoder(sizes)), Plan({**RESIDENT, **FUSED}), device=sizes.device.name
    )
    steps = steps_of(built)
    next(steps)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 + sizes.rounds // 2):
            next(steps)
            sizes.device.synchronize()
            marks = [time.perf_counter()]
            tensors, _ = capture(built, Position(number))
            sizes.device.synchronize()
            marks.append(time.perf_counter())
            contents = {name: content_of(group) for name, group in tensors.items() if group}
            marks.append(time.perf_counter())
            for content in contents.values():
                hashlib.sha256(content).hexdigest()
            marks.append(time.perf_counter())
            for name, content in contents.items():
                _write(Path(folder, name), content)
            marks.append(time.perf_counter())
            stages = ("collect_s", "copy_s", "hash_s", "write_s")
            took = [end - begin for begin, end in itertools.pairwise(marks)]
            size = sum(map(len, contents.values()))
            sizes.rows.add(way=f"save {number}", bytes=size, **dict(zip(stages, took, strict=True)))
    built.end()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


_SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

device = "{device}"
data = TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,)))
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2000):
    for inputs, labels in DataLoader(data, batch_size=16, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def tuned(sizes: Sizes) -> None:
    """`hotlap tune` from its start to its end: a recipe, a script on the device, and one on the
    CPU of the same machine."""
    budget_s = 20 if sizes.is_small else max(30, min(90, int(sizes.left_s() / 4)))
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "recipe.py")
        shutil.copy(ROOT / "tests" / "tiny_recipe.py", recipe)
        scripts = {"on_device.py": sizes.device.name}
        if sizes.is_cuda:
            scripts["on_cpu.py"] = "cpu"
        for name, device in scripts.items():
            Path(folder, name).write_text(_SCRIPT.replace("{device}", device))
        for path, args in (
            (recipe, ["--epochs", "2000"]),
            *((Path(folder, name), []) for name in scripts),
        ):
            attempted(path.name, lambda p=path, a=args: _tuned(p, a, budget_s, sizes), sizes)


def _tuned(path: Path, args: list[str], budget_s: float, sizes: Sizes) -> None:
    command = [sys.executable, "-m", "hotlap", "tune", "--json", "--budget", f"{budget_s}s"]
    begin = time.monotonic()
    done = subprocess.run(
        [*command, path.name, *args],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=max(60.0, min(sizes.left_s(), 3 * budget_s + 120)),
    )
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "no words")
    told = json.loads(done.stdout)
    sizes.rows.add(
        way=path.name,
        exit_code=done.returncode,
        seconds=time.monotonic() - begin,
        outcome=told.get("outcome"),
        reason=told.get("reason"),
        plan=told.get("plan"),
        device=(told.get("trace") or {}).get("facts", {}).get("device"),
        techniques=[[row.get("name"), row.get("state")] for row in told.get("techniques", ())],
    )


def stopped(sizes: Sizes) -> None:
    """Turns of one loop beside stopped processes that hold memory of the device, as in a race."""
    task = mlp(sizes)
    way = Way("alone", lambda: Engine(task, {**RESIDENT, **FUSED}, sizes), sizes)
    base: list[float] = []
    for count in (0, 2, 0) if sizes.is_small else (0, 2, 8, 0):
        with _beside(count, sizes) as held:
            way.name = f"{count} stopped"
            values = [way.turn() for _ in range(max(2, sizes.rounds))]
        base = base or values
        tell(sizes, f"{count} stopped", values, task.logical_batch, base)
        sizes.rows.add(way=f"{count} stopped", **held)
    way.end()


@contextlib.contextmanager
def _beside(count: int, sizes: Sizes) -> Iterator[dict[str, int]]:
    code = (
        f"import sys, torch; kept = torch.ones(2**20, device={sizes.device.name!r}); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
        yield memory(sizes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


PARTS: dict[str, Callable[[Sizes], None]] = {
    "waits": waits,
    "predicted": predicted,
    "too-large": too_large,
    "killed": killed,
    "saving": saving,
    "tuned": tuned,
    "stopped": stopped,
}


if __name__ == "__main__":
    _train(sys.argv[1], sys.argv[2])
