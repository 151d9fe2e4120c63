"""Both suites say what they left out; tests for a GPU run where torch sees one."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import pytest_collection_modifyitems

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_skipped(number):
    pytest.skip("no such thing here")

@pytest.mark.skipif(True, reason="another reason")
def test_marked():
    pass

@pytest.mark.slow
def test_slow():
    pass

def test_that_runs():
    pass
"""


@pytest.mark.parametrize("more", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_what_did_not_run_is_told_with_its_reason(
    more: list[str], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    gpu\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-m", "not slow", *more]
    done = subprocess.run(
        [*argv, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=60
    )
    told = done.stdout[done.stdout.index("did not run") :]
    found = re.findall(r"^ +(\d+)  (.+)$", told, re.M)
    assert found == [
        ("3", "no such thing here"),
        ("1", "another reason"),
        ("1", "left out by -m 'not slow'"),
    ]
    assert done.returncode == 0


@pytest.mark.parametrize("is_there", [True, False])
def test_torch_is_asked_for_a_gpu_not_the_path(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Any] = []
    item: Any = SimpleNamespace(
        get_closest_marker=lambda name: name == "gpu" or None, add_marker=added.append
    )
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)
    pytest_collection_modifyitems([item])
    expected = [] if is_there else ["needs a CUDA device"]
    assert [mark.kwargs["reason"] for mark in added] == expected


def test_the_extras_of_the_long_suite_have_their_pins(root: Path) -> None:
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = [(root / name).read_text() for name in ("constraints.txt", "constraints-bench.txt")]
    pins = [re.findall(r"^([\w.-]+)==", text, re.M) for text in lines]
    names = [[re.sub(r"[-_.]+", "-", name).lower() for name in found] for found in pins]
    assert not set(names[0]) & set(names[1]), "a package is pinned in both files"
    # Ray takes 600 MB; its tests run where people have it.
    expected = set(project["optional-dependencies"]) - {"ray"}
    wanted = {n for extra in expected for n in project["optional-dependencies"][extra]}
    assert wanted <= {*names[0], *names[1]}
    dry = subprocess.run(
        ["make", "-n", "-B", "test-all"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    (extras,) = re.findall(r"--editable '\.\[(.*)\]'", dry)
    assert set(extras.split(",")) == expected
    assert dry.index("install") < dry.index(" torch\n") < dry.index("--editable")
