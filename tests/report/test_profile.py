"""What was recorded with torch.profiler, as part of the page and of the document."""

from dataclasses import replace
from pathlib import Path

import pytest

from hotlap.diagnosis.profile import Profile
from hotlap.report import diagnosis, jsonout
from hotlap.trace.chrome.idle import Gap, Idle
from hotlap.trace.chrome.summary import Region, Row, Summary
from tests.report.shown import words
from tests.report.test_diagnosis import FOUND
from tests.report.test_jsonout import parsed

SUMMARY = Summary(
    steps=2,
    window_ms=20.0,
    phases={"data": 2.0, "forward": 6.0, "backward": 6.0, "optimizer": 4.0, "other": 2.0},
    idle=Idle("device", 8.0, (Gap(1.0, 3.0, "data", ("next",), "", "gemm"),)),
    operators=(Row("aten::mm", "operator", 8, 4.0, 3.0, where="train.py:7"),),
    kernels=(Row("gemm", "kernel", 8, 6.0, 6.0, "blocks.0", "aten::mm"),),
    copies=(
        Row(
            "Memcpy HtoD (Pageable -> Device)",
            "copy",
            2,
            1.0,
            1.0,
            operator="aten::to",
            bytes=2**21,
        ),
    ),
    synchronizations=(Row("cudaStreamSynchronize", "runtime", 2, 2.0, 2.0, "", "aten::item"),),
    regions=(Region("blocks.0", 2, 3.0, 5.0),),
)
PROFILE = Profile(
    kinds=("cpu", "cuda"),
    summary=SUMMARY,
    file=Path("/data/traces/host_1.2.pt.trace.json"),
    recorded_ms=10.0,
    plain_ms=7.5,
    export_s=0.2,
)


def test_the_page_says_what_was_recorded_where_it_is_and_what_it_cost() -> None:
    text = words(diagnosis.page, replace(FOUND, profile=PROFILE))
    assert "Recorded with torch.profiler (cpu, cuda), 2 steps:" in text
    assert "3.000 ms 4.0 x gemm aten::mm blocks.0" in text
    assert "1.500 ms 4.0 x aten::mm train.py:7" in text
    assert "0.500 ms 1.0 x HtoD pageable 1.00 MiB aten::to" in text
    assert "1.000 ms 1.0 x cudaStreamSynchronize aten::item" in text
    assert "1.500 ms 2.500 ms blocks.0" in text
    assert "took 10.00 ms, a step just before 7.50 ms. Recording cost 2.50 ms a step" in text
    assert "/data/traces/host_1.2.pt.trace.json, for TensorBoard (--logdir /data/traces)" in text


def test_without_a_file_and_a_plain_step_nothing_is_said_of_them() -> None:
    bare = replace(PROFILE, file=None, plain_ms=None)
    text = words(diagnosis.page, replace(FOUND, profile=bare))
    assert "TensorBoard" not in text
    assert "Recording cost" not in text
    assert bare.to_json()["cost_ms"] is None
    assert "torch.profiler" not in words(diagnosis.page, FOUND)


def test_the_document_has_a_profile_only_where_one_was_made() -> None:
    assert "profile" not in FOUND.to_json()
    found = parsed(jsonout.document(replace(FOUND, profile=PROFILE).to_json()))["profile"]
    assert found["kinds"] == ["cpu", "cuda"]
    assert found["file"] == str(PROFILE.file)
    assert found["cost_ms"] == pytest.approx(2.5)
    assert found["regions"] == [
        {"name": "blocks.0", "count": 2, "forward_ms": 3.0, "backward_ms": 5.0}
    ]
    assert found["idle"]["gaps"][0]["stood"] == ["next"]
