"""Several ranks share what each of them would hold: the optimizer's state, gradients, parameters.

What it does   `optimizer`: each rank keeps the optimizer's state for some of the parameters,
               updates these, and sends them to the others (ZeRO-1). `gradients`: each rank keeps a
               share of every parameter, of its gradient and of its state; whole parameters are
               gathered for the forward pass and kept until the backward pass is over (ZeRO-2).
               `parameters`: block by block they are dropped after the forward pass and gathered
               once more for the backward pass (ZeRO-3). With `replicas`, groups of ranks hold a
               whole model each, and share it among their own ranks only (hybrid sharding).
When it helps  a model whose weights, gradients and optimizer state do not fit into one device: with
               Adam in float32 that is 16 bytes a parameter, of which `optimizer` shares 8 and the
               other levels all 16.
When it hurts  speed, where everything fits: every step sends as many bytes as the model has, at the
               level `parameters` more. Activations are not shared: for these, use `recompute` or
               smaller micro-batches. A step that runs out of memory is taken again at the level
               `optimizer` only. Belief to correct: more ranks do not make the peak smaller without
               end, as activations and the largest block stay.
Numerics       optimizer: exact, bit for bit what the ranks learn without it. gradients and
               parameters: rounding, as sums and norms are added up in another order; with
               `dtype="bf16"` precision.
Measured       benchmarks/results/2026-11-25_sharding_amd-epyc-2-cores.md (bytes; no speed)
Source         Rajbhandari et al. 2020, arXiv 1910.02054 (ZeRO); Zhao et al. 2023, arXiv 2304.11277;
               torch.distributed.fsdp.fully_shard documentation.
"""

from dataclasses import dataclass
from typing import Any, Literal

from hotlap.errors import PlanError
from hotlap.techniques.record import (
    Memory,
    ModelTarget,
    Numerics,
    Proof,
    Refusal,
    Seam,
    StepTarget,
    Technique,
)

_ALONE = (
    "the run has one rank, so there is nothing to shard. Use several ranks (`hotlap train "
    "--devices N`, torchrun or Slurm), or a plan without sharding."
)
ELEMENTWISE = (
    "Adam",
    "AdamW",
    "SGD",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "ASGD",
    "Rprop",
)
"""Optimizers of torch.optim that update each number by itself."""
_BY_PARAMETER = (*ELEMENTWISE, "Adafactor", "Muon", "SparseAdam")
"""Those that update each parameter by itself."""


