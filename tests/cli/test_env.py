"""`hotlap env`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotlap import cli
from hotlap.errors import RunError
from hotlap.host import ceilings, kept_ceilings, probes
from hotlap.host.ceilings import Ceilings, parse
from hotlap.host.facts import Gpu, Host
from hotlap.host.problems import Problem
from hotlap.report import environment
from hotlap.report.terminal import page_console

Run = Callable[..., subprocess.CompletedProcess[str]]
GPU = Gpu(0, "GPU-1", "NVIDIA H200", 140 << 30, 139 << 30, "9.0", "570.1")


def test_json_is_the_only_thing_on_standard_output(hotlap: Run) -> None:
    done = hotlap("env", "--json", "--quick")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["schema"] == 1
    assert {"torch", "devices", "ceilings", "problems"} <= data.keys()
    assert data["devices"][0]["kind"] == "cpu" and data["devices"][0]["cores"] >= 1
    assert data["ceilings"] == []
    assert Host.from_json(data["host"]).cores == data["devices"][0]["cores"]


SMI = """#!/bin/sh
echo '0, GPU-aaa1, NVIDIA H200, 143771, 143000, 9.0, 570.1'
echo '1, GPU-bbb2, NVIDIA H200, 143771, 20000, 9.0, 570.1'
"""


def test_each_problem_of_a_wrong_set_up_is_named(tmp_path: Path) -> None:
    # Two GPUs, no compiler, and settings of other machines.
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    wrong = {"PATH": str(tmp_path), "OMP_NUM_THREADS": "6400", "CUDA_VISIBLE_DEVICES": "9"}
    right = {"PATH": str(tmp_path), "OMP_NUM_THREADS": "1,1"}
    found: list[dict[str, dict[str, str]]] = []
    for given in (wrong, right):
        done = subprocess.run(
            [
                "/bin/sh",
                "-c",
                'ulimit -l 32; exec "$0" -m hotlap env --json --quick',
                sys.executable,
            ],
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if k not in (*wrong, "CXX")} | given,
        )
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout)
        assert data["host"]["memlock_bytes"] == 32 << 10
        found.append({row["name"]: row for row in data["problems"]})
    first, second = found
    assert "6400" in first["threads"]["text"]
    assert first["hidden_gpus"]["text"] == "CUDA_VISIBLE_DEVICES is '9', which hides 2 GPUs."
    assert "torch.compile" in first["no_compiler"]["why"]
    assert all(row["text"] and row["why"] and row["remedy"] for row in first.values())
    assert "hidden_gpus" not in second and "6400" not in str(second)
    assert "0.0312 MiB" in second["little_memlock"]["text"]
    assert "120.9 of 140.4 GiB of GPU 1" in second["gpu_in_use"]["text"]
    # Where torch was built for CUDA there is nothing to say about it.
    assert ("torch_without_cuda" in second) is (probes.torch_cuda() is None)


def test_measured_ceilings_are_plausible_and_kept(
    hotlap: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = hotlap("env", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "hotlap" / "ceilings.json").read_text())["ceilings"].values()
    assert row["device"] == "cpu" and row["loads"].keys() >= {"fp32_gflops", "fp16_gflops"}
    assert "measuring" in done.stderr
    (rate,) = [row for row in json.loads(done.stdout)["ceilings"] if row["device"] == "cpu"]
    assert 0.1 < rate["fp32_gflops"] < 1e6
    assert rate["fp32_gflops"] == row["fp32_gflops"]
    assert rate["bf16_gflops"] is None or 0.01 < rate["bf16_gflops"] < 1e6
    assert 0.1 < rate["copy_gb_s"] < 1e5
    assert rate["threads"] >= 1 and rate["busy_cores"] >= 0
    assert 0 < rate["medians"]["fp32_gflops"] <= rate["fp32_gflops"]
    assert 0 < rate["medians"]["copy_gb_s"] <= rate["copy_gb_s"]


def test_products_are_of_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []
    multiply = torch.mm

    def seen(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> None:
        given.append(left)
        multiply(left, right, out=out)

    monkeypatch.setattr(torch, "mm", seen)
    assert ceilings._product_gflops(torch, 256, torch.float32, "cpu") is not None
    # Of ones a GPU draws less power, and is faster than it ever is in a training.
    assert all(left.std() > 0.9 for left in given)


def test_ceilings_that_cannot_be_measured_are_a_problem_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> Ceilings:
        raise RunError("the ceilings could not be measured: no luck")

    monkeypatch.setattr("hotlap.cli.env.measure", fail)
    assert cli.main(["env", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ceilings"] == []
    assert "no luck" in data["problems"][-1]["text"]


def test_a_measuring_process_that_says_nothing_useful_is_an_error_with_its_last_line() -> None:
    with pytest.raises(RunError, match="No module named 'torch'"):
        parse(
            "", "Traceback\nModuleNotFoundError: No module named 'torch'\n", busy_cores=0, seconds=1
        )
    with pytest.raises(RunError, match="no output"):
        parse("no json\n", "", busy_cores=0, seconds=1)


def test_the_best_ceilings_seen_are_kept() -> None:
    calm = Ceilings("cpu", 100.0, None, 9.0, 2, 0.0, 3.0, medians={"fp32_gflops": 95.0})
    busy = Ceilings("cpu", 50.0, 80.0, 10.0, 2, 1.5, 3.0, medians={"copy_gb_s": 8.0})
    best = calm.merge_fastest(busy)
    assert best.medians == {"fp32_gflops": 95.0, "copy_gb_s": 8.0}
    assert (best.fp32_gflops, best.bf16_gflops, best.copy_gb_s, best.seconds) == (100, 80, 10, 3)
    assert best.loads == {"fp32_gflops": 0.0, "bf16_gflops": 1.5, "copy_gb_s": 1.5}
    assert Ceilings.from_json(best.to_json()) == best


def test_an_unknown_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "now"]) == 2
    assert "now" in capsys.readouterr().err


def test_the_page_shows_gpus_and_problems(capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(cpu="Fast\x1b[31m", torch="2.13.0", torch_cuda="13.0", gpus=(GPU,))
    rates = [Ceilings("cuda", 5e4, 7e5, None, 8, 0.0, 3.0)]
    environment.show(
        page_console(), host, rates, [Problem("busy", "a [bold] text", "wait", "slow")]
    )
    out = capsys.readouterr().out
    assert "\n  slow\n  wait\n" in out
    assert "NVIDIA H200" in out and "700,000 bfloat16" in out and "not measured GB/s" in out
    assert "! a [bold] text" in out and "\x1b" not in out
    assert environment.devices(host)[1]["name"] == "NVIDIA H200"


HOST = Host(cpu="Fast", cores=2, torch="2.13.0")


def test_the_cache_keeps_the_best_of_each_host_and_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calm = Ceilings("cpu", 100.0, None, 9.0, 2, 0.0, 3.0)
    assert kept_ceilings.load(HOST, "cpu") is None
    kept_ceilings.keep(HOST, calm)
    best = kept_ceilings.keep(HOST, replace(calm, fp32_gflops=50.0, copy_gb_s=12.0, busy_cores=1.0))
    assert (best.fp32_gflops, best.copy_gb_s) == (100, 12)
    assert kept_ceilings.load(HOST, "cpu") == best
    assert kept_ceilings.load(replace(HOST, torch="2.12.0"), "cpu") is None
    assert kept_ceilings.load(replace(HOST, cores=1), "cpu") is None


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"schema": 1, "ceilings": {"x": 3}}'])
def test_a_cache_that_cannot_be_read_is_none(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_ceilings.cache_file().parent.mkdir()
    kept_ceilings.cache_file().write_text(content)
    assert kept_ceilings.load(HOST, "cpu") is None
    calm = Ceilings("cpu", 100.0, None, 9.0, 2, 0.0, 3.0)
    assert kept_ceilings.keep(HOST, calm) == calm == kept_ceilings.load(HOST, "cpu")


def test_a_home_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    calm = Ceilings("cpu", 100.0, None, 9.0, 2, 0.0, 3.0)
    assert kept_ceilings.keep(HOST, calm) == calm
    assert kept_ceilings.load(HOST, "cpu") is None


@pytest.mark.parametrize(
    ("device", "dtype", "size"),
    [
        ("cuda", torch.bfloat16, 8192),
        ("cpu", torch.bfloat16, ceilings._SMALL),
        # No CPU emulates it: a moment was disturbed.
        ("cpu", torch.float32, 8192),
    ],
)
def test_a_small_product_says_nothing_of_a_device_nor_of_a_format_that_every_cpu_has(
    device: str, dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        ceilings, "_rate_of_products", lambda torch, size, *_: asked.append(size) or (1.0, 1.0)
    )
    ceilings._product_gflops(torch, 8192, dtype, device)
    # At the rate of the small one, the large one would take minutes.
    assert asked[-1] == size


def test_watching_shows_figures_until_it_is_interrupted(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hotlap",
            "env",
            "--watch",
            "--every",
            "0.5s",
            "--pid",
            f"{os.getpid()}",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        # A shell's background jobs, such as a whole suite, ignore it, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    shown = [process.stdout.readline() for _ in range(4)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert "what it means" in shown[0] and shown[1].startswith("cpu ") and "%" in shown[1]


def test_watching_ends_with_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        # It ends in the second of these.
        if naps:
            child.communicate()
        naps.append(seconds)

    monkeypatch.setattr("hotlap.cli.env.time", SimpleNamespace(sleep=nap))
    assert cli.main(["env", "--watch", "--pid", str(child.pid)]) == 0
    out, err = capsys.readouterr()
    assert naps == [2.0, 2.0] and out.count("what it means") == 1
    assert f"process {child.pid} has ended" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--watch", "--json"], "or remove --json for live figures"),
        (["--watch", "--every", "0.1s"], "is too short"),
        (["--watch", "--every", "soon"], "is not a duration"),
        (["--pid", "1"], "--pid 1 works only with --watch"),
        (["--every", "2s"], "--every 2s works only with --watch"),
        (["--watch", "--pid", "4194305"], "--pid 4194305: there is no such process"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["env", *options]) == 2
    assert words in capsys.readouterr().err
