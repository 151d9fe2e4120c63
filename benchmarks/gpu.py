"""Everything on a GPU: its tests, the two tasks that count, ceilings, and each technique.

    python -m benchmarks gpu [PART ...] [--budget SECONDS] [--out DIR] [--resume [FILE]]
        [--device cuda] [--dry-run]

Parts run in the order of what they teach, each in a process of its own. All rows go to
DIR/gpu.jsonl, each as soon as it is measured: what is stopped loses nothing. Beside it lie
junit.xml, env.json, gpu.log and two traces; never more than eight files. DIR is $OUT where that is
set, else build/gpu.

A part has a price, in seconds on a large GPU: what does not fit into the rest of the budget is
left out, and said to be. `--resume` leaves out what ended well in an earlier gpu.jsonl (of DIR, if
no file is named), so that the same command goes on:

    python -m benchmarks gpu --budget 540
    python -m benchmarks gpu --budget 540 --resume earlier/gpu.jsonl
    python -m benchmarks gpu --budget 540 --dry-run

What a machine without a network must be given, beside the repository: wheels of cyclopts,
docstring_parser and rich_rst where torch, numpy, safetensors, rich, psutil, pillow and pytest are
there (the part `env` lists what is missing); PYTHONPATH=src where hotlap is not installed. Data are
not needed: without FashionMNIST images are random, and without a text Python's own library is read.
nanoGPT is measured where NANOGPT names a copy of its model.py.
`--quick --device cpu` runs all of it in small, anywhere. `--dry-run` lists the parts, what each
needs and its price, and which of them a call would come to; so does a call without a GPU.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.__main__ import Result
from benchmarks.gpu_rows import Rows, read, state
from hotlap.errors import unknown_name
from hotlap.host.facts import Host

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "gpu"
CACHE = ROOT / "build" / "gpu-cache"
"""Compiled kernels, which parts share."""
ROWS, LOG = "gpu.jsonl", "gpu.log"
TRACES = ("trace-mlp.json.gz", "trace-gpt.json.gz")
HOLDS = (ROWS, LOG, "env.json", "junit.xml", "junit-warnings.xml", *TRACES)
"""Files that are left at most: some machines give back no more than eight."""
LOG_LIMIT = 2**22
_QUICK_LIMIT_S = 1200.0
_LATE_S = 15.0
"""A part is told to end by itself this long before it is stopped."""


@dataclass(frozen=True)
class Part:
    """One process.

    Attributes:
        price_s: what it takes on a large GPU; it is stopped after twice of that.
    """

    name: str
    what: str
    price_s: float
    needs: str = ""
    """What must be there beside a GPU and torch, in words."""
    command: tuple[str, ...] = ()


_TRITON = "triton, a C compiler"
_IMAGES = "FashionMNIST, else random images"
_TUNE = "cyclopts, docstring_parser, rich_rst"
PARTS = (
    Part("env", "versions, the device, and what is missing", 30),
    Part("tests", "the tests marked gpu", 110, "pytest; pytest-xdist for four at a time"),
    Part("mlp", "the lecture's MLP: its plain loop, by hand, the engine; in turns", 180, _IMAGES),
    Part("gpt", "GPT-2 124M: tokens a second and share of its peak; by hand, ours", 300, _TRITON),
    Part("loss", "a loss with its gradient by hotlap's kernel and by Inductor", 40, _TRITON),
    Part("launches", "what the launch of a graph costs the host, by its nodes", 20),
    Part("mlp-run", "the lecture's MLP: seconds of whole epochs", 60, _IMAGES),
    Part("gpt-ladder", "GPT-2 124M: one change of the engine's plan at a time", 450, _TRITON),
    Part("waits", "what a step waits for, and where, under each kind of step", 60),
    Part("ceilings", "products of random numbers and copies", 40),
    Part("killed", "a run under a graph, ended by SIGKILL and resumed to the same bits", 45),
    Part("tuned", "`hotlap tune` of a recipe, and of scripts on the GPU and beside it", 330, _TUNE),
    Part("predicted", "memory as it is predicted, allocated, reserved, and used", 90),
    Part("too-large", "steps that do not fit into memory, and what becomes of the run", 40),
    Part("graph", "short kernels as they come, fused, and as one CUDA graph", 60),
    Part("attention", "causal attention by each of torch's kernels", 40),
    Part("precision", "float32, TF32, autocast, bfloat16 weights with masters", 90),
    Part("compile", "a decoder compiled as a whole and by blocks", 120, _TRITON),
    Part("compile-loss", "a decoder compiled with its loss, and as one graph", 120, _TRITON),
    Part("feed", "batches moved in time, pinned ahead, or gathered on the device", 60),
    Part("copies", "copies to the device from pageable and pinned memory", 20),
    Part("memory", "peak bytes under what is said to save some", 90),
    Part("saving", "seconds of a checkpoint by its stages", 40, "2 GB on the disk"),
    Part("stopped", "turns beside stopped processes that hold memory, as in a race", 60),
)
"""In the order of what they teach."""


def parts() -> dict[str, Part]:
    """Return all parts by name, in the order in which they run."""
    return {part.name: part for part in PARTS}


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Run the parts that were named, or all; for options see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu")
    parser.add_argument("part", nargs="*")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds, of all parts")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or OUT))
    parser.add_argument("--resume", type=Path, nargs="?", const=Path(), metavar="FILE")
    parser.add_argument("--device")
    parser.add_argument("--dry-run", action="store_true", help="list the parts, and run none")
    args = parser.parse_args(argv)
    every = parts()
    for name in args.part:
        if name not in every:
            parser.error(unknown_name(name, every, "part"))
    if args.budget <= 0:
        parser.error(f"--budget {args.budget:g} is not allowed. Allowed: seconds above 0.")
    chosen = [every[name] for name in args.part or every]
    import torch

    if args.resume == Path():
        args.resume = args.out / ROWS
    try:
        known = read(args.resume) if args.resume is not None else []
    except ValueError as error:
        parser.error(str(error))
    has_device = args.device is not None or torch.cuda.is_available()
    if args.dry_run or not has_device:
        return _listed(chosen, known, args.budget, args.out, has_device)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.resume is None:
        (args.out / ROWS).unlink(missing_ok=True)
    (args.out / LOG).unlink(missing_ok=True)
    return Session(args.out, args.device or "cuda", quick, args.budget).run(chosen, known, host)


def _listed(
    chosen: list[Part], known: list[dict[str, Any]], budget_s: float, out: Path, has_device: bool
) -> Result:
    """Return the parts with what they need and their price, and which of them would be run."""
    done, left, rows = _done(known), budget_s, list[dict[str, Any]]()
    for part in chosen:
        state = "done before" if part.name in done else "would run"
        if state == "would run" and part.price_s > left:
            state = "not reached"
        if state == "would run":
            left -= part.price_s
        rows.append(
            {
                "part": part.name,
                "what": part.what,
                "needs": part.needs,
                "seconds": part.price_s,
                "this call": state,
            }
        )
    why = "" if has_device else "There is no CUDA device here; "
    words = f"{why}nothing was run. On a GPU all rows go to {out / ROWS}"
    return Result(rows=rows, notes=[f"{words}; `--quick --device cpu` shows that the parts work."])


def _done(known: list[dict[str, Any]]) -> set[str]:
    return {row["part"] for row in known if row.get("ended") == "well"}


class Session:
    """One call: parts, one after another, as far as the budget goes.

    Args:
        out: folder of all that is kept.
        device: as torch names it.
        quick: tiny sizes.
        budget_s: seconds for all of it.
    """

    def __init__(self, out: Path, device: str, quick: bool, budget_s: float) -> None:
        self.out, self.device, self.quick = out, device, quick
        self._ends = time.monotonic() + budget_s

    def run(self, chosen: list[Part], known: list[dict[str, Any]], host: Host) -> Result:
        """Run parts that did not end well before; the result is what this call's rows say."""
        done = _done(known)
        before = len(read(self.out / ROWS))
        result = Result(notes=[f"rows in {self.out / ROWS}"])
        Rows(self.out / ROWS, "").add(host=host.cpu, device=self.device, quick=self.quick)
        # Stopped by a scheduler, no part outlives this process.
        previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        holder = _context(self.device)
        try:
            for part in chosen:
                if part.name in done:
                    result.rows.append({"part": part.name, "ended": "well, before", "seconds": 0})
                else:
                    result.rows.append(self._part(part))
        finally:
            if holder is not None:
                holder.communicate()
            signal.signal(signal.SIGTERM, previous)
        for row in read(self.out / ROWS)[before:]:
            for key, value in row.items():
                if "way" in row and isinstance(value, int | float):
                    result.figures[f"{row['part']}: {row['way']}: {key}"] = value
        result.failed = any(row["ended"].startswith(("with", "stopped")) for row in result.rows)
        return result

    def _part(self, part: Part) -> dict[str, Any]:
        rows = Rows(self.out / ROWS, part.name)
        left = self._ends - time.monotonic()
        if part.price_s > left:
            told = {"ended": f"not reached: {part.price_s:g} s, {left:.0f} s were left"}
        else:
            rows.add(began=time.time(), state=state())
            # Prices are those of a large GPU.
            limit_s = _QUICK_LIMIT_S if self.quick else 2 * part.price_s
            told = done(self._with_command(part), self.out, min(limit_s, left))
            told["state"] = state()
        rows.add(**told)
        seconds = told.get("seconds", 0)
        print(f"{part.name}: {told['ended']}, {seconds} s", file=sys.stderr, flush=True)
        return {"part": part.name, "ended": told["ended"], "seconds": seconds}

    def _with_command(self, part: Part) -> Part:
        command = (sys.executable, "-m", "benchmarks.on_gpu", part.name, "--device", self.device)
        command += ("--rows", str(self.out / ROWS), "--out", str(self.out))
        return replace(part, command=(*command, *(("--quick",) if self.quick else ())))


