"""Errors under a limit of memory: which ones say that memory ran out, and what is said of them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.device.accelerator import Cuda, device_of
from hotlap.engine.memory.limit import (
    Limit,
    asked_for,
    enforce,
    limit_of,
    limit_of_turns,
    ran_out,
)
from hotlap.host.memory import resident_bytes


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), ""),
        (OSError(12, "Cannot allocate memory"), ""),
        (RuntimeError("could not create a primitive"), ": oneDNN could not create a primitive"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.50 GiB"), "asked for 2.50 GiB more"),
        (RuntimeError("can't allocate memory: you tried to allocate 1048576 bytes"), "1.0 MiB"),
    ],
    ids=repr,
)
def test_what_says_that_memory_ran_out(error: Exception, words: str) -> None:
    assert ran_out(error) and words in asked_for(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("out of memory"),
        RuntimeError("could not construct a memory descriptor"),
    ],
    ids=repr,
)
def test_what_does_not(error: Exception) -> None:
    assert not ran_out(error)
    raised = RuntimeError("the step failed")
    raised.__cause__ = error
    assert not ran_out(raised)


def test_sizes_that_take_turns_on_a_cpu_have_what_the_host_has() -> None:
    asked = resident_bytes()[0] + 2**20
    assert limit_of(device_of("cpu"), asked).bytes == asked
    assert limit_of_turns(device_of("cpu"), asked).bytes > asked + 2**20
    # What is asked for and larger is kept.
    assert limit_of_turns(device_of("cpu"), 2**60).bytes == 2**60
    gpu: Any = SimpleNamespace(kind="cuda", free_bytes=lambda: 2**40)
    assert limit_of_turns(gpu, asked).bytes == asked


class Allocator:
    """Shares of memory that torch's own functions were asked for; device 1 is the current one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tells: bool = True) -> None:
        self.shares, self.asked, self._tells = {0: 1.0, 1: 1.0}, list[tuple[float, int]](), tells
        # What refuses a device without a number is torch's code, and not replaced.
        monkeypatch.setattr("torch.cuda.memory._lazy_init", lambda: None)
        monkeypatch.setattr(torch._C, "_cuda_setMemoryFraction", self._set, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getMemoryFraction", self._get, raising=False)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=1000)
        )

    def _set(self, share: float, number: int) -> None:
        self.asked.append((share, number))
        self.shares[number] = share

    def _get(self, number: int) -> float:
        if not self._tells:
            raise RuntimeError("not supported by this allocator")
        return self.shares[number]


@pytest.mark.parametrize(("name", "number"), [("cuda", 1), ("cuda:0", 0)])
@pytest.mark.parametrize("tells", [True, False])
def test_on_cuda_torchs_allocator_is_limited_meanwhile(
    name: str, number: int, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator(monkeypatch, tells=tells)
    with pytest.raises(MemoryError), enforce(Limit(Cuda(name), 250)):
        raise MemoryError
    assert allocator.asked == [(0.25, number), (1.0, number)]


def test_a_limit_that_was_there_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch)
    allocator.shares[1] = 0.5
    for asked, share in ((250, 0.25), (800, 0.5), (5000, 0.5)):
        with enforce(Limit(Cuda("cuda"), asked)):
            assert allocator.shares == {0: 1.0, 1: share}
        assert allocator.shares[1] == 0.5


def test_torch_refuses_to_limit_a_device_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    Allocator(monkeypatch)
    with pytest.raises(ValueError, match="specified index"):
        torch.cuda.set_per_process_memory_fraction(0.5, "cuda")


@pytest.mark.gpu
def test_on_a_device_what_is_above_the_limit_fails() -> None:
    device: Any = Cuda("cuda")
    torch.ones(1, device="cuda")
    limit = Limit(device, torch.cuda.memory_reserved() + 2**24)
    with pytest.raises(RuntimeError) as caught, enforce(limit):
        torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert ran_out(caught.value)
    assert len(torch.empty(2**28, dtype=torch.uint8, device="cuda")) == 2**28
