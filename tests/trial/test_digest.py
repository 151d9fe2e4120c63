"""Digests tell bits, shapes and formats apart, and are read from a device all at once."""

from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.device.accelerator import Cuda
from hotlap.trial import digest


@dataclass
class Pair:
    left: Any
    right: Any


def values() -> Any:
    numbers = torch.arange(40, dtype=torch.float32)
    return {
        "odd": [numbers[:3], numbers[1:2], torch.tensor(2, dtype=torch.uint8)],
        "views": (numbers.view(5, 8).t(), numbers[1:].to(torch.float64), numbers[:0]),
        "rest": Pair(numbers.bool(), [numpy.arange(3), 1.5, None, "text"]),
    }


def test_digests_stay_what_they_were() -> None:
    # Records that are kept would differ otherwise.
    assert digest.of_tensor(torch.arange(5, dtype=torch.int16)) == 18296411654308662211
    assert digest.of_nested(values()) == "146746b5726dd12d"


def test_every_tensor_counts_and_its_order_too() -> None:
    seen = {digest.of_nested(values())}
    for change in (
        lambda v: v["odd"].reverse(),
        lambda v: v["odd"][1].add_(1),
        lambda v: v.update(views=v["views"][::-1]),
        lambda v: setattr(v["rest"], "left", v["rest"].left.int()),
    ):
        changed = values()
        change(changed)
        seen.add(digest.of_nested(changed))
    assert len(seen) == 5
    one, other = torch.ones(3), torch.zeros(9)
    assert digest.of_tensors([one, other]) == [digest.of_tensor(one), digest.of_tensor(other)]


def test_nothing_is_read_tensor_by_tensor() -> None:
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    with Reads() as reads:
        digest.of_nested([torch.randn(20) for _ in range(30)])
    assert reads.count == 0


@pytest.mark.gpu
def test_a_device_is_waited_for_once() -> None:
    given = [torch.randn(1 + number, device="cuda") for number in range(30)]
    expected = digest.of_nested([each.cpu() for each in given])
    # Factors are copied there once.
    digest.of_nested(given)
    with Cuda("cuda").host_reads() as reads:
        assert digest.of_nested(given) == expected
    # The sums of whole words, and what is left of tensors that end within one.
    assert len(reads) == 2
