"""`ShardedModel`: each rank keeps a share of every parameter, whole ones while a block computes.

The shares, their gathering and the sums of gradients are torch's `fully_shard`. Here is what a run
needs around it: sums in place of means, one order of blocks on all ranks, and the way back.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh

from hotlap.compat import find_optional
from hotlap.distributed import unused_gradients
from hotlap.distributed.block_order import BlockOrder
from hotlap.distributed.reduce import Reduce
from hotlap.distributed.shares import local_of, whole_of

_FSDP = "torch.distributed.fsdp"
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
)


def why_not(model: Any, blocks: Mapping[str, Any]) -> str | None:
    """Return why a model cannot be sharded, None if it can; the same on every rank."""
    if not unused_gradients.can_sum():
        return (
            f"torch {torch.__version__} waits forever where a parameter gets a gradient on some "
            "ranks only, so it cannot share gradients and parameters. Use torch 2.13 or newer, or "
            "set only level = 'optimizer' in the plan's [techniques.sharding]."
        )
    holders: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.dim() == 0:
            return (
                f"the parameter '{name}' is a scalar, which `sharding` cannot split over ranks. "
                "Give it the shape [1] in model(), or set only level = 'optimizer' in the plan's "
                "[techniques.sharding]"
            )
        if not parameter.is_contiguous():
            return (
                f"the parameter '{name}' is not contiguous, and `sharding` needs contiguous "
                "parameters. Remove `channels_last` from the plan or model() if either sets it; "
                "otherwise make the parameter contiguous in model() with `Tensor.contiguous()`"
            )
        holder = next((each for each in blocks if name.startswith(f"{each}.")), "")
        if holders.setdefault(id(parameter), holder) != holder:
            where = [
                f"the module '{each}'" if each else "the rest of the model"
                for each in (holders[id(parameter)], holder)
            ]
            return (
                f"the parameter '{name}' is shared by {where[0]} and {where[1]}, which `sharding` "
                "gathers at different times. In the plan's [techniques.sharding], set `wrap` to "
                "classes of modules that contain all uses of this parameter or none, as in `wrap = "
                "'Block'`; or set only level = 'optimizer' there"
            )
    return None


class ShardedModel:
    """Shares the parameters of a model, in place, before an optimizer is made for them.

    Args:
        model: it is called as a whole; its parameters become `DTensor`s.
        blocks: parts of it that are gathered by themselves, by name.
        reduce: the ranks.
        drops: whole parameters of a block are dropped after its forward pass.
        replicas: groups of ranks that hold all shares each.
        is_narrow: whole parameters are in bfloat16, shares and sums of gradients in their own
            format.
    """

    shares_parameters = True

    def __init__(
        self,
        model: Any,
        blocks: Mapping[str, Any],
        reduce: Reduce,
        *,
        drops: bool,
        replicas: int,
        is_narrow: bool,
    ) -> None:
        self._model, self._reduce = model, reduce
        self.updates = 0
        """Steps whose gradients were summed."""
        self.used: set[str] = set()
        """Names of parameters that got a gradient from this rank's own samples in this step."""
        self._places = [
            (module, key, parameter)
            for module in model.modules()
            for key, parameter in module._parameters.items()
            if parameter is not None
        ]
        """Each module, and the name and the parameter that it had there."""
        self._before = {module: (type(module), set(vars(module))) for module in model.modules()}
        self._is_whole = False
        _shard(model, blocks, self._make_mesh(replicas), drops=drops, is_narrow=is_narrow)
        self._shards: list[Any] = [
            each for each in model.modules() if isinstance(each, fsdp.FSDPModule)
        ]
        for each in self._shards:
            # Each module divides by the number of ranks by itself: only sums have one normalizer.
            each.set_force_sum_reduction_for_comms(True)
            each.set_gradient_divide_factor(1.0)
        unused_gradients.sum_zeros(model)
        for parameter in {id(place[2]): place[2] for place in self._places}.values():
            # The caller may hold them: they are whole again in the end, see `gather`.
            parameter.data = parameter.data.new_empty(0)
        self._handles = [*self._note_gradients()]
        self.order = BlockOrder(model, blocks, reduce)

    def _make_mesh(self, replicas: int) -> Any:
        device, world = next(iter(self._model.parameters())).device, self._reduce.world
        if device.type == "cuda":
            # The mesh takes what is current.
            torch.cuda.set_device(device)
        shape = (world,) if replicas == 1 else (replicas, world // replicas)
        names = ("shard",) if replicas == 1 else ("replicate", "shard")
        return init_device_mesh(device.type, shape, mesh_dim_names=names)

    @property
    def groups(self) -> int:
        """Parts of the model that are gathered by themselves."""
        return len(self._shards)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of the parameters that this rank holds, and all."""
        shares = [local_of(parameter).numel() for parameter in self._model.parameters()]
        return sum(shares), sum(parameter.numel() for parameter in self._model.parameters())

    def keeps(self, parameter: Any) -> bool:
        """Every rank keeps its share of every parameter's state."""
        del parameter
        return True

    def begin_step(self) -> None:
        """Forget which parameters got gradients."""
        self.used.clear()

    def begin_pass(self, *, is_last: bool) -> None:
        """Let a backward pass sum the gradients over all ranks, if it is the step's last one."""
        self._model.set_requires_gradient_sync(is_last)

    def reshard(self) -> None:
        """Drop whole parameters, after a forward pass that no backward pass follows."""
        for each in self._shards:
            each.reshard()

    def gather(self) -> None:
        """Make the parameters whole where they were before, on every rank; all call this at once.

        They lie in the host's memory: a device may not have room for them beside all else.
        """
        self.reshard()
        wholes: dict[int, Any] = {}
        for module, key, parameter in self._places:
            share = module._parameters[key]
            if id(share) not in wholes:
                wholes[id(share)] = parameter
                parameter.data = whole_of(share)
        self._is_whole = True

    def undo(self) -> None:
        """Make the model what it was before, if its parameters are whole again."""
        if not self._is_whole:
            return
        self._is_whole = False
        self.order.remove()
        for handle in self._handles:
            handle.remove()
        known = find_optional("_module_state_mapping") or {}
        for module, (kind, attributes) in self._before.items():
            for name in _HOOKS:
                hooks = vars(module)[name]
                for key in [key for key, hook in hooks.items() if _is_torchs(hook)]:
                    del hooks[key]
            for name in set(vars(module)) - attributes:
                if name.startswith(("_fsdp", "_is_fsdp", "__composable")):
                    delattr(module, name)
            module.__class__ = kind
            known.pop(module, None)
        for module, key, parameter in self._places:
            module._parameters[key] = parameter

    def _note_gradients(self) -> Any:
        """Let each parameter note its gradients, from the first forward pass on."""
        names = {
            (id(module), key): f"{name}.{key}" if name else key
            for name, module in self._model.named_modules()
            for key in module._parameters
        }
        inner: set[int] = set()
        for shard in reversed(self._shards):
            own = [part for part in shard.modules() if id(part) not in inner]
            inner |= {id(part) for part in own}
            places = [
                (part, key, names[id(part), key])
                for part in own
                for key, parameter in part._parameters.items()
                if parameter is not None and parameter.requires_grad
            ]
            watch = partial(_watch_gradients, places, self.used, set())
            yield shard.register_forward_pre_hook(watch)


def _shard(
    model: Any, blocks: Mapping[str, Any], mesh: Any, *, drops: bool, is_narrow: bool
) -> None:
    inside = outside = fsdp.MixedPrecisionPolicy()
    if is_narrow:
        inside = fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        outside = fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    for block in blocks.values():
        fsdp.fully_shard(block, mesh=mesh, reshard_after_forward=drops, mp_policy=inside)
    # The rest is used last and first: torch keeps it where it is not told to.
    keeps = None if drops else False
    fsdp.fully_shard(model, mesh=mesh, reshard_after_forward=keeps, mp_policy=outside)


def _watch_gradients(
    places: list[tuple[Any, str, str]], used: set[str], watched: set[int], *_: Any
) -> None:
    # Whole parameters are there now, and the same ones each time.
    if watched:
        return
    for module, key, name in places:
        parameter = module._parameters[key]
        watched.add(id(parameter))
        parameter.register_hook(partial(_note, used, name))


def _note(used: set[str], name: str, gradient: Any) -> None:
    del gradient
    used.add(name)


def _is_torchs(hook: Any) -> bool:
    """Return whether `fully_shard` has put a hook there."""
    hook = getattr(hook, "hook", hook)
    while hasattr(hook, "__wrapped__"):
        hook = hook.__wrapped__
    return str(getattr(hook, "__module__", "")).startswith(_FSDP)
