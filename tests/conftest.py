"""What every test may use."""

import gc
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

# Two threads on two cores, one of them taken by somebody else, are fifty times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# Torch then looks for a device without opening it: tests fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# What is kept between runs of hotlap, a tuning's result for one, must not serve a test.
_CACHE = tempfile.mkdtemp(prefix="hotlap-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE


def _skip_the_disk(descriptor: int) -> None:
    """Do all of `os.fsync` but wait: nobody cuts the power, and a save waits ten times."""
    os.fstat(descriptor)


# In this process only. Those that tests start, and kill, wait as they do for a user.
os.fsync = _skip_the_disk

NO_DEVICE = "needs a CUDA device"
_deselected = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not on_gpu:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in on_gpu:
        item.add_marker(pytest.mark.skip(reason=NO_DEVICE))


_unfreeze = gc.unfreeze
_is_unfrozen = True


def _note_unfrozen() -> None:
    global _is_unfrozen
    _unfreeze()
    _is_unfrozen = True


gc.unfreeze = _note_unfrozen


def _freeze() -> None:
    """Spare collections of garbage the million objects that all tests together have imported.

    Neither `gc.collect` nor `gc.get_objects` looks at them any more.
    """
    global _is_unfrozen
    if _is_unfrozen:
        gc.freeze()
        _is_unfrozen = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give each test the same random numbers, in whatever order the tests run."""
    _freeze()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


def pytest_deselected(items: list[pytest.Item]) -> None:
    global _deselected
    _deselected += len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["deselected"] = _deselected


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Each worker collects all tests.
    global _deselected
    _deselected = max(_deselected, getattr(node, "workeroutput", {}).get("deselected", 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what did not run, and why."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if not (reasons or _deselected):
        return
    terminalreporter.section("did not run")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5}  {reason}")
    if _deselected:
        chosen = " ".join(f"{flag} '{text}'" for flag, text in _chosen(config) if text)
        terminalreporter.line(f"{_deselected:5}  left out by {chosen or 'their names'}")


def _reason(report: Any) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _chosen(config: pytest.Config) -> list[tuple[str, str]]:
    return [("-m", config.getoption("markexpr")), ("-k", config.getoption("keyword"))]


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(_CACHE, digest)))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def source(root: Path) -> Path:
    """The package's source."""
    return root / "src" / "hotlap"


@pytest.fixture
def hotlap(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own, in an empty folder."""

    def call(
        *argv: str, timeout_s: float = 60.0, **environment: str
    ) -> subprocess.CompletedProcess:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HOTLAP_")}
        return subprocess.run(
            [sys.executable, "-m", "hotlap", *argv],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=tmp_path,
            env=kept | environment,
        )

    return call
