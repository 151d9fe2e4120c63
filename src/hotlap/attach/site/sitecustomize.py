"""Found first by Python's start-up; lets hotlap wait for torch, then runs the user's own module."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load_hotlap(package: str) -> None:
    """Import hotlap from its own folder, so that its neighbours there stay out of `sys.path`."""
    if "hotlap" in sys.modules or importlib.util.find_spec("hotlap") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "hotlap", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hotlap"] = module
    spec.loader.exec_module(module)


def _restore_path(original: str | None) -> None:
    if original is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = original
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]


def _run_next_sitecustomize() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_config = os.environ.pop("HOTLAP_ATTACH", None)
_inside = os.environ.pop("HOTLAP_INSIDE", None)
_restore_path(os.environ.pop("HOTLAP_PYTHONPATH", None))
if _config is not None and os.environ.get("HOTLAP_OFF", "0") in ("", "0"):
    _load_hotlap(os.path.dirname(os.path.dirname(_HERE)))
    from hotlap.attach import hook

    hook.install(_config, _inside)
elif _inside is not None and sys.version_info >= (3, 11):
    _load_hotlap(os.path.dirname(os.path.dirname(_HERE)))
    from hotlap.attach import hook

    hook.install_in_child(_inside)
_run_next_sitecustomize()
