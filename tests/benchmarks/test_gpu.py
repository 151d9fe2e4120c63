"""What is measured on a GPU is a list of parts with prices; nothing that was measured is lost."""

import inspect
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks import gpu_turns, on_gpu_runs, on_gpu_suite
from benchmarks.gpu import HOLDS, ROWS, Part, done, parts, run
from benchmarks.gpu_rows import Rows, read
from benchmarks.gpu_turns import Sizes, Way
from benchmarks.on_gpu import HERE, PARTS, mlp
from hotlap.device.accelerator import Device
from hotlap.host.facts import Host
from hotlap.schedules import warmup_cosine
from tests.fake_device import FakeCuda

HOST = Host(cpu="x", cores=2)
_CALLS = 4
"""Among which all parts are divided, so that they can run side by side."""
_LADDER = "gpt-ladder"
"""The part with the most ways, of which a few are run in small."""
_FIGURES = (
    "mlp: plain: per_s",
    "mlp: engine, graph: per_s",
    "mlp: by hand, graph of 4: per_s",
    "gpt: by hand, batch 32: best_tokens_per_s",
    "gpt: engine, masters, loss compiled, batch 32: best_tokens_per_s",
)
"""Some of those that the two tasks that count must give."""


def sizes(rows: Path) -> Sizes:
    return Sizes(Device("cpu"), 2, 0.02, True, Rows(rows, "x"), rows.parent)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and it would be measured")