def _context(device: str) -> subprocess.Popen[bytes] | None:
    """Start a process that keeps the device awake until its standard input ends."""
    if not device.startswith("cuda"):
        return None
    hold = f"import sys, torch; kept = torch.ones(1, device={device!r}); sys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE)


def done(part: Part, out: Path, limit_s: float) -> dict[str, Any]:
    """Run a part to its end or its limit; return how it ended. What it says goes to the log."""
    begin = time.monotonic()
    told_s = max(limit_s - _LATE_S, limit_s / 2)
    is_ours = "benchmarks.on_gpu" in part.command
    command = (*part.command, "--limit", str(told_s)) if is_ours else part.command
    with open(out / LOG, "ab") as log:
        log.write(f"== {part.name}\n".encode())
        log.flush()
        place = log.tell()
        # A process group of its own: a part may have processes that would outlive it.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
            ended = "well" if code == 0 else f"with {code}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {limit_s:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    content = (out / LOG).read_bytes()
    _shorten(out / LOG)
    said = content[place:].decode(errors="replace").splitlines()
    return {
        "ended": ended,
        "seconds": round(time.monotonic() - begin, 1),
        "said": [] if ended == "well" else said[-20:],
    }


def _shorten(log: Path) -> None:
    """Keep the end of a log that has grown too long to be sent back."""
    content = log.read_bytes()
    if len(content) > LOG_LIMIT:
        log.write_bytes(b"...\n" + content[-LOG_LIMIT // 2 :])


def _environment() -> dict[str, str]:
    given = os.environ.get("PYTHONPATH")
    paths = [str(ROOT / "src"), str(ROOT), *([given] if given else [])]
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"),
        "TRITON_CACHE_DIR": str(CACHE / "triton"),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }
