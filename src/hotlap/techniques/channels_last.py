"""Channels-last memory format for convolution models.

What it does   stores 4-D weights channels last before the first forward; convolutions then give
               channels-last activations without copies between layouts.
When it helps  convolutions on GPUs with tensor cores, and on CPUs with a good oneDNN path.
When it hurts  models with operators that fall back to the default layout: copies come back, twice.
Numerics       rounding: other kernels, another order of sums. On a CPU batch norm's kernel for
               this layout is 250 times less exact than the default one (torch 2.13).
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md
Source         PyTorch tutorial on memory formats; torch.nn.Module.to documentation.
"""

import contextlib
import copy
import inspect
import weakref
from collections.abc import Sequence
from typing import Any

from hotlap.compat import drop_forward_hooks, records_operators
from hotlap.task import TaskFacts
from hotlap.techniques.record import Live, ModelTarget, Numerics, Proof, Refusal, Technique

_NO_CONVOLUTION = (
    "the model has no 2-D convolution for channels_last to speed up. Expected: at least one "
    "`Conv2d`; or use a plan without channels_last."
)
_OF_VIEWS = "view size is not compatible"
"""In torch's error of a view that the strides of a tensor do not allow."""
_VIEWS = (
    "the model views the output of a convolution as rows, which its layout then forbids. Use "
    "`torch.flatten(x, 1)` instead of `x.view(...)`"
)
_NOT_TRIED = "the model calls `view`, and cannot be copied to try whether its layout forbids that"


def why_not(task: TaskFacts) -> str | None:
    if not any(name.endswith("Conv2d") for name in task.layers):
        return _NO_CONVOLUTION
    return None


def apply(target: ModelTarget) -> ModelTarget:
    import torch

    convolutions = [m for m in target.module.modules() if isinstance(m, torch.nn.Conv2d)]
    if not convolutions:
        raise Refusal(_NO_CONVOLUTION)
    notes = target.notes
    layout = notes["channels_last"] = _Layout(target.module, target.optimizers)
    layout.convert()

    def look(module: Any, args: Any, output: Any) -> None:
        del module, args
        notes["output_is_channels_last"] = output.is_contiguous(memory_format=torch.channels_last)
        handle.remove()

    handle = convolutions[-1].register_forward_hook(look)
    return target


def _may_view_rows(module: Any) -> bool:
    """Return whether the code of a module of the user's calls `view`."""
    kinds = {base for each in module.modules() for base in type(each).__mro__}
    for kind in kinds:
        if kind.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        # What was typed in has no file.
        with contextlib.suppress(OSError, TypeError):
            if ".view(" in inspect.getsource(kind):
                return True
    return False


def _why_not_forward(module: Any, args: Any, kwargs: Any, optimizers: Sequence[Any]) -> str:
    """Return why a forward may end in a view that the layout forbids; empty if it does not.

    A copy of the module is called, with copies of what it is given: the forward that follows must
    find what it would have found.
    """
    import torch

    from hotlap.nested import map_tensors
    from hotlap.rng import rng_states, set_rng_states

    states = rng_states()
    # A `forward` that was set on the module calls that one, whoever is copied.
    buffers = [(buffer, buffer.detach().clone(), buffer._version) for buffer in module.buffers()]
    try:
        # An optimizer that the module holds is the script's: a copy would be another one of it.
        copied = copy.deepcopy(module, {id(each): each for each in optimizers})
        # The script's own hooks may keep what they see.
        drop_forward_hooks(copied)
        args, kwargs = map_tensors((args, kwargs), lambda tensor: tensor.detach().clone())
    except Exception as error:
        return f"{_NOT_TRIED}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    try:
        with torch.no_grad():
            copied.forward(*args, **kwargs)
    except Exception as error:
        # Another error comes again.
        return _VIEWS if _OF_VIEWS in str(error) else ""
    finally:
        set_rng_states(states)
        with torch.no_grad():
            for buffer, value, version in buffers:
                if buffer._version != version and buffer.shape == value.shape:
                    buffer.copy_(value)
        # Casts without gradients are none that a step can use.
        torch.clear_autocast_cache()
    return ""


