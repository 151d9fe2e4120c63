"""Another implementation of the same torch optimizer.

What it does   runs the script's optimizer through torch's `foreach` or `fused` implementation. It
               is switched on at the start of each step and off at its end, so that state dicts,
               checkpoints and printed optimizers stay those of the plain run.
When it helps  many small parameters, or an optimizer step that is a large part of the step.
When it hurts  hardly ever; `foreach` needs some memory for intermediate lists on a GPU.
Numerics       foreach: exact on a CPU (the same operations in the same order). fused: rounding (one
               kernel with its own order of operations).
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md
Source         torch.optim documentation; pytorch/pytorch PR 123074 (fused Adam on the CPU).
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotlap.task import TaskFacts
from hotlap.task.facts import FOREACH, FUSED
from hotlap.techniques.record import Live, Numerics, OptimizerTarget, Proof, Refusal, Technique

_ELSEWHERE = (
    "the optimizer is {}, and implementation='{}' of the technique `optimizer` supports only {} of "
    "torch.optim. Use one of these, or a plan without `optimizer`."
)
_OWN_CHOICE = (
    "the optimizer was created with {}={}, which hotlap does not override. Remove this argument of "
    "the optimizer, or use a plan without the technique `optimizer`."
)
_OR_WITHOUT = "or use a plan without the technique `optimizer`."


@dataclass(frozen=True)
class Options:
    implementation: Literal["foreach", "fused"]
    """`foreach`: one call per operation for all parameters; `fused`: one kernel for the step."""


def numerics(options: Options) -> Numerics:
    return Numerics.EXACT if options.implementation == "foreach" else Numerics.ROUNDING


def why_not(task: TaskFacts, options: Options) -> str | None:
    supported = _supported_kinds(options)
    for optimizer in task.optimizers:
        if optimizer.implementation in ("foreach", "fused"):
            return _OWN_CHOICE.format(optimizer.implementation, True)
        module, _, name = optimizer.name.rpartition(".")
        if module.startswith("torch.optim") and name in supported:
            return None
    if not task.optimizers:
        return (
            "the script took no step with an optimizer of torch.optim. Expected: one of "
            f"{', '.join(supported)}. Call its `step()`, or use a plan without optimizer."
        )
    return _ELSEWHERE.format(task.optimizers[0].name, options.implementation, ", ".join(supported))


def _supported_kinds(options: Options) -> tuple[str, ...]:
    return FOREACH if options.implementation == "foreach" else FUSED


def apply(target: OptimizerTarget, options: Options) -> OptimizerTarget:
    import torch

    if target.taken_by is not None:
        raise Refusal(
            f"the technique `{target.taken_by}` chooses how the optimizer is implemented. Remove "
            f"`{target.taken_by}` from the plan to use the technique `optimizer`."
        )
    optimizer = target.optimizer
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or kind.__name__ not in _supported_kinds(
        options
    ):
        raise Refusal(
            _ELSEWHERE.format(
                f"{kind.__module__}.{kind.__qualname__}",
                options.implementation,
                ", ".join(_supported_kinds(options)),
            )
        )
    for number, group in enumerate(optimizer.param_groups):
        reason = _obstacle(group, options.implementation)
        if reason is not None:
            raise Refusal(reason)
        if _has_twice(group["params"]):
            raise Refusal(
                f"parameter group {number} of the optimizer holds a parameter twice, or two that "
                f"share memory, but implementation='{options.implementation}' updates all "
                f"parameters of a group at once. Pass each to the optimizer once, {_OR_WITHOUT}"
            )
        for p in group["params"]:
            if p.dtype not in (torch.float32, torch.float64) or p.layout != torch.strided:
                raise Refusal(
                    f"a parameter of shape {list(p.shape)} in group {number} has {_kind(p)}. "
                    "Expected: dense (torch.strided) parameters of torch.float32 or "
                    "torch.float64. Remove `optimizer` from the plan to keep this parameter."
                )
    switch = target.notes["optimizer"] = _Switch(options.implementation, target.operators)
    if options.implementation == "fused":
        switch.place_counters(optimizer)
    switch.join(optimizer)
    target.implementation = options.implementation
    target.each_step.append(switch.place)
    target.failed.append(switch.restore_groups)
    return target


def _obstacle(group: Mapping[str, Any], implementation: str) -> str | None:
    """Return why a group cannot be stepped that way, None if it can."""
    import torch

    for key in ("foreach", "fused"):
        if group.get(key) is not None:
            return _OWN_CHOICE.format(key, group[key])
    for key in ("differentiable", "capturable"):
        if group.get(key):
            return (
                f"the optimizer has {key}=True, with which hotlap does not change its "
                f"implementation. Set {key}=False, {_OR_WITHOUT}"
            )
    if implementation == "foreach" and isinstance(group.get("lr"), torch.Tensor):
        return (
            "the learning rate is a tensor, which implementation='foreach' does not support. Pass "
            f"lr as a float, {_OR_WITHOUT}"
        )
    if implementation == "foreach" and group.get("nesterov"):
        return (
            "the optimizer has nesterov=True, with which implementation='foreach' would overwrite "
            "the gradients. Set implementation='fused' in the plan's [techniques.optimizer]."
        )
    return None


def _kind(parameter: Any) -> str:
    """Return what of a parameter's kind does not fit, in words."""
    import torch

    if parameter.layout != torch.strided:
        return f"the layout {parameter.layout}"
    return f"dtype {parameter.dtype}"


