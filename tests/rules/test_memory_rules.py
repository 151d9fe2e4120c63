"""What each memory rule says of a trace that was made by hand, and of its corrected twin."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap.rules.memory import MemoryFinding, find_all, registry
from hotlap.trace.memory_schema import (
    AllocatorStep,
    Block,
    CacheCall,
    DevicePeak,
    GradientSpan,
    Growth,
    Holding,
    Mark,
    MemoryTrace,
    SequenceBatch,
)

MIB = 2**20
STEPS = 6
SAMPLES, LENGTH = 8, 128


class Made:
    """Puts a trace together: storages are made and freed in the order of the calls."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.marks = [Mark(0, 0, "other")]
        self.step_ends: list[int] = []
        self.events = 0
        self.step = 1

    def make(self, size: int, kind: str, line: int, **more: Any) -> int:
        block = Block(
            size, kind, f"a.py:{line}", "add", self.marks[-1].phase, self.step, self.events, **more
        )
        self.blocks.append(block)
        self.events += 1
        return len(self.blocks) - 1

    def free(self, number: int) -> None:
        self.blocks[number] = replace(self.blocks[number], freed=self.events)
        self.events += 1

    def mark(self, phase: str) -> None:
        self.marks.append(Mark(self.events, self.step, phase))

    def end_step(self) -> None:
        self.step_ends.append(self.events)
        self.step += 1
        self.mark("other")

    def trace(self, **more: Any) -> MemoryTrace:
        values = {"device": "cpu", "steps": len(self.step_ends), **more}
        return MemoryTrace(
            blocks=tuple(self.blocks),
            marks=tuple(self.marks),
            step_ends=tuple(self.step_ends),
            **values,
        )


def steps(kept: int = 0, line: int = 9, rotates_at: int = 0) -> Made:
    """Return steps of 64 MiB of activations, each of which leaves `kept` bytes behind.

    Args:
        rotates_at: so many are kept at most; 0 for all.
    """
    made = Made()
    made.step = 0
    made.make(16 * MIB, "other", 1)
    made.step, left = 1, []
    for _ in range(STEPS):
        made.mark("forward")
        activations = made.make(64 * MIB, "activations", 5)
        if kept:
            left.append(made.make(kept, "retained", line))
        if rotates_at and len(left) > rotates_at:
            made.free(left.pop(0))
        made.free(activations)
        made.end_step()
    return made


def kept_blocks(made: Made) -> tuple[int, ...]:
    return tuple(
        n for n, each in enumerate(made.blocks) if each.kind == "retained" and each.freed is None
    )


def growth(made: Made, **more: Any) -> Growth:
    values = {
        "kind": "list",
        "items": 1.0,
        "host_bytes": 8.0,
        "nodes": 0.0,
        "steps": 5,
        "observed": 6,
        **more,
    }
    return Growth("kept", "a.py:9", blocks=kept_blocks(made), **values)


def found(trace: MemoryTrace) -> list[MemoryFinding]:
    """Return what all rules find, and see that the trace survives being written and read."""
    assert MemoryTrace.from_json(trace.to_json()) == trace
    return find_all(trace)


def rules_of(trace: MemoryTrace) -> list[str]:
    return [finding.rule for finding in found(trace)]


def test_nothing_is_said_of_a_run_that_keeps_nothing() -> None:
    assert found(steps().trace()) == []


@pytest.mark.parametrize("name", registry())
def test_each_rule_has_a_page_with_the_headings_of_the_others(name: str) -> None:
    page = registry()[name].page
    for heading in ("What it sees", "Why it costs", "What to do", "Evidence"):
        assert f"\n{heading}   " in page, f"{name}: {heading}"


# What grows.


def test_outputs_that_a_list_keeps_are_found_with_the_steps_in_which_it_grew() -> None:
    made = steps(MIB)
    (finding,) = found(made.trace(growths=(growth(made),)))
    assert (finding.rule, finding.where, finding.holder) == ("retained_outputs", "a.py:9", "kept")
    assert (finding.cost_bytes, finding.grows, finding.confidence) == (MIB + 8, True, "high")
    assert "grew in 5 of 6 observed steps" in finding.evidence


def replaced(sizes: list[int], *, is_kept: bool = True) -> Made:
    """Return steps in which a line makes a storage of this size in place of the one before."""
    made, before = Made(), None
    for each in sizes:
        made.mark("forward")
        activations = made.make(64 * MIB, "activations", 5)
        made.free(activations)
        if before is not None and not is_kept:
            made.free(before)
        number = made.make(each, "temporaries", 9)
        if before is not None and is_kept:
            made.free(before)
        before = number
        made.end_step()
    return made


