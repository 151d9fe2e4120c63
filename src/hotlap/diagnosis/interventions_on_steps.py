"""Interventions: no anomaly detection, all cores, no `create_graph`, float32 for float64 models."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from hotlap.host.probes import affinity
from hotlap.nested import map_tensors
from hotlap.techniques import ModelTarget, Numerics, Proof, Refusal, Technique
from hotlap.techniques.record import Live, ProcessTarget


def _switch_on(target: Any, options: Any) -> None:
    del options
    target.notes["is_on"] = True


def _switch_off(target: Any, options: Any) -> None:
    del options
    target.notes["is_on"] = False


BY_NOTE = Live(_switch_on, _switch_off)
"""Of an intervention that asks its note `is_on` each time."""


def _without_anomaly(target: ProcessTarget) -> ProcessTarget:
    target.switch = lambda: _gate_anomaly(target.notes)
    return target


def _gate_anomaly(notes: dict[str, Any]) -> Callable[[], None]:
    import torch

    switch = torch.set_anomaly_enabled
    wanted = [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()]

    def update() -> None:
        switch(wanted[0] and not notes["is_on"], wanted[1])

    @functools.wraps(switch)
    def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
        wanted[:] = enabled, check_nan
        notes["was_wanted"] = notes["was_wanted"] or enabled
        update()

    def undo() -> None:
        torch.set_anomaly_enabled = switch
        switch(wanted[0], wanted[1])

    notes.update(is_on=True, update=update, was_wanted=wanted[0])
    torch.set_anomaly_enabled = set_anomaly_enabled
    update()
    return undo


def _proof_without_anomaly(target: ProcessTarget) -> Proof:
    if not target.notes.get("was_wanted"):
        return Proof("no_effect", "the script did not switch anomaly detection on")
    return Proof("applied", "anomaly detection is off")


def _update_on(target: ProcessTarget, options: Any) -> None:
    _switch_on(target, options)
    target.notes["update"]()


def _update_off(target: ProcessTarget, options: Any) -> None:
    _switch_off(target, options)
    target.notes["update"]()


NO_ANOMALY = Technique(
    name="no_anomaly_detection",
    seam="process",
    numerics=lambda: Numerics.EXACT,
    why_not=lambda: "the script asks for anomaly detection, which is the script's own choice",
    apply=_without_anomaly,
    proof=_proof_without_anomaly,
    candidates=lambda: (),
    live=Live(_update_on, _update_off),
)


def _with_all_cores(target: ProcessTarget) -> ProcessTarget:
    target.switch = lambda: _gate_threads(target.notes)
    return target


def _gate_threads(notes: dict[str, Any]) -> Callable[[], None]:
    import torch

    switch, cores = torch.set_num_threads, affinity()
    wanted = [torch.get_num_threads()]

    def update() -> None:
        switch(cores if notes["is_on"] else wanted[0])

    @functools.wraps(switch)
    def set_num_threads(count: int) -> None:
        wanted[0] = count
        notes["wanted"] = count
        update()

    def undo() -> None:
        torch.set_num_threads = switch
        switch(wanted[0])

    notes.update(is_on=True, update=update, wanted=wanted[0], cores=cores)
    torch.set_num_threads = set_num_threads
    update()
    return undo


def _proof_with_all_cores(target: ProcessTarget) -> Proof:
    cores, wanted = target.notes["cores"], target.notes["wanted"]
    if wanted >= cores:
        return Proof("no_effect", f"the script lets torch use all {cores} cores")
    return Proof("applied", f"{cores} threads instead of {wanted}")


ALL_CORES = Technique(
    name="all_cores",
    seam="process",
    numerics=lambda: Numerics.ROUNDING,
    why_not=lambda: "the script sets the number of threads, which is the script's own choice",
    apply=_with_all_cores,
    proof=_proof_with_all_cores,
    candidates=lambda: (),
    live=Live(_update_on, _update_off),
)


def _without_graph(target: ProcessTarget) -> ProcessTarget:
    target.switch = lambda: _drop_create_graph(target.notes)
    return target


def _drop_create_graph(notes: dict[str, Any]) -> Callable[[], None]:
    import torch

    backward = torch.autograd.backward
    notes["is_on"] = True

    @functools.wraps(backward)
    def backward_without_graph(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        *rest: Any,
        **named: Any,
    ) -> None:
        if notes["is_on"] and create_graph:
            notes["backwards"] = notes.get("backwards", 0) + 1
            create_graph = False
        backward(tensors, grad_tensors, retain_graph, create_graph, *rest, **named)

    torch.autograd.backward = backward_without_graph
    return lambda: setattr(torch.autograd, "backward", backward)


def _proof_without_graph(target: ProcessTarget) -> Proof:
    count = target.notes.get("backwards", 0)
    if not count:
        return Proof("no_effect", "no backward was to keep a graph of itself")
    return Proof("applied", f"{count} backwards without a graph of themselves")


NO_GRAPH = Technique(
    name="no_graph_of_gradients",
    seam="process",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "only the script knows whether it needs gradients of gradients",
    apply=_without_graph,
    proof=_proof_without_graph,
    candidates=lambda: (),
    live=BY_NOTE,
)


def _without_unused_gradients(target: ModelTarget) -> ModelTarget:
    held = {id(p) for o in target.optimizers for group in o.param_groups for p in group["params"]}
    left = [p for p in target.module.parameters() if p.requires_grad and id(p) not in held]
    if not left:
        raise Refusal(
            f"every parameter of {type(target.module).__name__} that requires a gradient is in an "
            "optimizer: all gradients that are computed are used, and there is nothing to save. "
            "Keep the model as it is."
        )
    target.notes["left"] = [weakref.ref(parameter) for parameter in left]
    _require_gradients(target, needed=False)
    return target


def _require_gradients(target: ModelTarget, *, needed: bool) -> None:
    for each in target.notes["left"]:
        parameter = each()
        if parameter is not None:
            parameter.requires_grad_(needed)
            parameter.grad = None


def _no_gradients(target: ModelTarget, options: Any) -> None:
    del options
    _require_gradients(target, needed=False)


def _all_gradients(target: ModelTarget, options: Any) -> None:
    del options
    _require_gradients(target, needed=True)


NO_UNUSED_GRADIENTS = Technique(
    name="no_unused_gradients",
    seam="model",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "only the script knows whether it needs these gradients",
    apply=_without_unused_gradients,
    proof=lambda target: Proof("applied", f"{len(target.notes['left'])} tensors without gradients"),
    candidates=lambda: (),
    live=Live(_no_gradients, _all_gradients),
)


def _in_single_precision(target: ModelTarget) -> ModelTarget:
    import torch

    module, notes = target.module, target.notes

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype is torch.float64 else tensor

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.dtype is torch.float32 else tensor

    def before(module: Any, args: Any, kwargs: Any) -> Any:
        del module
        notes["forwards"] = notes.get("forwards", 0) + 1
        return map_tensors(args, narrow), map_tensors(kwargs, narrow)

    def after(module: Any, args: Any, output: Any) -> Any:
        del module, args
        return map_tensors(output, widen)

    module.float()
    for optimizer in target.optimizers:
        _narrow_state(optimizer, narrow)
    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)
    return target


def _narrow_state(optimizer: Any, narrow: Callable[[Any], Any]) -> None:
    # What an optimizer has made by then would be read in float64 in every update.
    for state in optimizer.state.values():
        for key, value in state.items():
            if hasattr(value, "dtype"):
                state[key] = narrow(value)


def _proof_of_single_precision(target: ModelTarget) -> Proof:
    count = target.notes.get("forwards", 0)
    if not count:
        return Proof("no_effect", "the model was not called")
    return Proof("applied", f"{count} forwards in float32")


SINGLE_PRECISION = Technique(
    name="single_precision",
    seam="model",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "the script asks for float64, and only its author knows why",
    apply=_in_single_precision,
    proof=_proof_of_single_precision,
    candidates=lambda: (),
)


PAGES = {
    ALL_CORES.name: "Lets torch use all cores, whatever number of threads the script sets. A "
    "diagnosis races it against the plain script to measure what fewer threads cost. No plan can "
    "hold it: the script sets the number.",
    NO_ANOMALY.name: "Keeps anomaly detection off. A diagnosis races it against the plain script "
    "to measure what anomaly detection costs. No plan can hold it: the script asks for it.",
    NO_GRAPH.name: "Lets `backward(create_graph=True)` keep no graph of the gradients. A diagnosis "
    "races it against the plain script to measure what that graph costs. No plan can hold it: only "
    "the script knows whether it needs gradients of gradients.",
    NO_UNUSED_GRADIENTS.name: "Computes no gradients of parameters that no optimizer holds. A "
    "diagnosis races it against the plain script to measure what they cost. No plan can hold it: "
    "only the script knows whether it needs them.",
    SINGLE_PRECISION.name: "Computes a float64 model in float32. A diagnosis races it against the "
    "plain script to measure what float64 costs. No plan can hold it: the script asks for float64.",
}
"""Name of an intervention -> what `hotlap explain` says of it."""
