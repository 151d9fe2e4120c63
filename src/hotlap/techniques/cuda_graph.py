"""The whole step is captured as one CUDA graph, and replayed.

What it does   runs the first steps as they are, then captures forward, loss, backward, clipping and
               update as one graph; every later step of the same shapes is one launch. The batch is
               copied into fixed buffers, learning rates are read from the device, and an update is
               left out by the device itself. An epoch's last, shorter step runs as it is. With
               `steps` above 1, `hotlap train` takes several steps in one launch once all samples
               lie on the device: batches are gathered and losses summed there. Verdicts follow
               step by step.
When it helps  small models and small batches, where the host cannot queue kernels as fast as the
               device runs them.
When it hurts  memory: each graph keeps what one step needs. Models that the device already computes
               without a gap gain nothing. A schedule that steps with the optimizer makes the host
               wait for each step, to know whether it was taken, unless `hotlap.train` knows its
               next rates: those of `hotlap.schedules` and of torch's classes, but for OneCycleLR,
               CyclicLR and functions of the user's, are on the device 256 updates ahead. Beliefs
               to correct: a graph makes no kernel faster; dropout
               is no obstacle, its generator is part of the graph, and a schedule of the learning
               rate is none either. What is: a schedule of momentum, betas
               or weight decay, as OneCycleLR's; `.item()`, `print` or an `if` on a value in model
               or loss, a number that the host draws there (mixup's, LayerDrop's), shapes that
               change, hooks, which a replay does not call, and modes or `requires_grad` that are
               set during the run. `p.grad` is right between steps, and overwritten by the next.
Numerics       rounding: the update runs in fused kernels, with the learning rate in float32.
Measured       benchmarks/results/2026-11-27_gpu_h200.md
Source         CUDA programming guide, CUDA graphs; torch.cuda.CUDAGraph documentation.
"""

from dataclasses import dataclass
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques.compile import GRAPHED_MODES
from hotlap.techniques.record import Memory, Numerics, Proof, Refusal, StepTarget, Technique

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


_NO_ROWS = "no epoch was served from rows on the device, as `resident` keeps them"


@dataclass(frozen=True)
class Options:
    warm_up: int = 3
    """Steps that run as they are before one is captured; the last of them is watched."""
    steps: int = 1
    """Steps that one launch takes, at most, in `hotlap train`: with `resident`, where the samples
    lie on the device, and with a schedule that is known in advance. Steps before a save, at the
    end of an epoch and of the run are cut to fit."""

    def __post_init__(self) -> None:
        if not 2 <= self.warm_up <= 1000:
            raise ValueError(f"warm_up={self.warm_up} is out of range. Expected: 2 to 1000.")
        if not 1 <= self.steps <= 256:
            raise ValueError(f"steps={self.steps} is out of range. Expected: 1 to 256.")


@dataclass
class Wish:
    """What is asked of the step that captures, and what it tells of itself."""

    warm_up: int
    replays: int = 0
    other_steps: int = 0
    """Steps that ran as they are, those before the capture included."""
    refused: str | None = None
    """Why nothing is captured, found by the first steps."""
    steps: int = 1
    """Steps that one launch may take."""
    launches: int = 0
    """Launches that took several steps."""
    launched_steps: int = 0
    """Steps that they took."""
    single: str | None = None
    """Why each launch takes one step."""


def why_not(task: TaskFacts) -> str | None:
    if not task.device.startswith("cuda"):
        return _no_device(task.device)
    if len(task.optimizers) > 1:
        return (
            f"the script has {len(task.optimizers)} optimizers, but cuda_graph captures steps of "
            "only one. Use a plan without cuda_graph."
        )
    return None


def _no_device(device: str) -> str:
    return (
        f"no CUDA device is in use (device='{device}'). Train on a CUDA GPU to use cuda_graph, or "
        "use a plan without it."
    )


def apply(target: StepTarget, options: Options) -> StepTarget:
    if target.device != "cuda":
        raise Refusal(_no_device(target.device))
    reason = obstacle(target)
    if reason is not None:
        raise Refusal(reason)
    target.graph = Wish(options.warm_up, steps=options.steps)
    target.optimizer_taken_by = "cuda_graph"
    return target


def obstacle(target: StepTarget) -> str | None:
    """Return what in the model or the optimizer stands against a graph, None if nothing does."""
    from hotlap.device.accelerator import cannot_leave_out

    reason = cannot_leave_out(target.optimizer)
    if reason is not None:
        return (
            "cuda_graph needs an optimizer whose updates can be skipped on the device, but "
            f"{reason}. Use a plan without cuda_graph."
        )
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if any(map(_is_a_users, getattr(target.optimizer, hooks, {}).values())):
            return (
                "the optimizer has a hook of `register_step_pre_hook` or "
                "`register_step_post_hook`, which a replayed CUDA graph would not call. Remove the "
                "hook, or use a plan without cuda_graph."
            )
    for name, module in target.module.named_modules():
        if getattr(module, "sparse", False):
            return (
                f"module '{name}' has sparse=True, which fused optimizers do not support. Set "
                "sparse=False, or use a plan without cuda_graph."
            )
        for hooks in _HOOKS:
            if any(map(_is_a_users, getattr(module, hooks, {}).values())):
                what = f"module '{name}'" if name else "the model"
                return (
                    f"{what} has a hook, which a replayed CUDA graph would not call. Remove the "
                    "hook, or use a plan without cuda_graph."
                )
    if target.notes.get("compile_mode") in GRAPHED_MODES:
        return (
            f"compile with mode='{target.notes['compile_mode']}' captures CUDA graphs itself. Set "
            "mode='default' in the plan's [techniques.compile], or use a plan without cuda_graph."
        )
    if "recompute" in target.notes:
        return (
            "recompute reads the RNG state in each backward, which cannot be captured; "
            "remove recompute or cuda_graph from the plan"
        )
    return None


def _is_a_users(hook: Any) -> bool:
    return not getattr(hook, "__module__", "").startswith("hotlap.")


def proof(target: StepTarget) -> Proof:
    wish = target.graph
    if wish.refused is not None:
        return Proof("refused", f"{wish.refused}; {wish.other_steps} steps ran without a graph")
    if wish.replays == 0:
        return Proof("no_effect", f"{wish.other_steps} steps ran without a graph, none replayed")
    steps = f"{wish.replays} steps replayed, {wish.other_steps} run without a graph"
    if wish.launches:
        steps += f"; {wish.launched_steps} of them in {wish.launches} launches"
    elif wish.steps > 1:
        steps += f"; each launch took one: {wish.single or _NO_ROWS}"
    return Proof("applied", steps)


TECHNIQUE = Technique(
    name="cuda_graph",
    seam="step",
    Options=Options,
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    excludes=("optimizer", "recompute"),
    memory=Memory(
        is_traceable=False,
        untraced="a graph keeps the memory of one step; steps without it need their own",
    ),
)
