"""How long a proof takes beside the plain run of as many steps, on both FashionMNIST models.

The proof is made as `tune` makes it: the plain script and the plan are followed at the same time,
from their start. The plain script runs by itself before each proof, for one epoch and its
evaluation; its time is taken in proportion to the steps. Both include their start.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.__main__ import Result
from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab.proving import Prover
from hotlap.lab.statistics import spread
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import registry

FOLDER = Path(__file__).parents[1] / "examples" / "fashion_mnist"
PLAN = Plan({"optimizer": {"implementation": "fused"}})
EPOCH = 938
"""Steps of an epoch."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--steps N`, `--rounds N`, `--model NAME`, `--threads N` (repeatable)."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks proof")
    parser.add_argument("--steps", type=int, default=60 if quick else 1000)
    parser.add_argument("--rounds", type=int, default=1 if quick else 3)
    parser.add_argument("--model", action="append", choices=["mlp", "cnn"])
    parser.add_argument("--threads", action="append", type=int)
    args = parser.parse_args(argv)
    result = Result()
    for model in args.model or ["mlp", "cnn"]:
        for threads in args.threads or [1, 2]:
            os.environ["OMP_NUM_THREADS"] = str(threads)
            _measure(result, model, threads, args.steps, args.rounds)
    result.notes.append("Seconds: the median of the rounds, and their range.")
    return result


def _measure(result: Result, model: str, threads: int, steps: int, rounds: int) -> None:
    plain, proofs, tiers = [], [], set()
    for _ in range(rounds):
        plain.append(_plain_s(model) * steps / EPOCH)
        seconds, tier = _proof_s(model, steps)
        proofs.append(seconds)
        tiers.add(tier)
    ratio = spread([b / a for a, b in zip(plain, proofs, strict=True)])
    result.figures[f"{model}, {threads} threads: proof_by_plain"] = ratio.median
    result.rows.append(
        {
            "model": model,
            "threads": threads,
            "steps": steps,
            "plain s": f"{spread(plain).median:.1f} ({min(plain):.1f} to {max(plain):.1f})",
            "proof s": f"{spread(proofs).median:.1f} ({min(proofs):.1f} to {max(proofs):.1f})",
            "ratio": f"{ratio.median:.2f}",
            "verdict": ", ".join(sorted(tiers)),
        }
    )
    print(*result.rows[-1].values(), sep="  ", file=sys.stderr, flush=True)


def _plain_s(model: str) -> float:
    command = [sys.executable, "plain.py", "--model", model, "--epochs", "1"]
    begin = time.perf_counter()
    subprocess.run(command, cwd=FOLDER, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def _proof_s(model: str, steps: int) -> tuple[float, str]:
    script = Script(path="plain.py", args=("--model", model, "--epochs", "3"), cwd=str(FOLDER))
    with Lab(script) as lab:
        begin = time.perf_counter()
        prover = Prover(lab, steps, registry(), at_once=True)
        prover.run_plain()
        verdict = prover.prove(PLAN)
        return time.perf_counter() - begin, verdict.tier
