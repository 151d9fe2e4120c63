"""Forward and backward are compiled by torch's Inductor: the model, its blocks, or the loss too.

What it does   compiles a region of the step for the shapes of its first batch. Other shapes, the
               last and shorter batch of an epoch or an evaluation, run as they always did and
               compile nothing new, unless `dynamic` asks for one program for all. Parameter names
               stay plain; the model that comes out is not compiled. `region="blocks"` compiles a
               layer that repeats once for all its places: minutes become seconds in deep models.
When it helps  many small operations between matrix products: normalisation, activations, losses; on
               a GPU nearly always, in long runs.
When it hurts  short runs (compiling takes ten seconds to minutes), and models that are one matrix
               product after another. Beliefs to correct: `nn.Sequential(...).compile()` compiles
               nothing in torch 2.13, and says nothing; one more compiled run is not free of
               compiling, each new shape or Python number pays again (this one then says
               *refused*); `max-autotune` is not the fastest mode by its name.
Numerics       rounding: fused kernels sum in another order. Dropout draws the numbers that it
               draws uncompiled (Inductor's `fallback_random`); with `random="inductor"` it draws
               others, as another seed would.
Measured       in plans for GPT-2 124M and an MLP:
               benchmarks/results/2026-11-27_gpu_h200.md
Source         torch.compile documentation, regional compilation; pytorch/pytorch issue 101107
               (names in checkpoints).
"""

import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotlap import compat
from hotlap.task import TaskFacts
from hotlap.techniques.record import Memory, Numerics, Proof, Refusal, StepTarget, Technique

_SETTLED_AFTER = 3
"""Calls of a region after which nothing new should be compiled."""
_MOST_LATE = 2
"""Graphs that may still come: for the shorter batch of an epoch, say, where sizes are dynamic."""
_NO_COMPILER = (
    "no C++ compiler was found on the PATH, and torch.compile needs one on a CPU. Install g++ or "
    "clang++, or set the environment variable CXX to the path of a compiler."
)
_NO_TRITON = (
    "torch.compile needs triton on a GPU, and triton is not installed. Install it with "
    "`pip install triton`."
)
Forward = Callable[..., Any]


GRAPHED_MODES = ("reduce-overhead", "max-autotune")
"""Modes in which compiled code makes CUDA graphs of its own on a GPU."""