def test_a_tensor_that_is_replaced_by_itself_and_more_grows() -> None:
    trace = replaced([n * MIB for n in range(1, 8)]).trace()
    (finding,) = found(trace)
    assert (finding.rule, finding.where, finding.holder) == ("growing_tensor", "a.py:9", "")
    assert (finding.cost_bytes, finding.grows) == (MIB, True)
    assert "1.0 MiB larger, in 5 observed steps in a row: 7.0 MiB" in finding.evidence
    number = len(trace.blocks) - 1
    held = replace(trace, holdings=(Holding("seen", "a.py:9", 7, 0, (number,), "the next pass"),))
    assert [each.holder for each in found(held)] == ["seen"]


@pytest.mark.parametrize(
    ("sizes", "is_kept"),
    [
        ([MIB, 2 * MIB, 3 * MIB, 5 * MIB, 6 * MIB, 7 * MIB, 8 * MIB], True),
        ([8 * MIB] * 7, True),
        ([n * MIB for n in range(7, 0, -1)], True),
        ([n * MIB for n in range(1, 8)], False),
        ([n * MIB for n in range(1, 6)], True),
    ],
    ids=["not alike", "constant", "shrinks", "freed before", "few steps"],
)
def test_other_tensors_do_not_grow(sizes: list[int], is_kept: bool) -> None:
    assert rules_of(replaced(sizes, is_kept=is_kept).trace()) == []


def test_a_list_that_something_is_removed_from_may_be_bounded() -> None:
    made = steps(MIB)
    (finding,) = found(made.trace(growths=(growth(made, removed="b.py:31"),)))
    assert finding.confidence == "low"
    assert "it may be bounded, see b.py:31" in finding.evidence


def test_a_deque_with_a_length_is_no_growth_and_explains_what_it_holds() -> None:
    made = steps(MIB)
    bounded = growth(made, kind="deque", maxlen=50)
    assert found(made.trace(growths=(bounded,))) == []
    arrays = replace(bounded, host_bytes=float(MIB), blocks=())
    assert found(steps().trace(growths=(arrays,))) == []
    # The negative controls: without a length, and not known to hold anything.
    assert rules_of(made.trace(growths=(replace(bounded, maxlen=None),))) == ["retained_outputs"]
    assert rules_of(made.trace()) == ["retained_outputs"]


def test_a_buffer_that_gives_away_what_it_has_held_for_long_is_no_growth() -> None:
    assert found(steps(MIB, rotates_at=4).trace()) == []
    (finding,) = found(steps(MIB).trace())
    assert (finding.holder, finding.confidence) == ("", "medium")


def test_numbers_with_their_graphs_are_losses() -> None:
    made = steps(MIB)
    (finding,) = found(
        made.trace(growths=(growth(made, scalars=True, has_graph=True, nodes=10.0),))
    )
    assert (finding.rule, finding.cost_bytes) == ("retained_loss", MIB + 8 + 4000)
    assert "keeps the autograd graph of every step" in finding.evidence
    assert "`.detach().clone()`" in finding.remedy


def test_detached_numbers_with_a_large_storage_are_losses_without_graphs() -> None:
    made = steps(MIB)
    (finding,) = found(made.trace(growths=(growth(made, scalars=True),)))
    assert finding.rule == "retained_loss"
    assert "without its graph" in finding.evidence and "graph of every step" not in finding.evidence
    # One number of its own for each step is nothing, nor are some bytes beside it.
    for size in (4, 64):
        small = steps(size)
        assert found(small.trace(growths=(growth(small, scalars=True),))) == []


def test_arrays_on_the_host_are_found_without_a_tensor() -> None:
    made = steps()
    (finding,) = found(made.trace(growths=(growth(made, host_bytes=float(MIB)),)))
    assert (finding.rule, finding.cost_bytes) == ("growing_host_list", MIB)
    assert found(made.trace(growths=(growth(made, host_bytes=100.0),))) == []


# What is alive at the peak.


def old_output(size: int = 32 * MIB) -> Made:
    """Return steps whose output lives until the next step has made its own."""
    made, output = Made(), None
    for _ in range(STEPS):
        made.mark("forward")
        activations = made.make(64 * MIB, "activations", 5)
        newer = made.make(size, "activations", 6)
        if output is not None:
            made.free(output)
        output = newer
        made.free(activations)
        made.end_step()
    return made


def held(made: Made, reader: str = "") -> tuple[Holding, ...]:
    outputs = [n for n, each in enumerate(made.blocks) if each.where == "a.py:6"]
    ends = made.step_ends
    rows = list(enumerate(outputs))[1:-1]
    return tuple(Holding("out", "a.py:6", n + 2, ends[n], (block,), reader) for n, block in rows)


