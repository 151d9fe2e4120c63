"""The model's forward and backward are compiled by torch's Inductor.

What it does   compiles the forward for the shape of the first batch; any other shape, the last and
               shorter batch of an epoch or an evaluation, runs as it always did and compiles
               nothing new. Parameter names stay plain; the model that comes out is not compiled.
When it helps  many small operations between matrix products: normalisation, activations, losses; on
               a GPU nearly always, in long runs.
When it hurts  short runs (compiling takes ten seconds to minutes), and models that are one matrix
               product after another. Belief to correct: `nn.Sequential(...).compile()` compiles
               nothing in torch 2.13, and says nothing.
Numerics       rounding: fused kernels sum in another order.
Measured       not yet; `python -m benchmarks` has no figure for it
Source         torch.compile documentation; pytorch/pytorch issue 101107 (names in checkpoints).
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotlap.task import TaskFacts
from hotlap.techniques.record import Numerics, Proof, Refusal, StepTarget, Technique


@dataclass(frozen=True)
class Options:
    mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    """As torch.compile names it; `reduce-overhead` uses CUDA graphs on a GPU."""
    fullgraph: bool = False
    """Fail rather than leave parts of the forward uncompiled."""


def numerics(options: Options) -> Numerics:
    del options
    return Numerics.ROUNDING


def why_not(task: TaskFacts, host: Any, options: Options) -> str | None:
    del task, host, options
    return None if _compiler() else "there is no C++ compiler on the path"


def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "g++", "clang++", "cl")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def apply(target: StepTarget, options: Options) -> StepTarget:
    import torch

    module = target.module
    if target.device == "cpu" and not _compiler():
        raise Refusal("there is no C++ compiler on the path")
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        raise Refusal("the model is compiled already")
    plain = module.forward
    graphs, first_shapes = _graphs(), []

    def forward(*args: Any, **kwargs: Any) -> Any:
        # A function of its own: torch skips the frames of its own modules, nn.Sequential's too.
        return plain(*args, **kwargs)

    # Compiled code is kept by the code object; a new one shares its limits with nobody.
    forward.__code__ = forward.__code__.replace(co_name=f"forward_of_{type(module).__name__}")
    compiled = torch.compile(forward, mode=options.mode, fullgraph=options.fullgraph)

    def chosen(*args: Any, **kwargs: Any) -> Any:
        shapes = [tuple(v.shape) for v in (*args, *kwargs.values()) if hasattr(v, "shape")]
        if not first_shapes and torch.is_grad_enabled():
            first_shapes.append(shapes)
        is_known = bool(first_shapes) and shapes == first_shapes[0] and torch.is_grad_enabled()
        return (compiled if is_known else plain)(*args, **kwargs)

    module.forward = chosen
    target.notes["compile"] = lambda: _graphs() - graphs

    def undo() -> None:
        del module.forward

    target.ended.append(undo)
    return target


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def proof(target: StepTarget, options: Options) -> Proof:
    del options
    count = target.notes.get("compile")
    made = 0 if count is None else count()
    if made == 0:
        return Proof("no_effect", "no graph was compiled")
    return Proof("applied", f"{made} graph{'s' * (made != 1)} compiled")


def candidates(task: TaskFacts, host: Any) -> tuple[Mapping[str, Any], ...]:
    del task, host
    return ({},)


TECHNIQUE = Technique("compile", "step", Options, numerics, why_not, apply, proof, candidates)