@dataclass(frozen=True)
class Options:
    region: Literal["model", "blocks", "loss"] = "model"
    """`blocks`: each place of the largest layer that repeats; `loss`: the model and the loss."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        "default"
    )
    """As torch.compile names it; `reduce-overhead` and `max-autotune` use CUDA graphs on a GPU."""
    dynamic: bool = False
    """One program for all sizes, instead of one for the sizes of the first batch."""
    fullgraph: bool = False
    """Fail rather than leave parts of the region uncompiled."""
    random: Literal["eager", "inductor"] = "eager"
    """Whose random numbers dropout draws: those of the plain run, or Inductor's own, which are
    drawn inside fused kernels."""
    tune_kernels: bool = False
    """Measure several block sizes of each fused kernel while compiling, on a GPU; `max-autotune`
    includes it."""
    short_gelu: bool = False
    """Take a shorter formula for the GELU of 16-bit tensors; its error is below 1.5e-7."""


def why_not(task: TaskFacts) -> str | None:
    return _no_back_end(task.device.partition(":")[0])


def _no_back_end(device: str) -> str | None:
    if device == "cuda":
        return None if importlib.util.find_spec("triton") else _NO_TRITON
    names = (os.environ.get("CXX"), "g++", "clang++", "cl")
    return None if any(name and shutil.which(name) for name in names) else _NO_COMPILER


def apply(target: StepTarget, options: Options) -> StepTarget:
    reason = _no_back_end(target.device)
    if reason is not None:
        raise Refusal(reason)
    module = target.module
    for name, part in module.named_modules():
        if hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None:
            what = f"module '{name}'" if name else "the model"
            raise Refusal(
                f"{what} is already compiled. Remove its `torch.compile` to use compile from the "
                "plan, or use a plan without compile."
            )
    record = target.notes["compile"] = _Record()
    target.notes["compile_mode"] = options.mode
    if options.region == "loss":
        is_graphed = target.device == "cuda" and options.mode in GRAPHED_MODES

        chunks = target.notes.get("chunked_loss")
        if chunks is not None:
            chunks.is_traced = True

        def wrap(loss: Forward) -> Forward:
            region = _Region(loss, "loss", options, record, chunks)
            return _with_own_results(region) if is_graphed else region

        target.losses.append(wrap)
        return target
    parts = [module] if options.region == "model" else find_repeated_blocks(module)
    if not parts:
        raise Refusal(
            "region='blocks' found no repeated module in the model. Set region='model' in the "
            "plan's [techniques.compile]."
        )
    for part in parts:
        _Region.replace_forward(part, options, record)

    def undo() -> None:
        for part in parts:
            del part.forward

    target.ended.append(undo)
    return target


def find_repeated_blocks(module: Any) -> list[Any]:
    """Return every place of the layer, made of layers, that repeats and holds most parameters."""
    kinds = Counter(type(part) for part in module.modules() if _is_a_block(part))
    sizes: Counter[type] = Counter()
    for part in module.modules():
        if kinds[type(part)] > 1:
            sizes[type(part)] += sum(parameter.numel() for parameter in part.parameters())
    if not sizes:
        return []
    # Of blocks inside blocks the outer ones hold as much, and come first.
    best = max(sizes, key=lambda kind: sizes[kind])
    return list(_find_outermost(module, best))


def _is_a_block(part: Any) -> bool:
    import torch

    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    return not isinstance(part, lists) and any(True for _ in part.children())


def _find_outermost(module: Any, kind: type) -> Iterator[Any]:
    for child in module.children():
        if type(child) is kind:
            yield child
        else:
            yield from _find_outermost(child, kind)


class _Record:
    """What was compiled, and when."""

    def __init__(self) -> None:
        self._graphs, self._breaks = _count_graphs()
        self.calls = 0
        """Calls of compiled code, of the region that was called most often."""
        self.gelus = 0
        """GELUs that are taken by the shorter formula."""
        self.settled: int | None = None
        """Graphs there were when nothing new should have come."""

    def look(self, calls: int) -> None:
        """Note how many graphs there are once a region has been called that often."""
        self.calls = max(self.calls, calls)
        if calls == _SETTLED_AFTER:
            self.settled = _count_graphs()[0]

    def counts(self) -> tuple[int, int, int]:
        """Return graphs, graph breaks, and graphs that came late."""
        graphs, breaks = _count_graphs()
        late = 0 if self.settled is None else graphs - self.settled
        return graphs - self._graphs, breaks - self._breaks, late


def _count_graphs() -> tuple[int, int]:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"]), sum(counters["graph_break"].values())


class _Region:
    """One function, compiled for the shapes that it is first called with in training."""

    def __init__(
        self,
        plain: Forward,
        name: str,
        options: Options,
        record: _Record,
        chunks: Any = None,
    ) -> None:
        from torch._inductor import list_mode_options

        self._plain, self._record = plain, record
        self._any_shape = options.dynamic
        self._shapes: list[Any] | None = None
        self._calls = 0
        function = plain if options.region == "blocks" else _own_frame(plain, name)
        settings = {
            **list_mode_options(options.mode, options.dynamic),
            "fallback_random": options.random == "eager",
        }
        if options.tune_kernels:
            settings["coordinate_descent_tuning"] = True
        self._compiled = _compiled(function, options, settings, record, chunks)

    @classmethod
    def replace_forward(cls, module: Any, options: Options, record: _Record) -> None:
        """Let a module call the compiled forward in place of its own."""
        plain, name = module.forward, type(module).__name__
        if options.region == "blocks" and type(module).__module__.startswith("torch."):
            plain = _own_frame(plain, name)
        region = cls(plain, name, options, record)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return region(*args, **kwargs)

        module.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        if not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        if not self._any_shape:
            shapes = _shapes((args, kwargs))
            if self._shapes is None:
                self._shapes = shapes
            if shapes != self._shapes:
                return self._plain(*args, **kwargs)
        if compat.records_operators():
            # Called once under it, torch would leave the function uncompiled for good.
            return self._plain(*args, **kwargs)
        result = self._compiled(*args, **kwargs)
        self._calls += 1
        if self._calls <= _SETTLED_AFTER:
            self._record.look(self._calls)
        return result


def _compiled(
    function: Forward, options: Options, settings: Mapping[str, Any], record: _Record, chunks: Any
) -> Forward:
    """Return a function compiled by Inductor; with chunks, its loss takes its logits by them."""
    import torch

    how: dict[str, Any] = {"fullgraph": options.fullgraph, "dynamic": options.dynamic}
    if chunks is None and not options.short_gelu:
        # torch.compile takes a mode or options, not both.
        return torch.compile(function, **how, options=dict(settings))
    left: list[bool] = []
    """Not empty once a traced loss was left as it was."""

    def rewritten(module: Any, inputs: Any) -> Any:
        if options.short_gelu:
            from hotlap.kernels import short_gelu

            record.gelus += short_gelu.rewrite(module)
        if chunks is not None:
            from hotlap.kernels import traced_loss

            if not traced_loss.rewrite(module, chunks.limit) and traced_loss.takes_losses(module):
                left.append(True)
        return compat.compile_by_inductor(module, inputs, settings)

    compiled = torch.compile(function, **how, backend=rewritten)
    if chunks is None:
        return compiled
    from hotlap.kernels.traced_loss import counted

    def call(*args: Any, **kwargs: Any) -> Any:
        with counted(chunks):
            result = compiled(*args, **kwargs)
        if left:
            # From the next call on the layer's output is put off, outside of the graph. What was
            # compiled checks it before it runs; told sooner, it would take it for what it was.
            chunks.is_traced = False
        return result

    return call


def _with_own_results(region: Forward) -> Forward:
    """Return what copies the results of a region, which its next call writes over."""
    import torch

    def copy(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    def call(*args: Any, **kwargs: Any) -> Any:
        value = region(*args, **kwargs)
        return tuple(map(copy, value)) if isinstance(value, tuple) else copy(value)

    return call


def _own_frame(plain: Forward, name: str) -> Forward:
    def function(*args: Any, **kwargs: Any) -> Any:
        # A function of its own: torch skips the frames of its own modules, nn.Sequential's too.
        return plain(*args, **kwargs)

    # Compiled code is kept by the code object; a new one shares its limits with nobody.
    function.__code__ = function.__code__.replace(co_name=f"forward_of_{name}")
    return function


def _shapes(value: Any) -> list[Any]:
    from hotlap.nested import leaves

    return [tuple(leaf.shape) for leaf in leaves(value) if hasattr(leaf, "shape")]


def proof(target: StepTarget, options: Options) -> Proof:
    record = target.notes.get("compile")
    made, breaks, late = (0, 0, 0) if record is None else record.counts()
    if made == 0:
        return Proof("no_effect", "no graph was compiled")
    what = f"{_count_of(made, 'graph')} compiled, {late or 'none'} of them after the first "
    what += f"{_SETTLED_AFTER} steps; {_count_of(breaks, 'graph break')}"
    if record is not None and options.short_gelu:
        what += f"; {_count_of(record.gelus, 'GELU')} by the shorter formula"
    if late > _MOST_LATE:
        hint = "" if options.dynamic else "; try dynamic=true"
        return Proof("refused", f"{what}; it recompiles repeatedly{hint}")
    return Proof("applied", what)


def _count_of(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def candidates(task: TaskFacts) -> tuple[Mapping[str, Any], ...]:
    if task.device.startswith("cuda"):
        return ({}, {"region": "loss"}, {"mode": "reduce-overhead"}, {"region": "blocks"})
    return ({}, {"region": "loss"})


def numerics(options: Options) -> Numerics:
    return Numerics.ROUNDING if options.random == "eager" else Numerics.STREAM


TECHNIQUE = Technique(
    name="compile",
    seam="step",
    Options=Options,
    numerics=numerics,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=candidates,
    set_up_s=30.0,
    memory=Memory(is_traceable=False, untraced="compiled code uses less memory than predicted"),
)
