"""What every test may use."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Two threads on two cores, one of them taken by somebody else, are fifty times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("nvidia-smi") is not None:
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


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