def test_a_variable_of_the_step_before_is_found() -> None:
    made = old_output()
    (finding,) = found(made.trace(holdings=held(made)))
    assert (finding.rule, finding.cost_bytes) == ("loop_variable", 32 * MIB)
    assert finding.remedy.startswith("`del out`")


def test_del_is_advised_only_where_nothing_reads_the_variable_again() -> None:
    made = old_output()
    assert found(made.trace(holdings=held(made, "next_pass"))) == []
    (finding,) = found(made.trace(holdings=held(made, "after_loop")))
    assert "del" not in finding.remedy
    assert "what is read of `out` after the loop" in finding.remedy


def test_what_another_holder_keeps_is_not_freed_by_del() -> None:
    made = old_output()
    ours = held(made)
    previous = tuple(replace(each, name="previous", reader="next_pass") for each in ours)
    assert found(made.trace(holdings=(*ours, *previous))) == []


def test_a_variable_that_holds_little_is_not_found() -> None:
    made = old_output(MIB)
    assert found(made.trace(holdings=held(made))) == []


@pytest.mark.parametrize("is_high", [True, False])
def test_gradients_in_the_forward_count_where_the_peak_is_higher_for_them(is_high: bool) -> None:
    made, spans, before = Made(), [], None
    for _ in range(STEPS):
        made.mark("forward")
        activations = made.make((64 if is_high else 4) * MIB, "activations", 5)
        if before is not None:
            made.free(before)
        made.mark("backward")
        made.free(activations)
        gradients = made.make(32 * MIB, "gradients", 7)
        if not is_high:
            # Then the backward makes the peak.
            made.free(made.make(64 * MIB, "temporaries", 7))
        begin, before = made.events, gradients
        made.end_step()
        spans.append((gradients, begin))
    rows = tuple(
        GradientSpan(number, begin, made.blocks[number].freed or made.events, True)
        for number, begin in spans
    )
    expected = ["gradients_in_forward"] if is_high else []
    assert rules_of(made.trace(gradients=rows, zeroing="a.py:8")) == expected


def spiking(size: int, phase: str = "forward", **more: Any) -> MemoryTrace:
    made = Made()
    for _ in range(STEPS):
        made.mark("forward")
        activations = made.make(64 * MIB, "activations", 5)
        spike = made.make(size, "temporaries", 6, **more)
        made.blocks[spike] = replace(made.blocks[spike], phase=phase)
        made.free(spike)
        made.free(activations)
        made.end_step()
    return made.trace()


def test_one_line_that_makes_the_peak_is_found() -> None:
    (finding,) = found(spiking(128 * MIB))
    assert (finding.rule, finding.where, finding.cost_bytes) == (
        "memory_spike",
        "a.py:6",
        128 * MIB,
    )
    assert found(spiking(8 * MIB)) == []
    # What a backward makes for a moment is not the line's own.
    assert found(spiking(128 * MIB, phase="backward")) == []


def test_memory_of_another_device_does_not_count() -> None:
    given = spiking(128 * MIB, device="cuda")
    assert given.peak.bytes == 64 * MIB
    assert found(given) == []
    on_gpu = replace(given, device="cuda")
    assert (on_gpu.peak.bytes, on_gpu.peak.kinds["temporaries"]) == (128 * MIB, 128 * MIB)


# Padding.


def padded(
    filled: float = 0.5, *, longest: int = LENGTH, lengths: tuple[int, ...] = (), **more: Any
) -> tuple[SequenceBatch, ...]:
    """Return the ids of each step's batch, of which a share is no padding."""
    lengths = lengths or (LENGTH,) * STEPS
    values = {"value": 0.0, **more}
    return tuple(
        SequenceBatch(
            n + 1,
            values.get("name", "batch[0]"),
            "a.py:4",
            SAMPLES,
            length,
            round(filled * SAMPLES * length),
            min(longest, length),
            values["value"],
            values.get("mask", ""),
        )
        for n, length in enumerate(lengths)
    )


def test_padding_is_found_with_its_share_and_its_bytes_at_the_peak() -> None:
    (finding,) = found(steps().trace(batches=padded()))
    assert (finding.rule, finding.where, finding.holder) == ("wasted_padding", "a.py:4", "batch[0]")
    assert finding.cost_bytes == 32 * MIB
    assert (
        "50% of the positions" in finding.evidence and "estimated from 64.0 MiB" in finding.evidence
    )
    assert finding.confidence == "medium"
    assert "`tokens_per_batch`" in finding.remedy
    assert "not to 128" not in finding.remedy


