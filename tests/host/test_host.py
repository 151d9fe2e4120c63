"""Facts about a machine, and what is wrong with it."""

import json
import os
import resource
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotlap.device.accelerator import Accelerator, Device
from hotlap.host import control_groups, kept_files, memory, probes
from hotlap.host.facts import Gpu, Host
from hotlap.host.problems import problems
from hotlap.host.swap import swap

GOOD = Host(
    cpu="Fast",
    features=("avx2",),
    cores=8,
    cores_total=8,
    memory_bytes=32 << 30,
    memory_available_bytes=30 << 30,
    shm_bytes=16 << 30,
    torch="2.13.0+cpu",
    compiler="/usr/bin/g++",
    python_headers=True,
)
GPU = Gpu(0, "GPU-1", "NVIDIA H200", 140 << 30, 139 << 30, "9.0", "570.1")


def names(host: Host) -> list[str]:
    return [problem.name for problem in problems(host)]


def changed(**facts: object) -> Host:
    return Host.from_json({**GOOD.to_json(), **facts})


def test_this_machine_is_described() -> None:
    host = Host.detect()
    assert 1 <= host.cores <= host.cores_total
    assert 0 < host.memory_available_bytes <= host.memory_bytes
    assert host.torch and host.torch[0].isdigit()
    assert host.python == sys.version.split()[0]
    assert host.platform == sys.platform
    assert 0 <= host.busy_cores <= host.cores_total + 0.5


def test_facts_survive_json_and_know_nothing_of_newer_ones() -> None:
    host = changed(gpus=[GPU.__dict__], torch_cuda="13.0")
    assert host.gpus == (GPU,)
    again = Host.from_json({**json.loads(json.dumps(host.to_json())), "newer": 1})
    assert again == host and hash(again) == hash(host)


def test_a_good_machine_has_no_problem() -> None:
    assert names(GOOD) == []
    assert names(changed(gpus=[GPU.__dict__], torch="2.13.0", torch_cuda="13.0")) == []


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"torch": None}, "no_torch"),
        ({"torch": "2.9.1"}, "old_torch"),
        ({"gpus": [GPU.__dict__]}, "torch_without_cuda"),
        ({"cores": 2, "cpu_quota": 2.5}, "few_cores"),
        ({"busy_cores": 2.0}, "busy"),
        ({"stolen_cores": 1.0}, "stolen"),
        ({"omp_num_threads": "many"}, "threads"),
        ({"omp_num_threads": "0"}, "threads"),
        ({"omp_num_threads": "16"}, "threads"),
        ({"omp_num_threads": "1"}, "threads"),
        ({"compiler": None}, "no_compiler"),
        ({"python_headers": False}, "no_python_headers"),
        ({"shm_bytes": 64 << 20}, "little_shm"),
        ({"memory_available_bytes": 100 << 20}, "little_memory"),
        ({"swap_bytes_per_s": 5e6, "swap_used_bytes": 1 << 30}, "swapping"),
        ({"memlock_bytes": 8 << 20, "has_rdma": True}, "little_memlock"),
        ({"cores": 4, "cpu_quota": 4.0, "cores_allowed": 8}, "threads"),
        ({"cuda_visible_devices": "", "gpus_hidden": 2}, "hidden_gpus"),
        ({"cuda_visible_devices": "-1", "torch_cuda": "13.0"}, "hidden_gpus"),
        (
            {"gpus": [GPU.__dict__ | {"memory_free_bytes": 9 << 30}], "torch_cuda": "13"},
            "gpu_in_use",
        ),
    ],
)
def test_each_problem_is_found_alone_and_has_a_remedy(facts: dict[str, object], name: str) -> None:
    (problem,) = problems(changed(**facts))
    assert problem.name == name
    assert problem.text.endswith(".") and problem.why.endswith(".") and len(problem.remedy) > 3


@pytest.mark.parametrize(
    "facts",
    [
        # Full, and left alone.
        {"swap_used_bytes": 1 << 30, "swap_bytes_per_s": 1000.0},
        {"memlock_bytes": 8 << 20},
        {"memlock_bytes": 1 << 30, "has_rdma": True},
        {"cpu_quota": 8.0, "cores_allowed": 8},
        {"cores": 4, "cpu_quota": 4.0, "cores_allowed": 8, "omp_num_threads": "4"},
        # A setting that hides nothing, on a machine that has no GPU.
        {"cuda_visible_devices": "0,1", "torch_cuda": "13.0"},
        # This torch sees no GPU, whatever is set.
        {"cuda_visible_devices": ""},
        {"cuda_visible_devices": "0", "gpus_hidden": 1, "gpus": [GPU.__dict__], "torch_cuda": "13"},
    ],
)
def test_what_is_near_a_problem_is_none(facts: dict[str, object]) -> None:
    assert names(changed(**facts)) == []


