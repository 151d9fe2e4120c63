"""The runs that a refactoring must not change: every example, under every technique."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.plan import Plan

ROOT = Path(__file__).parents[2]
STEPS = 200
_FEW_STEPS = 40
_SLOW = {
    "script": ("sequences",),
    "recipe": ("sequences", "gpt", "jpeg", "fashion_cnn"),
}
"""Kind of a run -> examples that take fewer steps: with all of them it would take hours."""

EXAMPLES = {
    "fashion_mlp": ("fashion_mnist", ("--model", "mlp"), ("--epochs", "20")),
    "fashion_cnn": ("fashion_mnist", ("--model", "cnn"), ("--epochs", "20")),
    "gpt": ("gpt", (), ("--evaluate-every", "50")),
    "jpeg": ("jpeg", (), ("--epochs", "20")),
    "lecture": ("lecture", (), ("--epochs", "40")),
    "sequences": ("sequences", (), ("--epochs", "20")),
    "stream": ("stream", (), ("--epochs", "20")),
    "two_class": ("two_class", (), ()),
}
"""Name -> folder in `examples`, the arguments of script and recipe, those of the script alone."""

EXACT = "exact"
TECHNIQUES: dict[str, tuple[str, dict[str, Any]] | None] = {
    "plain": ("", {}),
    EXACT: None,
    "allocator": ("allocator", {}),
    "attention": ("attention", {"kernel": "products"}),
    "autocast": ("autocast", {"dtype": "bf16"}),
    "channels_last": ("channels_last", {}),
    "chunked_loss": ("chunked_loss", {"rows": 64}),
    "compile": ("compile", {}),
    "cuda_graph": ("cuda_graph", {}),
    "cudnn_benchmark": ("cudnn_benchmark", {}),
    "deterministic": ("deterministic", {}),
    "eight_bit_optimizer": ("eight_bit_optimizer", {}),
    "foreach": ("optimizer", {"implementation": "foreach"}),
    "fp8": ("fp8", {}),
    "fused": ("optimizer", {"implementation": "fused"}),
    "garbage_collector": ("garbage_collector", {"every": 50}),
    "host_allocator": ("host_allocator", {}),
    "master_weights": ("master_weights", {}),
    "matmul_precision": ("matmul_precision", {"precision": "medium"}),
    "micro_batch": ("micro_batch", {"size": 2}),
    "pinned": ("pinned", {}),
    "reader_threads": ("reader_threads", {"count": 2}),
    "recompute": ("recompute", {}),
    "resident": ("resident", {}),
    "threads": ("threads", {"count": 1}),
    "workers": ("workers", {"count": 2}),
}
"""Name -> technique and options; `plain` is the empty plan, `exact` no plan file at all."""

ENGINE = {
    "resumed": "a run that is resumed in the middle ends with the bits of one that was not",
    "skipped": "a step whose gradient is not finite is left out",
    "clipped": "gradients are clipped by norm and by value",
    "split": "a step is made of four micro-batches",
}
"""What else the engine does, on the recipe of `fashion_mnist`, with both of its models."""

ONLY_WITH = {
    "compile": ("lecture", "two_class"),
    **dict.fromkeys(("allocator", "cuda_graph", "cudnn_benchmark", "fp8"), ("fashion_cnn",)),
    **dict.fromkeys(("host_allocator", "pinned", "matmul_precision"), ("fashion_cnn",)),
    "eight_bit_optimizer": ("fashion_cnn",),
}
"""Technique -> examples that show it; the others would take minutes and show nothing more."""


@dataclass(frozen=True)
class Case:
    """One run."""

    kind: str
    """`script`, `recipe`, or a name in `ENGINE`."""
    example: str
    technique: str = "plain"

    def __str__(self) -> str:
        return f"{self.kind}/{self.example}/{self.technique}"

    @property
    def folder(self) -> Path:
        return ROOT / "examples" / EXAMPLES[self.example][0]

    @property
    def steps(self) -> int:
        """Steps of the run, or fewer if the example ends before."""
        return _FEW_STEPS if self.example in _SLOW.get(self.kind, ()) else STEPS

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the example itself."""
        _, both, script = EXAMPLES[self.example]
        return (*both, *script) if self.kind == "script" else both

    def plan(self) -> Plan | None:
        """Return the plan, None where the run is given none."""
        found = TECHNIQUES[self.technique]
        if found is None:
            return None
        name, options = found
        return Plan({name: options} if name else {})


def cases() -> list[Case]:
    """Return all of them."""
    found = [
        Case(kind, example, technique)
        for kind in ("script", "recipe")
        for example in EXAMPLES
        for technique in TECHNIQUES
        if example in ONLY_WITH.get(technique, EXAMPLES)
    ]
    models = ("fashion_mlp", "fashion_cnn")
    return found + [Case(kind, model) for kind in ENGINE for model in models]
