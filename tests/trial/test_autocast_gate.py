"""Regions of autocast are heard of, and have no effect while their gate is closed."""

import pytest
import torch

from hotlap.trial.autocast_gate import AutocastGate, AutocastTurns, is_changed_in


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> AutocastGate:
    # What `install` puts in place is taken away again.
    monkeypatch.setattr(torch.autocast, "__enter__", torch.autocast.__enter__)
    monkeypatch.setattr(torch.autocast, "__exit__", torch.autocast.__exit__)
    found = AutocastGate()
    found.install()
    return found


def product() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_a_region_is_heard_of_and_one_that_is_off_is_not(gate: AutocastGate) -> None:
    with torch.autocast("cpu", enabled=False):
        assert gate.format == ""
    with torch.autocast("cpu", dtype=torch.float16):
        assert product() is torch.float16
    assert gate.format == "float16"


def test_a_closed_gate_leaves_regions_without_effect(gate: AutocastGate) -> None:
    gate.use(is_open=False)
    with torch.autocast("cpu"):
        assert product() is torch.float32
        with torch.autocast("cpu"):
            assert product() is torch.float32
    gate.use(is_open=True)
    with torch.autocast("cpu"):
        assert product() is torch.bfloat16
    assert product() is torch.float32


def test_a_region_that_has_begun_is_switched(gate: AutocastGate) -> None:
    with torch.autocast("cpu"):
        gate.use(is_open=False)
        assert product() is torch.float32
        gate.use(is_open=True)
        assert product() is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            # The innermost one counts.
            gate.use(is_open=True)
            assert product() is torch.float32
        assert product() is torch.bfloat16
    gate.use(is_open=True)
    assert product() is torch.float32


@pytest.mark.parametrize(
    ("change", "length", "expected"),
    [
        ("on", 2, [False, False, True, True, False]),
        ("off", 2, [True, True, False, False, True]),
        ("on", 0, [True] * 5),
        ("off", 0, [False] * 5),
        ("", 0, [True] * 5),
    ],
)
def test_the_first_turn_is_as_the_run_is(
    gate: AutocastGate, change: str, length: int, expected: list[bool]
) -> None:
    turns = AutocastTurns(gate, change, length)
    seen = []
    for step in range(5):
        turns.begin(step)
        seen.append(gate.is_open)
    assert seen == expected
    assert [is_changed_in(step, 2) for step in range(5)] == [False, False, True, True, False]
