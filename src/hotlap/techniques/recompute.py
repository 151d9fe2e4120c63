"""Activation checkpointing: repeated blocks run forward twice, and their activations are not kept.

What it does   keeps only the inputs of each repeated block (the layers of a transformer, the blocks
               of a residual network), and runs the block again when its backward needs what is
               inside. `selective` also keeps the outputs of matrix products, convolutions and
               attention, and runs only the cheap rest again. The blocks are found by structure:
               children of one class, with layers inside, in one container.
When it helps  a step that does not fit into memory, most of which is activations: deep models, long
               sequences, large batches.
When it hurts  speed: whole blocks cost one more forward, `selective` less. Where a block is a
               convolution and an activation, `selective` holds more than a plain run: the outputs
               of both. Beliefs to correct: it saves nothing of weights, gradients and optimizer
               state; `empty_cache` is no other way, it frees nothing that is alive; and a
               backward holds one block's activations at once, so one large block gains nothing.
Numerics       exact: the same operations on the same numbers, the states of torch's, Python's and
               NumPy's random generators included (compiled: rounding, as `compile` says). Batch
               norm is refused: its running statistics would be updated twice; and so is a block
               with a random generator of its own.
Measured       not yet on a GPU; `python -m benchmarks memory` prints peak and time
Source         Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022, arXiv 2205.05198
               (selective); torch.utils.checkpoint documentation.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from hotlap.task import TaskFacts
from hotlap.techniques.record import (
    Memory,
    ModelTarget,
    Numerics,
    Proof,
    Refusal,
    Technique,
    own_forward_again,
)

_REPEATED = (
    "a `ModuleList` or `Sequential` with two or more children of one class that have submodules"
)
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_scaled_dot_product")
"""Operators of ATen whose outputs `selective` keeps, and the prefix of every kind of attention."""


@dataclass(frozen=True)
class Options:
    mode: Literal["whole", "selective"] = "whole"
    """`whole` keeps nothing of a block; `selective` the outputs of products and attention."""
    every: int = 1
    """Recompute one block of so many: 2 is half of them."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every={self.every} is not allowed. Expected: 1 or more.")


def why_not(task: TaskFacts) -> str | None:
    if not any(count > 1 for count in task.layers.values()):
        return (
            "the model has no repeated blocks: no class of module occurs twice in it. Expected: "
            f"{_REPEATED}. Use a plan without recompute."
        )
    return None