def test_without_a_gpu_it_lists_what_it_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    listed = run([], quick=False, host=HOST)
    assert [row["part"] for row in listed.rows] == list(parts())
    assert "no CUDA device" in listed.notes[0] and str(tmp_path / "out") in listed.notes[0]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_each_part_needs_and_which_a_call_would_come_to(
    tmp_path: Path,
) -> None:
    Rows(tmp_path / ROWS, "env").add(ended="well")
    Rows(tmp_path / ROWS, "tests").add(ended="with 1")
    before = (tmp_path / ROWS).read_text()
    argv = ["--dry-run", "--device", "cpu", "--budget", "380", "--out", str(tmp_path), "--resume"]
    listed = run(argv, quick=True, host=HOST)
    rows = {row["part"]: row for row in listed.rows}
    assert list(rows) == list(parts())
    assert [rows[name]["this call"] for name in ("env", "tests", "mlp", "gpt", "copies")] == [
        *("done before", "would run", "would run", "not reached", "would run")
    ]
    left = sum(row["seconds"] for row in listed.rows if row["this call"] == "would run")
    assert 330 < left <= 380
    assert "triton" in rows["compile"]["needs"] and "cyclopts" in rows["tuned"]["needs"]
    assert (tmp_path / ROWS).read_text() == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["grahp"], "Did you mean 'graph'?"),
        (["--budget", "0"], "seconds above 0"),
        (["--device", "cpu", "--resume", __file__], "is no JSON object"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(argv, quick=False, host=HOST)
    assert words in capsys.readouterr().err


def test_every_part_has_what_measures_it() -> None:
    assert set(parts()) == {*PARTS, *HERE}
    # Both tasks that count come before any technique.
    assert list(parts())[:4] == ["env", "tests", "mlp", "gpt"]


def test_what_does_not_fit_is_left_out_and_what_ended_well_is_not_run_again(
    tmp_path: Path,
) -> None:
    argv = ["gpt", "copies", "--device", "cpu", "--out", str(tmp_path), "--budget", "120"]
    first = run(argv, quick=True, host=HOST)
    rows = read(tmp_path / ROWS)
    ended = {row["part"]: row["ended"] for row in rows if "ended" in row}
    assert ended["copies"] == "well", rows
    assert ended["gpt"].startswith("not reached: 300 s, 1")
    assert first.figures["copies: pageable: gb_s"] > 0
    assert not first.failed
    again = run([*argv, "--resume"], quick=True, host=HOST)
    assert [row["ended"][:4] for row in again.rows] == ["not ", "well"]
    assert again.rows[1]["ended"] == "well, before"
    # The file of the first call goes on.
    assert read(tmp_path / ROWS)[: len(rows)] == rows


def test_a_part_that_is_stopped_keeps_its_rows_and_leaves_no_process(tmp_path: Path) -> None:
    late = tmp_path / "late"
    child = f"import time, pathlib; time.sleep(5); pathlib.Path({str(late)!r}).touch()"
    script = (
        "import subprocess, sys, time, pathlib\n"
        "from benchmarks.gpu_rows import Rows\n"
        f"rows = Rows(pathlib.Path({str(tmp_path / ROWS)!r}), 'slow')\n"
        "rows.add(way='a', ms=1.5)\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "print('begun', flush=True); time.sleep(60)"
    )
    part = Part("slow", "", 1, command=(sys.executable, "-c", script))
    document = done(part, tmp_path, limit_s=4.0)
    assert document["ended"] == "stopped after 4 s"
    assert document["said"] == ["begun"]
    assert read(tmp_path / ROWS) == [{"part": "slow", "way": "a", "ms": 1.5}]
    time.sleep(2.0)
    assert not late.exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_call_that_is_killed_keeps_its_rows_and_is_gone_on_with(
    how: signal.Signals, root: Path, tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", "benchmarks", "gpu", "copies", "precision", "attention"]
    argv += ["--quick", "--device", "cpu", "--out", str(tmp_path)]
    killed = subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not any(row["part"] == "precision" and "way" in row for row in read(tmp_path / ROWS)):
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.1)
    part = psutil.Process(killed.pid).children()
    killed.send_signal(how)
    killed.communicate()
    assert not psutil.wait_procs(part, timeout=10)[1]
    rows = read(tmp_path / ROWS)
    ended = {row["part"]: row["ended"] for row in rows if "ended" in row}
    assert ended == {"copies": "well"}
    # Half of a line, as a disk that was full leaves it.
    with (tmp_path / ROWS).open("a") as file:
        file.write('{"part": "precision", "way')
    again = subprocess.run(
        [*argv, "--resume", "--json"], cwd=root, capture_output=True, text=True, timeout=300
    )
    told = {row["part"]: row["ended"] for row in json.loads(again.stdout)["rows"]}
    assert told == {"copies": "well, before", "precision": "well", "attention": "well"}, (
        again.stderr
    )
    whole = read(tmp_path / ROWS)
    assert whole[: len(rows)] == rows


def test_half_of_a_last_line_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / ROWS
    Rows(path, "a").add(ms=1)
    with path.open("a") as file:
        file.write('{"part": "b", ')
    assert read(path) == [{"part": "a", "ms": 1}]
    Rows(path, "c").add(ms=2)
    assert read(path) == [{"part": "a", "ms": 1}, {"part": "c", "ms": 2}]


def test_a_row_is_one_line_of_json_whatever_it_holds(tmp_path: Path) -> None:
    rows = Rows(tmp_path / ROWS, "p")
    rows.add(ms=float("nan"), of=[float("inf"), 1.0], where=Path("x"), text="a\nb")
    assert read(tmp_path / ROWS) == [
        {"part": "p", "ms": None, "of": [None, 1.0], "where": "x", "text": "a\nb"}
    ]


def test_tests_that_ran_are_counted_and_none_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\nfilterwarnings = error\n")
    monkeypatch.setattr(on_gpu_suite, "ROOT", tmp_path)
    given = tests / "test_given.py"
    given.write_text(
        "import pytest\n@pytest.mark.gpu\n@pytest.mark.skip\ndef test_fake_rows(): 1\n"
    )
    with pytest.raises(RuntimeError, match="no test ran"):
        on_gpu_suite.suite(sizes(tmp_path / "none.jsonl"))

    (tests / "test_broken.py").write_text("import absent_package  # mark.gpu\n")
    given.write_text(
        "import warnings  # mark.gpu\n\ndef test_fake_graph(): pass\n\n"
        "def test_fake_rows(): warnings.warn('only a warning')\n"
    )
    on_gpu_suite.suite(sizes(tmp_path / ROWS))
    counts: list[dict[str, Any]] = [row for row in read(tmp_path / ROWS) if "ran" in row]
    told = [(row["which"], row["ran"], row["failures"], row["not_collected"]) for row in counts]
    assert told == [("junit", 2, 1, 1), ("junit-warnings", 1, 0, 0)]


def test_memory_of_a_way_is_without_that_of_the_ways_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"allocated_bytes": 5, "driver_used_bytes": 900}
    monkeypatch.setattr(gpu_turns, "memory", lambda sizes: dict(held))

    def make(size: int) -> Any:
        held["allocated_bytes"] += size
        held["driver_used_bytes"] += 2 * size
        return lambda steps: None

    ways = [Way(f"{size}", lambda s=size: make(s), sizes(tmp_path / ROWS)) for size in (100, 30)]
    assert ways[1].memory() == {"allocated_bytes": 30, "driver_used_bytes": 60}
    assert ways[1].described()["allocated_bytes"] == 30