def test_swap_is_read_twice(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nSwapTotal:  2048 kB\nSwapFree:  512 kB\n")
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgpgin 7\npswpin 100\npswpout 50\n")
    assert swap(tmp_path, sample_s=0.0) == (2048 << 10, 1536 << 10, 0.0)
    later = threading.Timer(0.02, vmstat.write_text, ["pswpin 600\npswpout 50\n"])
    later.start()
    found = swap(tmp_path, sample_s=0.2)
    later.join()
    assert 500 * 4096 / 2 < found.bytes_per_s <= 500 * 4096 / 0.2
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    assert swap(tmp_path) == swap(tmp_path / "none") == (0, 0, 0.0)


def test_an_adapter_that_accesses_memory_is_a_folder_with_one(tmp_path: Path) -> None:
    assert not probes.has_rdma(tmp_path) and not probes.has_rdma(tmp_path / "none")
    (tmp_path / "mlx5_0").mkdir()
    assert probes.has_rdma(tmp_path)


def test_the_version_of_torch_is_known_without_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probes.torch_version() == torch.__version__ and probes.torch_cuda() == torch.version.cuda
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: found)
    (tmp_path / "version.py").write_text("__version__ = '2.9'\ncuda: Optional[str] = '12.8'\n")
    assert (probes.torch_version(), probes.torch_cuda()) == ("2.9", "12.8")
    (tmp_path / "version.py").unlink()
    assert probes.torch_version() == probes.version("torch") and probes.torch_cuda() is None


@pytest.mark.parametrize("given", ["8", "4", "4,2"])
def test_a_sensible_number_of_threads_is_no_problem(given: str) -> None:
    assert names(changed(omp_num_threads=given)) == []


SMI = """\
cat <<'END'
0, GPU-aaa1, NVIDIA H200, 143771, 143000, 9.0, 570.1
1, GPU-bbb2, NVIDIA "X", [N/A], [N/A], 12.1, 570.1
END
"""


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1]),
        ("1,0", [1, 0]),
        ("1", [1]),
        ("0,7,1", [0]),
        ("GPU-bbb", [1]),
        ("GPU-bbb2,0", [1, 0]),
        ("MIG-1234", [0, 1]),
        ("", []),
        ("-1", []),
        ("0,0", [0]),
    ],
)
def test_gpus_are_those_that_cuda_would_show(
    visible: str | None, indices: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, SMI, monkeypatch)
    found = [Gpu(**row) for row in probes.gpus(visible)]
    assert [gpu.index for gpu in found] == indices
    if visible is None:
        assert found[0].memory_bytes == 143771 << 20 and found[1].memory_bytes == 0


@pytest.mark.parametrize("body", ["exit 9", "echo 'No devices were found'", "echo; exit 0"])
def test_an_nvidia_smi_that_fails_means_no_gpu(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, body, monkeypatch)
    assert probes.gpus(None) == []


def tool(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_no_tool_no_compiler_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert probes.gpus(None) == [] and probes.compiler() is None
    assert probes.first_line(["no-such-tool"]) == ""


@pytest.mark.parametrize(
    ("allowed", "quota", "cores"), [(8, None, 8), (8, 2.5, 2), (2, 64.0, 2), (8, 0.5, 1)]
)
def test_usable_cores_are_those_of_the_affinity_within_the_quota(
    allowed: int, quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "affinity", lambda: allowed)
    monkeypatch.setattr(control_groups, "cpu_quota", lambda: quota)
    assert probes.usable_cores() == Host.detect().cores == cores


@pytest.mark.parametrize(
    ("given", "home", "folder"),
    [
        ("/cache", "/home/me", "/cache/hotlap"),
        ("", "/home/me", "/home/me/.cache/hotlap"),
        ("cache", "/home/me", "/home/me/.cache/hotlap"),
        ("", None, "/dev/null/hotlap"),
    ],
)
def test_the_cache_is_the_users_or_none(
    given: str, home: str | None, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    at = {"~/.cache": f"{home}/.cache"} if home else {}
    monkeypatch.setattr(os.path, "expanduser", lambda path: at.get(path, path))
    assert str(kept_files.cache_folder()) == folder
    if home is None:
        # A user without a home: nothing is kept, and nothing fails.
        kept_files.write_cached(kept_files.cache_folder() / "kept.json", "{}")
        assert list(tmp_path.iterdir()) == []


def test_the_peak_is_that_of_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # What `ru_maxrss` begins with, if a large process started this one.
    inherited = SimpleNamespace(ru_maxrss=1 << 40)
    monkeypatch.setattr(resource, "getrusage", lambda _: inherited)
    device = Device("cpu")
    if sys.platform == "linux":
        now, peak = memory.resident_bytes()
        assert now <= peak <= device.peak_bytes() < 1 << 40
    # Where the system does not say, the larger figure is better than none.
    monkeypatch.setattr(memory, "_status", dict)
    assert device.host_peak_bytes() >= 1 << 40


def test_the_memory_of_an_accelerator_is_its_own_where_torch_tells_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"mem_get_info": lambda _: (3, 7), "max_memory_allocated": lambda _: 5}
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(**sizes))
    found = Accelerator("xpu:1")
    assert (found.free_bytes(), found.total_bytes(), found.peak_bytes()) == (3, 7, 5)
    host, found = Device("cpu"), Accelerator("mps")
    assert found.total_bytes() == host.total_bytes() and found.peak_bytes() >= 1 << 20


def test_the_torch_of_another_python_is_read_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.9.1+cpu'\n")
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\necho {tmp_path / '__init__.py'}\n")
    other.chmod(0o755)
    assert probes.torch_version_of(str(other)) == "2.9.1+cpu"
    assert probes.torch_version_of(sys.executable) == torch.__version__
    (tmp_path / "version.py").unlink()
    assert probes.torch_version_of(str(other)) is None
