"""Each rank of a machine has a device of its own."""

from types import SimpleNamespace

import pytest
import torch

from hotlap.distributed.ranks import ALONE, Ranks
from hotlap.engine import train

SECOND = Ranks(3, 4, local_rank=1, local_world=2)


@pytest.mark.parametrize(
    ("ranks", "asked", "visible", "expected"),
    [
        (SECOND, None, 2, "cuda:1"),
        (SECOND, "cuda", 2, "cuda:1"),
        # As Slurm's --gpus-per-task=1 shows them.
        (SECOND, None, 1, "cuda:0"),
        (SECOND, "cpu", 2, "cpu"),
        (ALONE, None, 2, None),
    ],
)
def test_a_rank_takes_the_device_of_its_number_or_the_only_one_it_sees(
    ranks: Ranks,
    asked: str | None,
    visible: int,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train, "device_of", lambda _: SimpleNamespace(kind="cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert train._own_device(asked, ranks) == expected
