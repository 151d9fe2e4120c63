"""Everything on a GPU: its tests, each technique's measurement, and the other benchmarks.

    python -m benchmarks gpu [PART ...] [--out DIR]

Each part is a process of its own with three minutes at most, and leaves DIR/PART.json. Without a
GPU this lists what it would do. A package that is not installed is found with PYTHONPATH=src.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.__main__ import NAMES, Result
from hotlap.errors import unknown_name
from hotlap.host import Host

ROOT = Path(__file__).parents[1]
LIMIT_S = 180.0
OUT = ROOT / "build" / "gpu"
_HERE = {"gpu", "honest"}
"""Benchmarks that are no part: this one, and one that is about tuning scripts on a CPU."""
_ON_THE_CPU = {
    "lecture": ("--model", "mlp", "--quick"),
    "overhead": ("--quick",),
    "feed": ("--quick",),
}
"""Benchmarks whose loops by hand are for the CPU: run there, and shortly."""


@dataclass(frozen=True)
class Part:
    """One process."""

    name: str
    what: str
    command: tuple[str, ...]
    sees_gpu: bool = True


def parts(quick: bool = False) -> dict[str, Part]:
    """Return all parts by name, in the order in which they run."""
    python = sys.executable
    short = ("--quick",) if quick else ()
    found = [Part("tests", "the tests marked gpu", (python, "-m", "pytest", "-q", "-m", "gpu"))]
    for name, what in MEASURED.items():
        found.append(Part(name, what, (python, "-m", "benchmarks.on_gpu", name, *short)))
    for name, what in NAMES.items():
        if name in _HERE:
            continue
        more = _ON_THE_CPU.get(name, short)
        where = " (on the host's CPU)" if name in _ON_THE_CPU else ""
        command = (python, "-m", "benchmarks", name, "--json", *more)
        found.append(Part(f"bench-{name}", what + where, command, sees_gpu=name not in _ON_THE_CPU))
    return {part.name: part for part in found}


MEASURED = {
    "copies": "copies to the device from pageable and pinned memory",
    "feed": "batches moved in time, pinned ahead, or gathered on the device",
    "graph": "short kernels as they come, fused, and as one CUDA graph",
    "precision": "float32, TF32, autocast, bfloat16 weights with masters",
    "attention": "causal attention by each of torch's kernels",
    "compile": "a decoder compiled as a whole and by blocks",
    "compile-loss": "a decoder compiled with its loss, and that as one CUDA graph",
    "memory": "peak bytes under what is said to save some",
}
"""Parts of `on_gpu`."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Run the parts that were named, or all; options: `--out DIR`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu")
    parser.add_argument("part", nargs="*")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    every = parts(quick)
    for name in args.part:
        if name not in every:
            parser.error(unknown_name(name, every, "part"))
    chosen = [every[name] for name in args.part or every]
    import torch

    if not torch.cuda.is_available():
        return _listed(chosen, args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cpu": host.cpu}
    result = Result(notes=[f"{device['device']}, torch {torch.__version__}; results in {args.out}"])
    for part in chosen:
        document = {**device, **done(part)}
        (args.out / f"{part.name}.json").write_text(json.dumps(document, indent=2) + "\n")
        result.rows.append(
            {"part": part.name, "ended": document["ended"], "seconds": document["seconds"]}
        )
        result.figures |= {f"{part.name}: {k}": v for k, v in document["figures"].items()}
        print(f"{part.name}: {document['ended']}, {document['seconds']} s", file=sys.stderr)
    return result


def _listed(chosen: list[Part], out: Path) -> Result:
    rows = [{"part": part.name, "what": part.what} for part in chosen]
    return Result(
        rows=rows,
        notes=[
            "There is no CUDA device here; nothing was run. On a GPU each part takes at most "
            f"{LIMIT_S / 60:g} minutes and leaves {out}/PART.json."
        ],
    )


def done(part: Part, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run a part to its end or its limit; return what it measured, and how it ended."""
    environment = {**os.environ, "PYTHONPATH": _path()}
    if not part.sees_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    begin = time.monotonic()
    # A process group of its own: a part may have processes that would outlive it.
    process = subprocess.Popen(
        part.command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
        ended = "well" if process.returncode == 0 else f"with {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, errors = process.communicate()
        ended = f"stopped after {limit_s:g} s"
    try:
        measured = json.loads(output)
    except json.JSONDecodeError:
        measured = {}
    return {
        "part": part.name,
        "command": " ".join(("python", *part.command[1:])),
        "ended": ended,
        "seconds": round(time.monotonic() - begin, 1),
        "figures": measured.get("figures", {}),
        "rows": measured.get("rows", []),
        "notes": measured.get("notes", []),
        "output": [] if measured else output.splitlines()[-40:],
        "errors": errors.splitlines()[-20:],
    }


def _path() -> str:
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT / "src"), str(ROOT), *([given] if given else [])])
