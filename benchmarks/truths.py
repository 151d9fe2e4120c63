"""Honest techniques on training loops of many kinds: does a verdict call one of them a change?"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.__main__ import Result
from benchmarks.truths_kinds import KINDS
from hotlap.attach.entry import Script
from hotlap.errors import HotlapError
from hotlap.host.facts import Host
from hotlap.lab.proving import Prover
from hotlap.lab.subject import RecipeRun, Subject
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import registry

ROOT = Path(__file__).parents[1]
PLANS = {
    "resident": {"resident": {}},
    "foreach": {"optimizer": {"implementation": "foreach"}},
    "fused": {"optimizer": {"implementation": "fused"}},
    "channels_last": {"channels_last": {}},
    "threads": {"threads": {"count": 1}},
}
ON_RECIPES = {
    "micro_batch": {"micro_batch": {"size": 2}},
    "recompute": {"recompute": {}},
    "reader_threads": {"reader_threads": {"count": 2}},
}
_NOISY = ("vae", "diffusion", "gan", "annealed", "drawing", "ahead", "carrying", "carrying_loaded")


def subjects() -> dict[str, Subject]:
    """Return scripts of many kinds, and the examples."""
    here = str(ROOT / "benchmarks")
    found: dict[str, Subject] = {
        kind.__name__: Script(path="truths_kinds.py", args=(kind.__name__,), cwd=here)
        for kind in KINDS
    }
    for kind in _NOISY:
        found[kind] = Script(path="noisy.py", args=(kind,), cwd=str(ROOT / "tests" / "lab"))
    for folder in sorted((ROOT / "examples").iterdir()):
        if (folder / "plain.py").exists():
            found[folder.name] = Script(path="plain.py", cwd=str(folder))
            found[f"{folder.name} recipe"] = RecipeRun("recipe.py", cwd=str(folder))
    found["fashion_mnist CNN"] = Script(
        path="plain.py", args=("--model", "cnn"), cwd=str(ROOT / "examples" / "fashion_mnist")
    )
    return found


def run(argv: list[str], *, quick: bool, host: Host) -> Result:  # noqa: ARG001
    """Measure; options: `--steps N`, `--rounds N`, `--subject NAME` (repeatable)."""
    known = subjects()
    parser = argparse.ArgumentParser(prog="python -m benchmarks truths")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1 if quick else 2)
    parser.add_argument("--subject", action="append", choices=list(known))
    args = parser.parse_args(argv)
    result = Result()
    for name in args.subject or known:
        for row in _proofs(name, known[name], args.steps, args.rounds):
            result.rows.append(row)
            print(*row.values(), sep="  ", file=sys.stderr, flush=True)
    tiers = [row["verdict"] for row in result.rows if row["applied"]]
    result.figures = {"proofs": len(tiers)} | {tier: tiers.count(tier) for tier in sorted({*tiers})}
    result.notes.append(", ".join(f"{name}: {value}" for name, value in result.figures.items()))
    result.failed = "changed" in tiers
    return result


def _proofs(name: str, subject: Subject, steps: int, rounds: int) -> Iterator[dict[str, Any]]:
    os.environ.pop("HOTLAP_DATA", None)
    with Lab(subject) as lab:
        prover = Prover(lab, steps, registry())
        prover.run_plain()
        plans = {**PLANS, **(ON_RECIPES if subject.step_owner == "engine" else {})}
        for number in range(rounds):
            for technique, values in plans.items():
                try:
                    verdict = prover.prove(Plan(values))
                except HotlapError as error:
                    yield _row(name, number, technique, False, "", str(error).splitlines()[0])
                    continue
                applied = all(row["state"] == "applied" for row in prover.applied)
                yield _row(name, number, technique, applied, verdict.tier, verdict.evidence)


def _row(
    subject: str, number: int, technique: str, applied: bool, tier: str, why: str
) -> dict[str, Any]:
    told = why if tier in ("changed", "unproven", "") else ""
    return {
        "subject": subject,
        "round": number + 1,
        "technique": technique,
        "applied": applied,
        "verdict": tier,
        "why": told,
    }
