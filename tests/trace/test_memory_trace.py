"""A memory trace after fewer steps, and what holders are found without a variable of the user's."""

import torch

from hotlap.trace.holders import find_held
from hotlap.trace.memory_schema import Block, Mark, MemoryTrace


def block(step: int, made: int, freed: int | None) -> Block:
    return Block(100, "temporaries", "train.py:1", "add", "forward", step, made, freed)


def test_a_trace_after_fewer_steps_is_what_was_alive_then() -> None:
    blocks = (block(1, 0, None), block(1, 1, 3), block(2, 2, None), block(2, 4, None))
    trace = MemoryTrace("cpu", 2, blocks, (Mark(0, 1, "other"),), step_ends=(2, 5))
    assert trace.peak.bytes == 300
    first = trace.first(1)
    assert first.peak.bytes == 200
    assert (first.steps, first.step_ends) == (1, (2,))
    # Freed in the second step: alive at the end of the first.
    assert [each.freed for each in first.blocks] == [None, None]
    assert trace.first(2) is trace


def test_what_is_given_is_followed_too() -> None:
    model = torch.nn.Linear(1, 1)
    model.seen = [1]
    held = {each.name: each for each in find_held(None, [("model", "recipe.py", model)])}
    assert held["model.seen"].value is model.seen
    assert held["model.seen"].file == "recipe.py"
    assert "model.seen" not in {each.name for each in find_held(None)}
