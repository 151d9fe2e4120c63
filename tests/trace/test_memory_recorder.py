"""What a recorder of memory keeps of a run that is fed to it by hand."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotlap.rules.memory import find_all
from hotlap.trace import holders
from hotlap.trace.growing import count_grown, has_shrunk
from hotlap.trace.memory_recorder import MemoryRecorder
from hotlap.trace.memory_schema import MemoryTrace
from hotlap.trace.recorder import Limits, Recorder


def watched(step: Callable[[int], Any], *, steps: int = 8) -> MemoryTrace:
    """Return what is recorded of a loop whose every pass calls `step` in its forward."""
    recorder = MemoryRecorder(list, list)
    recorder.begin()
    try:
        for number in range(steps):
            recorder.enter_phase("data")
            recorder.batch_ends({"ids": IDS, "mask": IDS != 0})
            recorder.forward_begins(None)
            step(number)
            recorder.backward_begins()
            recorder.backward_ends()
            recorder.step_ends(None)
    finally:
        trace = recorder.trace("cpu", None)
    return trace


IDS = torch.tensor([[5, 6, 7, 0, 0, 0], [5, 6, 7, 8, 9, 4], [3, 0, 0, 0, 0, 0]])


def test_padding_of_the_batches_that_are_trained_on_is_kept() -> None:
    rows = [row for row in watched(lambda _: None, steps=3).batches if row.name == "batch['ids']"]
    assert [(row.step, row.filled, row.longest, row.mask) for row in rows] == [
        (1, 10, 6, "batch['mask']"),
        (2, 10, 6, "batch['mask']"),
        (3, 10, 6, "batch['mask']"),
    ]


def test_looking_at_a_batch_is_none_of_the_scripts_memory() -> None:
    # For numpy it is copied into another dtype.
    batch = [torch.ones(64, 64, dtype=torch.bfloat16)]
    recorder = MemoryRecorder(list, list)
    recorder.begin()
    try:
        recorder.batch_ends(batch)
        recorder.forward_begins(None, (batch,))
        seen = torch.ones(3)
    finally:
        trace = recorder.trace("cpu", None)
    assert [block.bytes for block in trace.blocks if block.step] == [seen.nbytes]


def test_a_batch_that_is_not_trained_on_is_not_counted() -> None:
    recorder = MemoryRecorder(list, list)
    recorder.begin()
    try:
        recorder.batch_ends([IDS])
        recorder.batch_ends([IDS + 1])
        recorder.backward_begins()
        recorder.backward_begins()
    finally:
        trace = recorder.trace("cpu", None)
    assert len(trace.batches) == 1


def test_a_run_without_a_loader_shows_its_batch_as_the_models_inputs() -> None:
    recorder = MemoryRecorder(list, list)
    recorder.begin()
    try:
        recorder.forward_begins(None, (IDS, "text"))
        recorder.forward_begins(None, (IDS, "text"))
        recorder.backward_begins()
    finally:
        trace = recorder.trace("cpu", None)
    assert [row.name for row in trace.batches] == ["inputs[0]"]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch:UserWarning")
def test_batches_of_any_dtype_are_looked_at() -> None:
    odd = [
        torch.zeros(3, 6).to(dtype)
        for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.complex32)
    ]
    quantized = torch.quantize_per_tensor(torch.rand(3, 6), 0.1, 0, torch.quint8)
    recorder = MemoryRecorder(list, list)
    recorder.begin()
    try:
        recorder.batch_ends([*odd, quantized, torch.eye(4).to_sparse(), "text", None])
    finally:
        trace = recorder.trace("cpu", None)
    assert trace.notes == ()


def test_a_batch_that_cannot_be_looked_at_is_no_matter_of_the_run() -> None:
    class Broken(dict[str, Any]):
        def items(self) -> Any:
            raise KeyError("not now")

    recorder = MemoryRecorder(list, list)
    recorder.begin()
    try:
        for given in ([IDS], Broken()):
            recorder.batch_ends(given)
            recorder.backward_begins()
    finally:
        trace = recorder.trace("cpu", None)
    assert trace.batches == ()
    assert trace.notes == (
        "nothing is said of padding: to look at them failed (KeyError: 'not now')",
    )


@pytest.mark.parametrize("kind", [lambda: deque(maxlen=50), list])
def test_a_deque_with_a_length_is_no_finding(
    kind: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kind()
    held = holders.Held("kept", __file__, kept)
    monkeypatch.setattr("hotlap.trace.memory_recorder.find_held", lambda *_: [held])
    trace = watched(lambda _: kept.append(torch.ones(2**16)))
    rules = [finding.rule for finding in find_all(trace)]
    assert rules == ([] if isinstance(kept, deque) else ["retained_outputs"])


def test_a_container_that_was_emptied_is_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    held = holders.Held("kept", __file__, kept)
    monkeypatch.setattr("hotlap.trace.memory_recorder.find_held", lambda *_: [held])

    def step(number: int) -> None:
        if number == 4:
            kept.clear()
        kept.append(torch.ones(2**16))

    assert watched(step).growths == ()
    assert find_all(watched(step)) == []


def test_a_container_that_is_made_again_under_its_name_grows_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[torch.Tensor] = []
    other: list[list[int]] = [[]]
    by_chance: list[int] = []

    def step(number: int) -> None:
        nonlocal kept, other, by_chance
        # A list of each step's own may be longer than the last for a while.
        by_chance = [0] * max(3, number)
        kept = [*kept, torch.ones(2**16)]
        # Several of one name cannot be told apart.
        other = [[0] * (len(other[0]) + 1), []]

    def find_held(*_: Any) -> list[holders.Held]:
        both = [holders.Held("other[...]", __file__, each) for each in other]
        named = {"kept": kept, "by_chance": by_chance}
        return [*(holders.Held(name, __file__, each) for name, each in named.items()), *both]

    monkeypatch.setattr("hotlap.trace.memory_recorder.find_held", find_held)
    assert [each.name for each in watched(step).growths] == ["kept"]


def test_growth_is_counted_from_the_last_step_that_had_none() -> None:
    assert count_grown([None, 1, 1, 2, 4, 5]) == 3
    assert count_grown([1, 2, 2]) == 0
    assert count_grown([]) == 0
    assert has_shrunk([None, 3, 1, 2]) and not has_shrunk([None, 1, 1, None, 0, 5])


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_an_observed_loss_keeps_no_memory_of_the_batch(name: str) -> None:
    outputs = torch.ones(64, 128, requires_grad=True)
    loss = getattr(torch.nn.functional, name)(outputs, torch.zeros(64, 128))
    recorder = Recorder(Limits(), 0.0, lambda _: None)
    recorder.note_loss(loss)
    (kept,) = recorder._losses
    assert kept.untyped_storage().nbytes() == 4 and not kept.requires_grad
    assert recorder.losses() == [float(loss.detach())]


class Proxy:
    """An object of a library's that says itself what its class is."""

    asked = False

    @property
    def __class__(self) -> Any:
        Proxy.asked = True
        return type(None)


def test_no_object_of_the_script_is_asked_for_its_class() -> None:
    kept = [Proxy()]
    recorder = MemoryRecorder(list, list)
    recorder.begin()
    recorder.trace("cpu", None)
    assert kept and not Proxy.asked


def test_a_graph_grows_only_where_it_reaches_into_earlier_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.ones(1, requires_grad=True)
    held: dict[str, torch.Tensor] = {}

    def step(number: int) -> None:
        # As a recurrent network, where each batch has longer sequences than the last.
        longer = weight
        for _ in range(number + 2):
            longer = longer * 2
        held["longer"] = longer
        held["total"] = held.get("total", weight) + longer.sum()

    def find_held(*_: Any) -> list[holders.Held]:
        return [holders.Held(name, __file__, each) for name, each in held.items()]

    monkeypatch.setattr("hotlap.trace.memory_recorder.find_held", find_held)
    assert [each.name for each in watched(step).growths] == ["total"]