def test_a_wait_for_an_event_is_counted_where_it_is_a_steps() -> None:
    device = FakeCuda()
    with on_gpu_runs._event_waits(device) as waits, ThreadPoolExecutor(1) as feed:
        line = inspect.currentframe().f_lineno + 1  # pyright: ignore
        device.wait_on_host(device.mark())
        feed.submit(device.wait_on_host, device.mark()).result()
    device.wait_on_host(device.mark())
    assert waits == [f"{__file__}:{line}"]


def test_steps_that_are_decided_late_wait_for_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: FakeCuda())
    monkeypatch.setattr(on_gpu_runs, "forget", lambda: None)
    given = sizes(tmp_path / ROWS)
    task = replace(mlp(given), schedule=warmup_cosine(total=10**6))
    on_gpu_runs._waits("scheduled", task, {}, given)
    (row,) = read(tmp_path / ROWS)
    assert row["event_waits_per_step"] >= 1
    assert any("async_decision" in place for place in row["places"])


def test_the_files_that_hold_gpu_tests_are_found() -> None:
    assert "tests/engine/test_device_runs.py" in on_gpu_suite.files()
    assert "tests/engine/test_step.py" not in on_gpu_suite.files()


@pytest.mark.slow
def test_gpu_tests_need_no_package_of_the_command_line(root: Path) -> None:
    script = (
        "import sys, pytest\n"
        "for name in ('cyclopts', 'docstring_parser', 'rich_rst'): sys.modules[name] = None\n"
        "from benchmarks.on_gpu_suite import files\n"
        "sys.exit(pytest.main(['--collect-only', '-q', '-m', 'gpu', *files()]))"
    )
    told = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout[-2000:]
    assert "tests/engine/test_device_runs.py::" in told.stdout


@pytest.mark.slow
def test_operations_of_a_token_of_gpt_2(root: Path) -> None:
    asked = "from benchmarks import on_gpu_gpt as g; print(g.operations(g.plain.SIZES['124m']))"
    told = subprocess.run([sys.executable, "-c", asked], cwd=root, capture_output=True, text=True)
    # 6 x 123.6 million weights, and 12 layers x 12 x 768 x 1024 of attention.
    assert int(told.stdout) == pytest.approx(857e6, rel=0.005), told.stderr


@pytest.mark.slow
def test_plans_of_the_ladder_are_known_and_it_is_climbed_in_small(
    root: Path, tmp_path: Path
) -> None:
    check = (
        "from benchmarks.on_gpu_gpt import HEADLINE, LADDER\n"
        "from hotlap import plan, techniques\n"
        "for rung in (*HEADLINE, *LADDER):\n"
        "    techniques.check(plan.Plan(rung.plan or {}), techniques.registry())"
    )
    ways = ("autocast", "none of the three")
    climb = ["benchmarks.on_gpu", _LADDER, "--quick", "--device", "cpu", "--ways", *ways]
    for argv in (["-c", check], ["-m", *climb, "--rows", str(tmp_path / ROWS)]):
        told = subprocess.run([sys.executable, *argv], cwd=root, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
    rows = read(tmp_path / ROWS)
    assert {row["way"] for row in rows if "best_tokens_per_s" in row} == {*ways}
    assert not any("failed" in row for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(_CALLS))
def test_every_part_works_in_small_on_a_cpu(root: Path, tmp_path: Path, number: int) -> None:
    chosen = [name for name in parts() if name != _LADDER][number::_CALLS]
    argv = [sys.executable, "-m", "benchmarks", "gpu", *chosen, "--quick", "--json"]
    argv += ["--device", "cpu", "--out", str(tmp_path)]
    called = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=3000)
    rows = read(tmp_path / ROWS)
    ended = {row["part"]: row["ended"] for row in rows if "ended" in row}
    assert ended == dict.fromkeys(chosen, "well"), (tmp_path / "gpu.log").read_text()[-3000:]
    assert called.returncode == 0
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) <= 8 and set(kept) <= set(HOLDS), kept
    figures = json.loads(called.stdout)["figures"]
    for name in _FIGURES:
        assert name.partition(":")[0] not in chosen or figures[name] > 0
    # On a CPU a kernel may be absent; nothing else fails.
    failed = {row["part"] for row in rows if "failed" in row}
    assert failed <= {"attention", "copies", "launches"}, [row for row in rows if "failed" in row]