def blocks_of(module: Any) -> dict[str, Any]:
    """Return the outermost repeated blocks of a model, by name.

    Blocks are children of one class, two or more of them, in one `ModuleList` or `Sequential`, that
    have layers inside: a layer that stands alone saves no more than its input either way.
    """
    import torch

    found: dict[str, Any] = {}
    for name, container in module.named_modules():
        if any(f"{name}.".startswith(f"{outer}.") for outer in found):
            continue
        if not isinstance(container, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        for child_name, child in container.named_children():
            same = sum(type(other) is type(child) for other in container.children())
            if same > 1 and next(child.children(), None) is not None:
                found[f"{name}.{child_name}" if name else child_name] = child
    return found


def apply(target: ModelTarget, options: Options) -> ModelTarget:
    import torch

    found = blocks_of(target.module)
    if not found:
        raise Refusal(
            f"the model has no repeated blocks. Expected: {_REPEATED}. Use a plan without "
            "recompute."
        )
    chosen = dict(list(found.items())[:: options.every])
    for name, block in chosen.items():
        for inner in block.modules():
            if isinstance(inner, torch.nn.modules.batchnorm._BatchNorm):
                raise Refusal(
                    f"module '{name}' contains a {type(inner).__name__}, whose running statistics "
                    "would be updated twice. Expected: repeated modules without batch norm. Use "
                    "another normalization, or use a plan without recompute."
                )
        generator = _generator_in(name, block)
        if generator is not None:
            raise Refusal(
                f"`{generator}` is a random generator of module '{name}', which a second forward "
                "would draw other numbers from. Expected: modules that draw from the global "
                "generators of torch, Python or NumPy. Draw from one of these, or use a plan "
                "without recompute."
            )
        if "forward" in vars(block):
            raise Refusal(
                f"the `forward` of module '{name}' was replaced on the instance, so recompute "
                "cannot wrap it. Remove this replacement, so that the `forward` of the class "
                f"{type(block).__name__} is called, or use a plan without recompute."
            )
    seen = _Seen(len(chosen), len(found))
    seen.drawing |= {name for name, block in chosen.items() if _names_random(block)}
    for name, block in chosen.items():
        # A bound method, so that a copied model's block calls the copy, and a pickled one its own.
        block.forward = types.MethodType(_forward(name, options.mode, seen), block)
        target.ended.append(own_forward_again(block))
    target.notes["recompute"] = seen
    return target


def _generator_in(name: str, block: Any) -> str | None:
    """Return the path of a random generator that a block holds, None if it holds none."""
    from hotlap.nested import leaves
    from hotlap.rng import is_own_generator

    for path, inner in block.named_modules(prefix=name):
        for attribute, value in vars(inner).items():
            if any(map(is_own_generator, leaves(value))):
                return f"{path}.{attribute}"
    return None


def _names_random(block: Any) -> bool:
    """True if a block's own code names anything random, though it may not draw from the start."""
    from hotlap.feed.purity.own_code import methods_reached, names_in

    kinds = {type(inner) for inner in block.modules()}
    methods = [method for kind in kinds for method in methods_reached(kind).values()]
    return any("rand" in word for method in methods for word in names_in(method.__code__))


class _Seen:
    """What was seen of the blocks while they ran."""

    def __init__(self, chosen: int, found: int) -> None:
        self.chosen, self.found = chosen, found
        self.first: dict[str, int] = {}
        """Forwards of a block by its name."""
        self.again: dict[str, int] = {}
        """Forwards that a backward asked for."""
        self.traced: set[str] = set()
        """Blocks that went into a compiled graph."""
        self.drawing: set[str] = set()
        """Blocks that draw from Python's or NumPy's generator, or may."""
        self.plain: dict[str, str] = {}
        """Block -> why it runs as it did."""


def _forward(name: str, mode: str, seen: _Seen) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    contexts = {} if mode == "whole" else {"context_fn": _keeps_products()}

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = type(self).forward
        if not torch.is_grad_enabled() or name in seen.plain:
            return own(self, *args, **kwargs)
        if torch.compiler.is_compiling():
            seen.traced.add(name)
            return checkpoint(own, self, *args, use_reentrant=False, **contexts, **kwargs)
        foreign = _foreign_class((args, kwargs))
        if foreign is not None:
            seen.plain[name] = (
                f"{name} takes an argument of class {foreign}, which a second forward may change"
            )
            return own(self, *args, **kwargs)
        first = name not in seen.first
        seen.first[name] = seen.first.get(name, 0) + 1
        runs: list[_HostDraws] = []

        def count_and_run(*args: Any, **kwargs: Any) -> Any:
            if not runs:
                runs.append(draws := _HostDraws())
                # To look takes 30 us or more, for each block in each step.
                if not first and name not in seen.drawing:
                    return own(self, *args, **kwargs)
                with draws.noted(name, seen):
                    return own(self, *args, **kwargs)
            seen.again[name] = seen.again.get(name, 0) + 1
            with runs[0].repeated():
                return own(self, *args, **kwargs)

        run = partial(checkpoint, count_and_run, use_reentrant=False, **contexts)
        return (
            _run_first_time(self, run, own, name, seen, args, kwargs)
            if first
            else run(*args, **kwargs)
        )

    return forward


class _HostDraws:
    """What one forward draws from Python's and NumPy's generators; torch's it restores itself."""

    def __init__(self) -> None:
        self._begins: Any = None
        """The states that it begins with, None unless it draws: they take 27 kB."""

    @contextmanager
    def noted(self, name: str, seen: _Seen) -> Iterator[None]:
        """Run the forward of a block for the first time."""
        from hotlap import rng

        before = rng.host_random_states()
        yield
        if rng.host_generator_that_advanced(before) is not None:
            self._begins = before
            seen.drawing.add(name)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Run it again, with the same draws; what others have drawn since stays drawn."""
        from hotlap import rng

        if self._begins is None:
            yield
            return
        outer = rng.host_random_states()
        rng.restore_host(self._begins)
        try:
            # torch leaves it by an exception, once it has all that it needs.
            yield
        finally:
            rng.restore_host(outer)


def _run_first_time(
    block: Any, run: Any, own: Any, name: str, seen: _Seen, args: Any, kwargs: Any
) -> Any:
    """Run a block for the first time; from then on plainly, if its forward changes a buffer."""
    import torch

    from hotlap import rng

    buffers = dict(block.named_buffers())
    if not buffers:
        return run(*args, **kwargs)
    before = {key: (value.clone(), value._version) for key, value in buffers.items()}
    devices = {value.device for value in buffers.values() if value.device.type != "cpu"}
    # The run that a finding makes worthless must not have drawn random numbers.
    state = rng.global_random_states()
    states = [torch.get_device_module(d).get_rng_state(d) for d in devices]
    output = run(*args, **kwargs)
    changed = [key for key, value in block.named_buffers() if value is not buffers.get(key)]
    changed += [key for key, value in buffers.items() if value._version != before[key][1]]
    if not changed:
        return output
    seen.plain[name] = f"{name} changes its buffer {changed[0]}, and would change it twice"
    del output
    with torch.no_grad():
        for key, value in buffers.items():
            if value._version != before[key][1]:
                value.copy_(before[key][0])
            owner, _, attribute = key.rpartition(".")
            setattr(block.get_submodule(owner), attribute, value)
    rng.restore(state)
    for device, saved in zip(devices, states, strict=True):
        torch.get_device_module(device).set_rng_state(saved, device)
    return own(block, *args, **kwargs)


def _foreign_class(value: Any) -> str | None:
    """Return the class of something that is no plain data, such as a cache of keys and values."""
    import torch

    from hotlap.nested import leaves

    plain = torch.Tensor | bool | int | float | str | torch.dtype | None
    kinds = (type(leaf).__name__ for leaf in leaves(value) if not isinstance(leaf, plain))
    return next(kinds, None)


def _keeps_products() -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        del context, args, kwargs
        kind = operator.overloadpacket.__name__
        keep = kind in _PRODUCTS or kind.startswith(_PRODUCTS[-1])
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return partial(create_selective_checkpoint_contexts, policy)


def proof(target: ModelTarget) -> Proof:
    seen: _Seen = target.notes["recompute"]
    why = "; ".join(list(seen.plain.values())[:1])
    if seen.again:
        total = sum(seen.again.values())
        text = f"{len(seen.again)} of {seen.found} blocks ran forward again, {total} times in total"
        return Proof("applied", f"{text}; {why}" if why else text)
    if seen.traced:
        text = f"{len(seen.traced)} of {seen.found} blocks are recomputed inside compiled graphs"
        return Proof("applied", text)
    if seen.plain:
        return Proof("refused", why)
    return Proof("no_effect", "no block ran forward a second time")


TECHNIQUE = Technique(
    name="recompute",
    seam="model",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=lambda: (),
    memory=Memory(
        axis="recompute", choices={"whole": {"mode": "whole"}, "selective": {"mode": "selective"}}
    ),
    on_ranks=True,
)
