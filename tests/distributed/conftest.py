from pathlib import Path
from typing import Any

import pytest

from tests.distributed.runs import ended, started, weights


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights that one process learns from the recipe of these tests."""
    folder = tmp_path_factory.mktemp("alone")
    code, said = ended(started("--run-dir", str(folder)))
    assert code == 0, said
    return weights(Path(folder))