def test_a_fixed_length_is_to_become_that_of_the_longest() -> None:
    (finding,) = found(steps().trace(batches=padded(longest=80)))
    assert "pad to the longest sequence of each batch, not to 128" in finding.remedy
    varied = padded(longest=80, lengths=(96, 128) * 3)
    assert all("not to" not in each.remedy for each in found(steps().trace(batches=varied)))


def test_labels_that_the_loss_ignores_are_no_padding() -> None:
    ignored = padded(name="batch[1]", value=-100.0)
    assert found(steps().trace(batches=ignored)) == []
    (finding,) = found(steps().trace(batches=(*padded(0.7), *ignored)))
    assert finding.holder == "batch[0]"


def test_little_padding_is_not_found() -> None:
    assert found(steps().trace(batches=padded(0.85))) == []
    assert found(steps().trace(batches=padded(1.0, value=None))) == []
    assert found(steps().trace()) == []


def test_batches_without_padding_count_in_the_share() -> None:
    given = steps().trace(batches=padded(1.0, value=None))
    # The batch of the peak.
    at, _ = given.position(given.settled_peak_at)
    some = [padded()[at - 1] if row.step == at else row for row in given.batches]
    assert found(replace(given, batches=tuple(some))) == []


def test_what_is_not_as_long_as_the_batch_costs_nothing() -> None:
    odd = tuple(replace(row, length=LENGTH - 1) for row in padded())
    assert found(steps().trace(batches=odd)) == []


def test_runs_of_different_values_are_no_padding() -> None:
    rows = [replace(row, value=float(n)) for n, row in enumerate(padded())]
    assert found(steps().trace(batches=tuple(rows))) == []


def test_a_mask_is_believed_before_labels_that_leave_out_more() -> None:
    ids = padded(0.5, mask="batch['attention_mask']", name="batch['input_ids']")
    labels = padded(0.6, name="batch['labels']", value=-100.0)
    (finding,) = found(steps().trace(batches=(*labels, *ids)))
    assert finding.holder == "batch['input_ids']"
    assert "as `batch['attention_mask']` says" in finding.evidence


# The allocator of CUDA memory.


def counters(allocs: int = 0, retries: int = 0) -> tuple[AllocatorStep, ...]:
    """Return an allocator that asks the driver so many times in each step."""
    return tuple(
        AllocatorStep(n, 20 + allocs * n, allocs * n, retries * n, 10 * MIB, 900 * MIB, 99 * MIB)
        for n in range(1, STEPS + 1)
    )


def on_gpu(**more: Any) -> MemoryTrace:
    values = {"allocator": counters(), "device_peak": DevicePeak(900 * MIB, 1000 * MIB), **more}
    return replace(steps().trace(), **values)


def test_an_allocator_that_has_what_it_needs_is_not_found() -> None:
    assert found(on_gpu()) == []


def test_a_cache_that_every_step_empties_is_found_with_its_line() -> None:
    calls = tuple(CacheCall(n, "a.py:30") for n in range(1, STEPS + 1))
    (finding,) = found(on_gpu(cache_calls=calls, allocator=counters(5)))
    assert (finding.rule, finding.where, finding.confidence) == (
        "allocator_churn",
        "a.py:30",
        "high",
    )
    assert "remove `empty_cache()` at a.py:30" in finding.remedy
    assert "asks the driver 5.0 times" in finding.evidence
    # Once before an evaluation is nothing; without CUDA it does nothing.
    assert found(on_gpu(cache_calls=calls[-1:])) == []
    assert found(on_gpu(cache_calls=calls, allocator=(), device_peak=None)) == []


def test_an_allocator_that_asks_the_driver_in_every_step_is_found() -> None:
    (finding,) = found(on_gpu(allocator=counters(3)))
    assert (finding.rule, finding.where) == ("allocator_churn", "a.py:5")
    assert "expandable_segments:True" in finding.remedy
    assert "empty_cache" not in finding.remedy


def test_requests_that_failed_are_found() -> None:
    (finding,) = found(on_gpu(allocator=counters(retries=1)))
    assert "4 requests failed in 4 steps" in finding.evidence


def test_memory_that_is_reserved_and_not_used_is_found() -> None:
    (finding,) = found(on_gpu(device_peak=DevicePeak(900 * MIB, 1800 * MIB)))
    assert (finding.rule, finding.cost_bytes) == ("allocator_churn", 900 * MIB)
    # Any allocator keeps as much as this.
    assert found(on_gpu(device_peak=DevicePeak(9 * MIB, 100 * MIB))) == []


def test_the_warm_up_may_ask_the_driver() -> None:
    first = [replace(row, device_allocs=20) for row in counters()]
    first[0] = replace(first[0], device_allocs=0)
    assert found(on_gpu(allocator=tuple(first))) == []
