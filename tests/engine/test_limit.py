"""Errors under a limit of memory: which ones say that memory ran out, and what is said of them."""

import pytest

from hotlap.engine.memory.limit import asked_for, ran_out


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