def _has_twice(parameters: list[Any]) -> bool:
    """True if a parameter is there twice, or two of them overlap in memory."""
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        return True
    spans = sorted(span for span in map(_span_of, parameters) if span is not None)
    return any(begin < end for (_, end), (begin, _) in itertools.pairwise(spans))


def _span_of(parameter: Any) -> tuple[int, int] | None:
    """Return where a dense parameter's memory begins and ends, None if it has none of its own.

    Views of one memory that do not overlap, as cuDNN makes of an LSTM's weights, are apart.
    """
    import torch

    is_dense = type(parameter) is torch.nn.Parameter and parameter.layout == torch.strided
    if not is_dense or parameter.numel() == 0 or parameter.data_ptr() == 0:
        return None
    steps = zip(parameter.stride(), parameter.shape, strict=True)
    last = sum(stride * (size - 1) for stride, size in steps)
    begin = parameter.data_ptr()
    return begin, begin + (last + 1) * parameter.element_size()


class _Switch:
    """Switches an implementation on right before each step, and off right after it.

    The script may change its groups at any time, so each step looks at them anew.
    """

    def __init__(self, implementation: str, operators: set[str]) -> None:
        self.implementation = implementation
        self._operators = operators
        """Names of what the step runs while it is observed."""
        self.other = "foreach" if implementation == "fused" else "fused"
        self.is_live = True
        """False while it is switched off, see `Technique.live`."""
        self._is_placed = True
        """True while the step counters are where the implementation that is on wants them."""
        self._moved: list[tuple[dict[str, Any], Any]] = []
        self._on: list[dict[str, Any]] = []
        self._handles: tuple[Any, Any] | None = None
        self._lengths: dict[int, int] = {}
        """Of lists of parameters that hold each of them once, in memory of its own."""

    def _has_once(self, parameters: list[Any]) -> bool:
        """Return whether no parameter is there twice; looked at again where one was added."""
        if self._lengths.get(id(parameters)) == len(parameters):
            return True
        if _has_twice(parameters):
            return False
        self._lengths[id(parameters)] = len(parameters)
        return True

    def join(self, optimizer: Any) -> None:
        self._handles = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(lambda optimizer, *_: self.restore_groups(optimizer)),
        )
        if self.implementation == "fused":
            # A state that is loaded later brings its own counters.
            optimizer.register_load_state_dict_post_hook(_after_load)
        self.place(optimizer)

    def place(self, optimizer: Any) -> None:
        """Stand last before the step and first after it: other hooks see the script's optimizer."""
        assert self._handles is not None
        before, after = self._handles
        hooks = before.hooks_dict_ref(), after.hooks_dict_ref()
        if None in hooks:
            # The script has called `optimizer.__init__` again, which makes new ones.
            self.join(optimizer)
            return
        hooks[0].move_to_end(before.id)
        hooks[1].move_to_end(after.id, last=False)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_placed:
            self.place_counters(optimizer)
        if not self.is_live:
            return None
        given = {**dict(enumerate(args[1:])), **kwargs}
        given = {key: value for key, value in given.items() if value is not None}
        if not given:
            self._switch_groups(optimizer)
        if len(given) != 1:
            return None
        if 0 in given:
            return (args[0], self._hidden_from(given[0], optimizer), *args[2:]), kwargs
        if "closure" in given:
            hidden = self._hidden_from(given["closure"], optimizer)
            return args, {**kwargs, "closure": hidden}
        return None

    def _hidden_from(self, closure: Callable[[], Any], optimizer: Any) -> Callable[[], Any]:
        """Return a closure behind which the implementation is switched on.

        It runs inside the step, before torch's optimizers look at their groups, and may print or
        save the optimizer.
        """

        def call_closure() -> Any:
            self.restore_groups(optimizer)
            before = set(self._operators)
            result = closure()
            # What it has run, as to clip gradients, is not the optimizer's.
            self._operators.intersection_update(before)
            self._switch_groups(optimizer)
            return result

        return call_closure

    def _switch_groups(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            if _obstacle(group, self.implementation) is None and self._has_once(group["params"]):
                group[self.implementation] = True
                # Left at None, torch fills in its own default beside the one that is asked for.
                if self.other in group:
                    group[self.other] = False
                self._on.append(group)

    def switch(self, *, on: bool) -> None:
        """Let the coming steps be the implementation's, or the script's own."""
        self.is_live, self._is_placed = on, self.implementation != "fused"

    def place_counters(self, optimizer: Any) -> None:
        """Move step counters to where fused kernels want them, or back: elsewhere they are slow."""
        if self.is_live:
            self._moved += _place_step_counters(optimizer)
        else:
            for state, device in self._moved:
                state["step"] = state["step"].to(device)
            self._moved = []
        self._is_placed = True

    def restore_groups(self, optimizer: Any) -> None:
        """Put the groups back as the script knows them."""
        del optimizer
        for group in self._on:
            group[self.implementation] = None
            if self.other in group:
                group[self.other] = None
        self._on.clear()


def _after_load(optimizer: Any) -> None:
    _place_step_counters(optimizer)


def _place_step_counters(optimizer: Any) -> list[tuple[dict[str, Any], Any]]:
    """Put counters that a checkpoint brought in where fused kernels want them: by the parameter.

    Returns:
        The states whose counter was moved, and the device on which it was.
    """
    import torch

    moved: list[tuple[dict[str, Any], Any]] = []

    for parameter, state in optimizer.state.items():
        step = state.get("step") if isinstance(state, dict) else None
        if isinstance(step, torch.Tensor) and step.device != parameter.device:
            state["step"] = step.to(parameter.device, dtype=torch.float32)
            moved.append((state, step.device))
    return moved


def proof(target: OptimizerTarget, options: Options) -> Proof:
    if not target.operators:
        return Proof("no_effect", "no second step was observed")
    mark = "_foreach_" if options.implementation == "foreach" else "_fused_"
    ran = sorted(name for name in target.operators if mark in name)
    if not ran:
        return Proof(
            "no_effect", f"the step ran {len(target.operators)} operators, none is {mark}*"
        )
    return Proof(
        "applied", f"the step ran {ran[0]}" + (f" and {len(ran) - 1} more" if ran[1:] else "")
    )


def _switch_on(target: OptimizerTarget, options: Options) -> None:
    del options
    target.notes["optimizer"].switch(on=True)


def _switch_off(target: OptimizerTarget, options: Options) -> None:
    del options
    target.notes["optimizer"].switch(on=False)


TECHNIQUE = Technique(
    name="optimizer",
    seam="optimizer",
    Options=Options,
    numerics=numerics,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=lambda: ({"implementation": "foreach"}, {"implementation": "fused"}),
    live=Live(_switch_on, _switch_off),
    on_ranks=True,
)
