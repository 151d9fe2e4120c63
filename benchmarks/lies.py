"""Techniques that change what is learned are planted: does a verdict let one of them through?

Each lie is told at the size at which earlier verdicts missed it, and at three times and a third of
that, to scripts and to recipes. What is smaller than the limit that a verdict itself states may
pass; nothing else may.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.__main__ import Result
from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab.proving import Prover
from hotlap.lab.subject import RecipeRun, Subject
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.techniques import registry

ROOT = Path(__file__).parents[1]
_FASHION = ROOT / "examples" / "fashion_mnist"
_EPOCHS = ("--epochs", "1000")
SUBJECTS: dict[str, Subject] = {
    "MLP script": Script(path="plain.py", args=_EPOCHS, cwd=str(_FASHION)),
    "CNN script": Script(path="plain.py", args=("--model", "cnn", *_EPOCHS), cwd=str(_FASHION)),
    "second script": Script(path="lies_script.py", args=_EPOCHS, cwd=str(ROOT / "benchmarks")),
    "MLP recipe": RecipeRun("recipe.py", _EPOCHS, cwd=str(_FASHION)),
    "second recipe": RecipeRun("lies_recipe.py", (), cwd=str(ROOT / "benchmarks")),
    "normalizing script": Script(
        path="lies_normalizing.py", args=_EPOCHS, cwd=str(ROOT / "benchmarks")
    ),
    "taught script": Script(path="lies_taught.py", args=_EPOCHS, cwd=str(ROOT / "benchmarks")),
}
TAUGHT = ("taught script",)
NORMALIZING = ("normalizing script",)
TRAINED_ALONE = tuple(name for name in SUBJECTS if name not in (*TAUGHT, *NORMALIZING))
SCRIPTS = ("MLP script", "CNN script", "second script")
SECOND = ("second script", "second recipe")
SECOND_SCRIPT = ("second script",)
_GRADIENT = "gradient, in all steps"
RECIPES = ("MLP recipe", "second recipe")
UNCLIPPED = ("MLP script", "CNN script", "MLP recipe")


@dataclass(frozen=True)
class Lie:
    """One way to change what is learned."""

    name: str
    """Of the technique in `lies_planted`, in small letters."""
    sizes: tuple[float, ...]
    meant: tuple[str, ...]
    """The checks that are made to see it; one of them must."""
    subjects: tuple[str, ...] = TRAINED_ALONE
    limit: str = ""
    """The verdict's limit that the size is to be compared with."""


LIES = (
    Lie("freeze_layer", (0, 1, 2), ("start", "participation")),
    Lie("freeze_biases", (1,), ("start", "participation")),
    Lie("drop_last_gradient", (1, 3, 10), ("participation", "delivery", "gradient")),
    Lie("other_seed", (1, 2, 3), ("start",)),
    Lie("scaled_start", (0.2, 0.6, 0.07), ("start",)),
    Lie("rounded_start", (8, 3, 11), ("start",)),
    Lie("shrink", (1e-3, 3e-3, 3e-4), ("custody",), (*TRAINED_ALONE, *NORMALIZING)),
    Lie("shrink_at_read", (1e-4, 3e-4, 3e-5), ("custody",), SCRIPTS),
    Lie("round_moments", (8, 3, 11), ("custody",)),
    Lie("forget_moments", (10, 3, 30), ("custody",)),
    Lie("same_mask", (1, 3, 10), ("random",), SECOND),
    Lie("fixed_mask", (1,), ("random", "gradient"), SECOND),
    Lie("dropout_off", (10, 3, 30), ("random", "gradient"), SECOND),
    Lie("narrow_noise", (0.05, 0.15, 0.017), ("delivery", "gradient"), RECIPES, _GRADIENT),
    Lie("noise", (1e-3, 3e-3, 3e-4), ("delivery", "gradient"), limit=_GRADIENT),
    # Clipping takes the same factor of all gradients away.
    Lie("scaled_gradient", (1e-3, 3e-3, 3e-4), ("delivery", "gradient"), UNCLIPPED),
    Lie("scaled_output", (1e-3, 3e-3, 3e-4), ("gradient",), UNCLIPPED),
    Lie("late_gradient", (10, 3, 30), ("delivery",), UNCLIPPED),
    Lie(
        "stale_gradient",
        (10, 3, 30),
        ("delivery", "gradient"),
        limit="other gradients in some steps",
    ),
    Lie("zero_gradient", (10, 3, 30), ("participation", "delivery", "gradient")),
    Lie("secret_rate", (9e-5, 2.7e-4, 3e-5), ("updates",), limit="learning rate, in all updates"),
    Lie("secret_decay", (0.05, 0.15, 0.017), ("updates",), SECOND),
    Lie("skip_update", (10, 3, 30), ("updates", "participation", "hyperparameters")),
    Lie("batch_norm", (0.5, 1.0, 0.2), ("buffers", "evaluation"), SECOND),
    Lie("skip_average", (2, 1, 6), ("averages",), SECOND_SCRIPT),
    Lie("shifted_scores", (1, 3, 5), ("evaluation",)),
    Lie("first_batches", (1, 2, 3), ("evaluation", "batches")),
    Lie(
        "larger_gradient",
        (0.6, 1.0, 0.45),
        ("gradient",),
        (*UNCLIPPED, *NORMALIZING),
        limit="gradients that are 3% off, in some steps",
    ),
    Lie("scaled_average", (0.05, 0.15, 0.017), ("averages",), NORMALIZING),
    Lie("average_buffers", (0.05, 0.15, 0.017), ("averages",), NORMALIZING),
    Lie("filled_state", (1e-7, 3e-7, 3e-8), ("start",), tuple(SUBJECTS)),
    Lie("scaled_buffer", (0.05, 0.15, 0.017), ("start",), TAUGHT),
    Lie("moved_buffer", (0.05, 0.15, 0.017), ("custody",), TAUGHT),
    Lie("moved_frozen", (0.05, 0.15, 0.017), ("custody",), TAUGHT),
    Lie("scaled_teacher", (0.05, 0.15, 0.017), ("start",), TAUGHT),
    Lie("moved_teacher", (0.05, 0.15, 0.017), ("custody",), TAUGHT),
    Lie("moments_inside", (8, 3, 5), ("update", "updates"), SCRIPTS),
    Lie("swapped_weights", (0.05, 0.15, 0.017), ("custody",), SCRIPTS),
    Lie("scaled_inputs", (0.05, 0.15, 0.017), ("evaluation",), SCRIPTS),
    Lie("scaled_save", (0.01, 0.03, 0.003), ("saves",), TAUGHT),
)


