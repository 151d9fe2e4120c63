"""One table, every technique, in the engine: what it may never change, alone and in pairs."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap.checkpoint.read import find_newest
from hotlap.plan import Plan
from hotlap.techniques import Numerics, numerics_of
from tests.techniques.rows import ELSEWHERE, NEED_CUDA, NEED_RANKS, SETTINGS, refuses
from tests.techniques.rows import ROWS as ALL

ROWS = {row: options for row, options in ALL.items() if row.split()[0] not in ELSEWHERE}

REFUSED = {
    frozenset({"resident", "workers"}),
    frozenset({"reader_threads", "workers"}),
    frozenset({"cuda_graph", "optimizer"}),
    frozenset({"cuda_graph", "recompute"}),
    frozenset({"deterministic", "cudnn_benchmark"}),
}
"""Pairs of which one refuses the other."""
PAIRS = [
    pair for pair in itertools.combinations(ROWS, 2) if pair[0].split()[0] != pair[1].split()[0]
]
SECOND = ("optimizer foreach", "autocast bf16", "attention math")
"""Of a technique with two rows, the one that is not paired in `make test`."""
LATER = {*SETTINGS, *NEED_CUDA, *NEED_RANKS, *SECOND, "threads"}
"""What is paired in `make test-all` only; every two other techniques are paired in `make test`."""


class Images(Dataset):
    def __len__(self) -> int:
        return 36

    def __getitem__(self, index: int) -> Any:
        return torch.arange(64.0).add(index).sin().reshape(1, 8, 8), index % 3


class Attend(nn.Module):
    """Attention of each channel's rows to each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def network() -> nn.Module:
    blocks = [nn.Sequential(nn.Conv2d(n, 4, 3, padding=1), nn.ReLU()) for n in (1, 4)]
    return nn.Sequential(*blocks, Attend(), nn.Flatten(), nn.Linear(256, 3))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def task(steps: int = 15) -> hotlap.Task:
    return hotlap.Task(
        model=network,
        loss=loss,
        data=Images(),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        batch_size=4,
        accumulate=2,
        steps=steps,
    )


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def plan(*rows: str) -> Plan:
    return Plan({row.split()[0]: ROWS[row] for row in rows})


def saved(folder: Path) -> Any:
    found, _ = find_newest(folder / "ckpt")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """What the plain run saves in the end, and its last loss."""
    folder = tmp_path_factory.mktemp("plain")
    done = hotlap.train(task(), Plan(), run_dir=folder)
    return saved(folder).tensors, done.epochs[-1].loss


def check(
    chosen: Plan, plain: tuple[dict[str, Any], float], folder: Path, *, refused: bool = False
) -> None:
    expected, last = plain
    done = hotlap.train(task(), chosen, run_dir=folder / "whole")
    states = {row["name"]: row["state"] for row in done.techniques}
    assert set(states) == set(chosen.techniques)
    assert ("refused" in states.values()) is refused, done.techniques
    # The allocator is chosen before the first tensor is on the device, and these came earlier.
    late = {"allocator"} if torch.cuda.is_available() else set[str]()
    assert "no_effect" not in {state for name, state in states.items() if name not in late}
    whole = saved(folder / "whole").tensors
    for file in ("model", "optimizer"):
        assert whole[file].keys() == expected[file].keys()
        for name, tensor in whole[file].items():
            assert tensor.dtype == expected[file][name].dtype
            if numerics_of(chosen) is Numerics.EXACT:
                assert torch.equal(tensor, expected[file][name]), name
    assert done.epochs[-1].loss == pytest.approx(last, rel=0.05)
    hotlap.train(task(steps=7), chosen, run_dir=folder / "parts")
    hotlap.train(task(), chosen, run_dir=folder / "parts", resume="auto")
    for name, tensor in saved(folder / "parts").tensors["model"].items():
        assert torch.equal(tensor, whole["model"][name]), name


def marked(row: Any, *names: str) -> Any:
    """Compiling takes ten seconds; it is left to `make test-all`, as are the pairs of `LATER`."""
    # Inductor imports modules of torch that warn of themselves.
    marks = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")] if "compile" in names else []
    if len(names) > 1 and not LATER.isdisjoint(names):
        marks.append(pytest.mark.slow)
    if len(names) > 1 and not {*NEED_CUDA}.isdisjoint(names):
        # Without a device all of them are tried at once beside each other technique.
        marks.append(pytest.mark.gpu)
    return pytest.param(row, marks=marks, id=" + ".join(names))


@pytest.mark.parametrize("row", [marked(row, row) for row in ROWS])
def test_alone(row: str, plain: Any, tmp_path: Path) -> None:
    check(plan(row), plain, tmp_path, refused=refuses(REFUSED, row))


@pytest.mark.parametrize("row", ["resident", "master_weights", "micro_batch", "optimizer fused"])
def test_all_settings_beside_another_technique(row: str, plain: Any, tmp_path: Path) -> None:
    check(plan(*SETTINGS, row), plain, tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="they serve on this device")
@pytest.mark.parametrize("row", [marked(row, row) for row in ROWS if row not in NEED_CUDA])
def test_what_needs_a_device_refuses_without_one_and_changes_nothing(
    row: str, plain: Any, tmp_path: Path
) -> None:
    check(plan(*NEED_CUDA, row), plain, tmp_path, refused=True)


@pytest.mark.parametrize("pair", [marked(pair, *pair) for pair in PAIRS])
def test_in_pairs(pair: tuple[str, str], plain: Any, tmp_path: Path) -> None:
    check(plan(*pair), plain, tmp_path, refused=refuses(REFUSED, *pair))


def test_every_two_techniques_are_paired_in_the_fast_suite() -> None:
    fast = [row for row in ROWS if row not in LATER and row != "compile"]
    assert {*SECOND} <= ROWS.keys()
    # None has two rows there, and only switches and what a CPU lacks have none.
    names = [row.split()[0] for row in fast]
    assert len(set(names)) == len(names)
    left_out = {row.split()[0] for row in ROWS} - {*names, *SETTINGS, *NEED_CUDA, *NEED_RANKS}
    assert left_out == {"compile", "threads"}