@dataclass(frozen=True)
class Options:
    level: Literal["optimizer", "gradients", "parameters"]
    """What is shared; each level shares what those before it share."""
    replicas: int = 1
    """Groups of ranks that hold a whole model each; 1 to share it among all ranks."""
    wrap: str = ""
    """Classes of the modules that are gathered at once, as in `Block, Head`; if empty, children of
    one class in one `ModuleList` or `Sequential`."""
    least: int = 0
    """Parameters (numbers) from which a module is gathered by itself."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Format in which parameters are gathered and used; shares, sums of gradients and the model's
    output stay as they are."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas={self.replicas} is not allowed. Expected: 1 or more.")
        if self.least < 0:
            raise ValueError(f"least={self.least} is not allowed. Expected: 0 or more.")
        has_more = self.replicas > 1 or self.wrap or self.least or self.dtype != "fp32"
        if self.level == "optimizer" and has_more:
            raise ValueError(
                "replicas, wrap, least and dtype are not allowed with level='optimizer', which "
                "shards only the optimizer's state. Set level='gradients' or level='parameters', "
                "or remove these options."
            )


def seam(options: Options) -> Seam:
    """The state is shared once there is an optimizer, parameters are before there is one."""
    return "step" if options.level == "optimizer" else "model"


def numerics(options: Options) -> Numerics:
    if options.dtype == "bf16":
        return Numerics.PRECISION
    return Numerics.EXACT if options.level == "optimizer" else Numerics.ROUNDING


def apply(target: ModelTarget | StepTarget, options: Options) -> ModelTarget | StepTarget:
    reduce = target.reduce
    if reduce is None or reduce.world == 1:
        raise Refusal(_ALONE)
    if isinstance(target, StepTarget):
        return _share_state(target)
    return _share_model(target, options)


def _share_state(target: StepTarget) -> StepTarget:
    from hotlap.distributed.owners import Owners

    kind = type(target.optimizer)
    if torchs_name(kind) not in _BY_PARAMETER:
        raise Refusal(
            f"the optimizer is {kind.__module__}.{kind.__qualname__}, which may need all "
            "parameters to update one of them, but with `sharding` each rank has only its own. "
            f"Use one of {', '.join(_BY_PARAMETER)} of torch.optim or a subclass, or use a plan "
            "without sharding."
        )
    target.sharding = target.notes["sharding"] = Owners(target.optimizer, target.reduce)
    return target


def torchs_name(kind: type) -> str:
    """Return the name of the optimizer of torch that a class is, or is made from; empty if none."""
    for each in kind.__mro__:
        if each.__module__.startswith("torch.optim") and each.__name__ != "Optimizer":
            return each.__name__
    return ""


def _share_model(target: ModelTarget, options: Options) -> ModelTarget:
    from hotlap.distributed import sharded_model

    module, world = target.module, target.reduce.world
    if world % options.replicas or options.replicas >= world:
        legal = [str(n) for n in range(1, world) if world % n == 0]
        raise Refusal(
            f"`sharding` with replicas={options.replicas} needs {options.replicas} groups of two "
            f"or more ranks each, which {world} ranks cannot form. Expected: "
            f"replicas={' or '.join(legal)}."
        )
    blocks = blocks_of(module, options)
    reason = sharded_model.why_not(module, blocks)
    if reason is not None:
        raise Refusal(reason)
    try:
        target.sharding = target.notes["sharding"] = sharded_model.ShardedModel(
            module,
            blocks,
            target.reduce,
            drops=options.level == "parameters",
            replicas=options.replicas,
            is_narrow=options.dtype == "bf16",
        )
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        # The model may be sharded in part: going on without the technique would train nonsense.
        raise PlanError(
            f"torch cannot shard the model: {error}. Name other module classes in the plan's "
            '[techniques.sharding], as in `wrap = "Block"`, or use a plan without sharding.'
        ) from error
    target.ended.append(target.sharding.undo)
    return target


def blocks_of(module: Any, options: Options) -> dict[str, Any]:
    """Return the parts of a model that are gathered by themselves, by name; the rest is one more.

    Raises:
        Refusal: no module is of a class that `wrap` names.
    """
    import torch

    wanted = {name.strip() for name in options.wrap.split(",") if name.strip()}
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        if wanted:
            if part is not module and type(part).__name__ in wanted:
                found[name] = part
            continue
        if any(f"{name}.".startswith(f"{outer}.") for outer in found):
            continue
        if isinstance(part, torch.nn.ModuleList | torch.nn.Sequential):
            for key, child in part.named_children():
                same = sum(type(other) is type(child) for other in part.children())
                if same > 1 and next(child.children(), None) is not None:
                    found[f"{name}.{key}" if name else key] = child
    absent = wanted - {type(part).__name__ for part in found.values()}
    if absent:
        parts = {type(part).__name__ for part in module.modules() if part is not module}
        classes = sorted(parts - {"ModuleList"})
        raise Refusal(
            f"`wrap` in the plan's [techniques.sharding] names the class `{min(absent)}`, but no "
            "submodule of the model has this class. Expected: one or more of "
            f"{', '.join(classes)}, separated by commas."
        )
    return {
        name: part
        for name, part in found.items()
        if any(True for _ in part.parameters())
        and sum(each.numel() for each in part.parameters()) >= options.least
    }


def proof(target: ModelTarget | StepTarget, options: Options) -> Proof:
    sharding = target.notes.get("sharding")
    if sharding is None or not sharding.updates:
        return Proof("no_effect", "no update was taken")
    own, total = sharding.counts
    if options.level == "optimizer":
        return Proof("applied", f"this rank updates {own} of {total} parameters, and sends them")
    share = f"{own:,} of {total:,} numbers of the parameters"
    return Proof("applied", f"this rank holds {share}, gathered in {sharding.groups} groups")


TECHNIQUE = Technique(
    name="sharding",
    seam=seam,
    Options=Options,
    numerics=numerics,
    why_not=lambda: _ALONE,
    apply=apply,
    proof=proof,
    candidates=lambda: (),
    engine_only=True,
    on_ranks=True,
    memory=Memory(is_traceable=False, untraced="each rank holds less than predicted"),
)
