"""Collects a run's whole state for a checkpoint, and restores it; `Position`: step and epoch."""

from dataclasses import asdict
from typing import Any

import torch

from hotlap.checkpoint.codec import decode, encode
from hotlap.checkpoint.layout import Tensors, can_hold
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.optimizer import capture_optimizer, load_optimizer
from hotlap.engine.state.position import Position
from hotlap.engine.state.random_states import capture_random_states, load_random_states
from hotlap.engine.state.rank_parts import mark_parts
from hotlap.engine.state.same_task import check_same, fingerprint
from hotlap.engine.state.weights import extra_of, load_buffers, load_weights, unsaved_buffers
from hotlap.errors import UsageError


def capture(built: BuiltRun, position: Position) -> tuple[Tensors, dict[str, Any]]:
    """Return the run's tensors, by file and name, and everything else as plain data.

    Where ranks share what belongs to the parameters, each rank gets its parts. No tensor is copied.

    Raises:
        UsageError: something in it is of a kind that no checkpoint can store.
    """
    built.step.settle()
    # By identity: a parameter that is shared has several names, and is trained under one.
    named = built.model.named_parameters()
    trained = {id(p): built.weights[k] for k, p in named if k in built.weights}
    weights: dict[str, torch.Tensor] = {}
    extra = {}
    for name, value in built.model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            weights[name] = trained.get(id(value), value).detach()
        else:
            # What a module gives by `get_extra_state`.
            extra[name] = encode(value, f"the model's {name}")
    optimizer, groups = capture_optimizer(built)
    rng, others = capture_random_states()
    state = {
        "position": asdict(position),
        "skipped": built.step.skipped,
        "task": fingerprint(built),
        "extra": extra,
        "optimizer": groups,
        "schedule": None
        if built.scheduler is None
        else encode(built.scheduler.state_dict(), "the schedule"),
        "random": others,
        "scaler": None
        if built.step.target.scaler is None
        else encode(built.step.target.scaler.state_dict(), "the scaler"),
    }
    tensors = {"model": weights, "optimizer": optimizer, "random": rng}
    buffers = unsaved_buffers(built)
    if buffers:
        tensors["buffers"] = buffers
    _check_kinds(tensors)
    return mark_parts(built, tensors), state


def _check_kinds(tensors: dict[str, dict[str, torch.Tensor]]) -> None:
    for file, group in tensors.items():
        for name, tensor in group.items():
            if not can_hold(tensor):
                owner = "optimizer's state" if file == "optimizer" else "model's tensor"
                raise UsageError(
                    f"the {owner} '{name}' has dtype {tensor.dtype} and layout {tensor.layout}, "
                    "which a checkpoint cannot store. Expected: a dense tensor of floating point, "
                    "integer, bool or complex64 numbers. Convert this tensor, and keep `indices` "
                    "and `values` of a sparse one as two dense tensors; or remove --run-dir to "
                    "train without checkpoints."
                )


def restore(built: BuiltRun, checkpoint: Checkpoint) -> Position:
    """Put a run that was just built where the checkpoint's was.

    Raises:
        UsageError: the checkpoint is of another task; the message names what differs.
    """
    state = checkpoint.state
    check_same(state["task"], fingerprint(built), checkpoint)
    load_weights(built, {**checkpoint.tensors["model"], **extra_of(state)})
    load_buffers(built.model, checkpoint.tensors.get("buffers", {}))
    load_optimizer(built, checkpoint)
    if built.scheduler is not None:
        built.scheduler.load_state_dict(decode(state["schedule"]))
        built.step.forget_rates()
    built.step.skipped = state["skipped"]
    if built.step.target.scaler is not None and state["scaler"] is not None:
        built.step.target.scaler.load_state_dict(decode(state["scaler"]))
    load_random_states(checkpoint)
    return Position(**state["position"])
