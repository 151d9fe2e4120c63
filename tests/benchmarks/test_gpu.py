"""What is measured on a GPU is a list of parts, each with a limit, and nothing without a GPU."""

import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import MEASURED, Part, done, parts, run
from benchmarks.on_gpu import PARTS
from hotlap.host import Host

HOST = Host(cpu="x", cores=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and it would be measured")
def test_without_a_gpu_it_lists_what_it_would_do(tmp_path: Path) -> None:
    listed = run(["--out", str(tmp_path / "out")], quick=False, host=HOST)
    assert [row["part"] for row in listed.rows] == list(parts())
    assert "no CUDA device" in listed.notes[0]
    assert not (tmp_path / "out").exists()


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["grahp"], quick=False, host=HOST)
    assert "Did you mean 'graph'?" in capsys.readouterr().err


def test_every_measurement_is_a_part() -> None:
    assert list(MEASURED) == list(PARTS)
    assert set(PARTS) | {"tests"} <= set(parts())


def test_a_part_leaves_what_it_measured() -> None:
    command = (sys.executable, "-m", "benchmarks.on_gpu", "copies", "--quick", "--device", "cpu")
    document = done(Part("copies", "", command))
    assert document["ended"] == "well", document["errors"]
    assert document["figures"]["pageable: gb_s"] > 0


def test_a_part_ends_at_its_limit_with_all_its_processes(tmp_path: Path) -> None:
    late = tmp_path / "late"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(late)!r}).touch()"
    script = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); "
        "print('begun', flush=True); time.sleep(60)"
    )
    document = done(Part("slow", "", (sys.executable, "-c", script)), limit_s=0.7)
    assert document["ended"] == "stopped after 0.7 s"
    assert document["output"] == ["begun"]
    time.sleep(1.5)
    assert not late.exists()