def run(argv: list[str], *, quick: bool, host: Host) -> Result:  # noqa: ARG001
    """Measure; options: `--steps N`, `--lie NAME`, `--subject NAME`, each of them repeatable."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks lies")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lie", action="append", choices=[lie.name for lie in LIES])
    parser.add_argument("--subject", action="append", choices=list(SUBJECTS))
    args = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    # Of the synthetic data an epoch is short: each horizon holds an evaluation.
    os.environ.pop("HOTLAP_DATA", None)
    result = Result()
    for name in args.subject or SUBJECTS:
        told = [
            lie
            for lie in LIES
            if name in lie.subjects and (args.lie is None or lie.name in args.lie)
        ]
        for row in _told_to(name, told, args.steps, quick):
            result.rows.append(row)
            print(*row.values(), sep="  ", file=sys.stderr, flush=True)
    _count(result)
    result.failed = bool(result.figures["let through"])
    return result


def _told_to(name: str, lies: list[Lie], steps: int, quick: bool) -> Iterator[dict[str, Any]]:
    techniques = tuple(f"benchmarks.lies_planted:{lie.name.upper()}" for lie in lies)
    with Lab(SUBJECTS[name], techniques=techniques) as lab:
        prover = Prover(lab, steps, registry(techniques))
        prover.run_plain()
        for lie in lies:
            for size in lie.sizes[: 1 if quick else None]:
                begin = time.monotonic()
                # A lie that does not run is a fault of this benchmark.
                verdict = prover.prove(Plan({lie.name: {"size": float(size)}}))
                yield _row(name, lie, size, verdict, time.monotonic() - begin)


def _row(subject: str, lie: Lie, size: float, verdict: Verdict, seconds: float) -> dict[str, Any]:
    smallest = next((limit.smallest for limit in verdict.limits if limit.of == lie.limit), None)
    return {
        "subject": subject,
        "lie": lie.name,
        "size": size,
        "verdict": verdict.tier,
        "seen by": ", ".join(verdict.failed),
        "as meant": bool({*verdict.failed} & {*lie.meant}),
        "stated limit": "" if smallest is None else f"{smallest:.1e}",
        "seconds": round(seconds, 1),
    }


def _count(result: Result) -> None:
    passed = [row for row in result.rows if row["verdict"] not in ("changed", "unproven")]
    through = [row for row in passed if not _is_below(row)]
    seen = [row for row in result.rows if row not in passed or row in through]
    result.figures = {
        "lies": len(result.rows),
        "kinds": len({row["lie"] for row in result.rows}),
        "let through": len(through),
        "below the stated limit": len(passed) - len(through),
        "changed by the check meant for it": sum(row["as meant"] for row in seen),
        "above the limit": len(seen),
    }
    result.notes.append(", ".join(f"{name}: {value}" for name, value in result.figures.items()))


def _is_below(row: dict[str, Any]) -> bool:
    """True if a lie is smaller than what the verdict says that it would have seen."""
    if not row["stated limit"]:
        return False
    # A lie of every n-th step changes one step in n.
    size = 1 / row["size"] if row["size"] > 1 else row["size"]
    return size < float(row["stated limit"])
