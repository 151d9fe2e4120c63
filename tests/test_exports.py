"""The public names."""

import subprocess
import sys
from types import ModuleType

import hotlap

IMPORTED_FOR_ITSELF = ("Any", "TYPE_CHECKING")


def test_all_is_sorted_and_names_all_that_is_visible() -> None:
    visible = [
        name
        for name, value in vars(hotlap).items()
        if not (name.startswith("_") or name in IMPORTED_FOR_ITSELF)
        and not isinstance(value, ModuleType)
    ]
    visible += [*hotlap._WHERE, "schedules"]
    assert hotlap.__all__ == sorted(hotlap.__all__)
    assert set(hotlap.__all__) == {*visible, "__version__"}


def test_every_public_name_has_a_docstring() -> None:
    bare = [name for name in hotlap.__all__ if not (getattr(hotlap, name).__doc__ or "").strip()]
    assert not bare


def test_windows_is_refused_with_a_reason() -> None:
    asked = "import sys; sys.platform = 'win32'; import hotlap"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert told.returncode == 1
    assert "ImportError: hotlap does not run on Windows" in told.stderr
