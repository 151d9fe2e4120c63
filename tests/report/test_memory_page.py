"""The page of `diagnose --memory` names what the device's allocator counted beside the tensors."""

import io

import pytest
from rich.console import Console

from hotlap.diagnosis.memory import MemoryDiagnosis
from hotlap.report.memory import page
from hotlap.trace.memory_schema import Block, DevicePeak, Mark, MemoryTrace

MIB = 2**20
TRACE = MemoryTrace(
    device="cuda",
    steps=1,
    blocks=(
        Block(64 * MIB, "activations", "a.py:5", "add", "forward", 1, 0, 2, device="cuda"),
        Block(32 * MIB, "batches", "a.py:4", "stack", "data", 1, 1),
    ),
    marks=(Mark(0, 1, "forward"),),
    step_ends=(3,),
)


def shown(peak: DevicePeak | None) -> str:
    values = {**TRACE.__dict__, "device_peak": peak}
    console = Console(file=io.StringIO(), width=200)
    page(MemoryDiagnosis("a.py", MemoryTrace(**values), ()), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("allocated", "words"),
    [
        (80, "16.0 MiB of it are in no tensor that was seen"),
        (60, "4.0 MiB less than the tensors that were seen"),
    ],
)
def test_what_the_allocator_counts_is_compared_with_the_tensors(allocated: int, words: str) -> None:
    text = shown(DevicePeak(allocated * MIB, 100 * MIB))
    assert "Tensors take 64.0 MiB at the peak" in text
    assert f"{allocated}.0 MiB allocated at its peak, 100.0 MiB reserved" in text
    assert words in text


def test_a_run_on_a_cpu_has_no_such_allocator() -> None:
    assert "allocator" not in shown(None)
