"""What a run would hold, as a page and as a document: sizes, what fits, and what was refused."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap.engine.memory.estimate import Estimate, Row
from hotlap.engine.memory.ledger import KINDS, Peak
from hotlap.plan import Plan
from hotlap.report import estimating, jsonout
from hotlap.report.estimating import size
from tests.report.shown import shown, words
from tests.report.test_jsonout import parsed

MIB = 2**20
SIZES = {name: (number + 1) * MIB for number, name in enumerate(KINDS)}
PEAK = Peak(sum(SIZES.values()), "backward", SIZES, {**SIZES, "masters": 0})
GIVEN = Row("as planned", "as planned", Plan(), PEAK, largest_batch=4321)
HALF = Row("bf16 autocast", "whole", Plan({"recompute": {"mode": "whole"}}), PEAK)
REFUSED = Row("bf16 masters", "none", Plan(), None, "its parameters are in bfloat16 already")
FOUND = Estimate("cpu", 2**30, 64, 2 * MIB, GIVEN, (), (HALF, REFUSED), ("optimizer counted",))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * MIB, "1.50 GiB"),
        (150 * MIB, "150 MiB"),
        (2000 * 2**30, "2,000 GiB"),
    ],
)
def test_bytes_are_told_as_people_read_them(count: int, text: str) -> None:
    assert size(count) == text


def test_it_says_first_whether_it_fits_and_what_belongs_to_that() -> None:
    needed = 28 * MIB + 2 * MIB
    text = words(estimating.page, FOUND)
    first = "peak memory 30.00 MiB, steps of 64 samples on cpu: fits into 1.00 GiB"
    assert text.startswith(f"{first} of these 2.00 MiB for samples")
    assert FOUND.needed_bytes == needed
    exact = replace(FOUND, memory_bytes=needed)
    assert "cpu: fits into" in words(estimating.page, exact)
    less = replace(FOUND, memory_bytes=needed - 1)
    assert "cpu: does NOT fit into" in words(estimating.page, less)
    # Of a device's memory the samples take none, unless they are kept there.
    there = replace(FOUND, device="cuda", data_on_device=True)
    assert words(estimating.page, there).startswith(first.replace("on cpu", "on cuda"))
    assert not replace(there, memory_bytes=needed - 1).fits
    gpu = words(estimating.page, replace(FOUND, device="cuda"))
    assert gpu.startswith("peak memory 28.00 MiB")
    assert "in addition, in the host's memory, 2.00 MiB for samples" in gpu
    assert "for samples that" not in words(estimating.page, replace(FOUND, data_bytes=0))


def test_each_plan_is_a_row_whose_parts_add_up_to_its_peak() -> None:
    lines = shown(estimating.page, FOUND).splitlines()
    (row,) = [line.split() for line in lines if line.startswith("as planned")]
    *parts, peak, batch = row[2:]
    # Masters are weights; temporaries and batches are what is left.
    assert parts == ["3", "3", "4", "5", "13"]
    assert (peak, batch) == ("28", "4,321")
    assert any(line.split()[:3] == ["bf16", "autocast,", "whole"] for line in lines)
    assert not any(line.startswith("bf16 masters") for line in lines)


def test_what_was_refused_is_said_once_for_each_reason() -> None:
    again = replace(REFUSED, recompute="whole")
    proof = {"name": "compile", "state": "refused", "why": "no compiler"}
    applied = {"name": "threads", "state": "applied", "why": "2"}
    found = replace(FOUND, rows=(HALF, REFUSED, again), techniques=(proof, applied))
    text = words(estimating.page, found)
    assert text.count("its parameters are in bfloat16 already") == 1
    assert "already (bf16 masters; bf16 masters, whole)" in text
    assert "compile refused: no compiler" in text and "threads" not in text
    assert text.endswith("optimizer counted")
    assert "masters 0" not in text and "parameters 1.00 MiB" in text


def test_the_document_says_the_same() -> None:
    found: Any = parsed(jsonout.document(FOUND.to_json()))
    assert found["schema"] == 1 and found["fits"] is True
    assert found["needed_bytes"] == found["chosen"]["peak_bytes"] + found["data_bytes"]
    assert sum(found["chosen"]["kinds"].values()) == found["chosen"]["peak_bytes"]
    half, refused = found["rows"]
    assert half["plan"] == {"recompute": {"mode": "whole"}} and half["why_not"] is None
    assert refused["peak_bytes"] is None and refused["why_not"] == REFUSED.why_not
