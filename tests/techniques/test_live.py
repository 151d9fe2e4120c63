"""A technique that says it can be switched in a live process is on and off as it is told."""

import gc
from typing import Any

import torch

from hotlap.techniques import OptimizerTarget, ProcessTarget, get, registry
from hotlap.techniques.applying import recorded_operators

LIVE = {name for name, technique in registry().items() if technique.live is not None}


def test_every_live_technique_is_tested_here_or_with_a_loader_or_a_model() -> None:
    elsewhere = {"resident", "channels_last"}  # tests/attach/test_live.py
    assert {"threads", "flush_denormal", "optimizer", "garbage_collector", *elsewhere} == LIVE


def step(optimizer: Any) -> bool:
    """Take a step; return whether the fused kernel ran in it."""
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    names: set[str] = set()
    with recorded_operators(names):
        optimizer.step()
    return any("_fused_" in name for name in names)


def test_an_optimizers_implementation_is_switched_between_two_steps() -> None:
    technique = get("optimizer")
    options = technique.options({"implementation": "fused"})
    optimizer = torch.optim.Adam([torch.ones(8, requires_grad=True)])
    target = technique.apply(OptimizerTarget(optimizer), options)
    assert technique.live is not None
    assert step(optimizer)
    technique.live.off(target, options)
    technique.live.off(target, options)
    assert not step(optimizer)
    technique.live.on(target, options)
    assert step(optimizer)


def test_the_number_of_threads_is_switched() -> None:
    technique, before = get("threads"), torch.get_num_threads()
    options = technique.options({"count": before + 1})
    target = technique.apply(ProcessTarget({}), options)
    assert technique.live is not None and target.switch is not None
    undo = target.switch()
    try:
        assert torch.get_num_threads() == before + 1
        technique.live.off(target, options)
        assert torch.get_num_threads() == before
        technique.live.on(target, options)
        assert torch.get_num_threads() == before + 1
    finally:
        undo()
    assert torch.get_num_threads() == before


SMALL = 2e-38
"""Normal; half of it is denormal."""


def zeros(elements: int = 2**18) -> int:
    """Return how many of so many products that are denormal are zero, in all threads."""
    products = (torch.full((elements,), SMALL) * 0.5).view(torch.int32)
    return int((products == 0).sum())


def test_denormals_are_flushed_in_all_threads_and_computed_again() -> None:
    technique, count, threads = get("flush_denormal"), 2**18, torch.get_num_threads()
    torch.set_num_threads(2)
    assert zeros() == 0
    # Control: without new threads only the calling one flushes.
    torch.set_flush_denormal(True)
    assert 0 < zeros() < count
    torch.set_flush_denormal(False)
    target = technique.apply(ProcessTarget({}), technique.options({}))
    assert technique.live is not None and target.switch is not None
    undo = target.switch()
    try:
        assert zeros() == count and technique.proof(target, None).state == "applied"
        technique.live.off(target, None)
        assert zeros() == 0 and technique.proof(target, None).state == "no_effect"
        technique.live.on(target, None)
        assert zeros() == count
    finally:
        undo()
        torch.set_num_threads(threads)
    assert zeros() == 0


def test_pythons_collector_is_held_and_released() -> None:
    technique = get("garbage_collector")
    options = technique.options({})
    target = technique.apply(ProcessTarget({}), options)
    assert technique.live is not None and target.switch is not None
    undo = target.switch()
    try:
        technique.live.on(target, options)
        technique.live.on(target, options)
        assert not gc.isenabled()
        technique.live.off(target, options)
        assert gc.isenabled()
    finally:
        undo()
    assert gc.isenabled()