class _Layout:
    """The layout of a model's 4-D tensors, and of its optimizers' state beside them.

    Args:
        module: the model, which it does not keep alive.
        optimizers: those that train it, neither.
    """

    def __init__(self, module: Any, optimizers: Sequence[Any]) -> None:
        self._module = weakref.ref(module)
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        # By strides: a kernel of 1 x 1 or of one channel is contiguous in both layouts, and yet
        # the one that its strides name is the one that convolutions compute in.
        self._strides = {name: tensor.stride() for name, tensor in _images(module)}
        self.refused = ""
        """Why the model cannot be in this layout; empty if it can."""
        self._must_try = _may_view_rows(module)
        self._hook: Any = None

    def _try_next_forward(self, module: Any) -> None:
        """Have the next forward tried beforehand, on a copy.

        An error in the middle of a step would end the script, or the race of all techniques.
        """

        def try_forward(called: Any, args: Any, kwargs: Any) -> None:
            # A copy of the model may have the hook, and an estimate calls the model without data.
            if called is not self._module() or records_operators():
                return
            self._must_try = False
            self._forget_hook()
            optimizers = [each for ref in self._optimizers if (each := ref()) is not None]
            self.refused = _why_not_forward(called, args, kwargs, optimizers)
            if self.refused:
                self.restore()

        self._hook = module.register_forward_pre_hook(try_forward, with_kwargs=True)

    def _forget_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def convert(self) -> None:
        """Store them channels last."""
        import torch

        module = self._module()
        if module is None or self.refused:
            return
        try:
            module.to(memory_format=torch.channels_last)
        except Exception:
            # Half of a model in another layout is neither the plain run nor the plan.
            self.restore()
            raise
        self._place_state([tensor for _, tensor in _images(module)])
        if self._must_try and self._hook is None:
            self._try_next_forward(module)

    def restore(self) -> None:
        """Store what `convert` changed as it was."""
        self._forget_hook()
        module = self._module()
        if module is None:
            return
        changed = []
        for name, tensor in _images(module):
            strides = self._strides.get(name)
            if strides is not None and tensor.stride() != strides and 0 not in strides:
                tensor.data = _with_strides(tensor.data, strides)
                if tensor.grad is not None:
                    tensor.grad = _with_strides(tensor.grad, strides)
                changed.append(tensor)
        self._place_state(changed)

    def _place_state(self, tensors: Sequence[Any]) -> None:
        # State that a checkpoint brought in keeps the old layout, and fused kernels walk memory,
        # not strides: parameter and state must lie alike.
        own = {id(tensor) for tensor in tensors}
        for optimizer in (each for ref in self._optimizers if (each := ref()) is not None):
            for parameter, state in optimizer.state.items():
                if id(parameter) in own:
                    for key, value in state.items():
                        if hasattr(value, "shape") and value.shape == parameter.shape:
                            state[key] = _with_strides(value, parameter.stride())


def _images(module: Any) -> list[tuple[str, Any]]:
    """Return the parameters and buffers that `to` converts, by name."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [(name, tensor) for name, tensor in tensors if tensor.dim() == 4]


def _with_strides(tensor: Any, strides: tuple[int, ...]) -> Any:
    import torch

    if tensor.stride() == strides:
        return tensor
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _switch_on(target: ModelTarget, options: Any) -> None:
    del options
    target.notes["channels_last"].convert()


def _switch_off(target: ModelTarget, options: Any) -> None:
    del options
    target.notes["channels_last"].restore()


def proof(target: ModelTarget) -> Proof:
    layout = target.notes.get("channels_last")
    if layout is not None and layout.refused:
        return Proof("refused", layout.refused)
    seen = target.notes.get("output_is_channels_last")
    if seen is None:
        return Proof("no_effect", "the last convolution never ran")
    if not seen:
        return Proof("no_effect", "the last convolution's output is not in channels_last format")
    return Proof("applied", "the last convolution's output is in channels_last format")


TECHNIQUE = Technique(
    name="channels_last",
    seam="model",
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    memory_format="channels_last",
    is_opportunity=True,
    by_hand="call to(memory_format=torch.channels_last) on the model and on each batch of images",
    live=Live(_switch_on, _switch_off),
    on_ranks=True,
)
