"""Found first by Python's start-up; lets hotlap wait for torch, then runs the user's own module."""

import importlib.util
import json
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


def _restore_variable(original: str | None) -> None:
    if original is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = original


def _is_beside_ranks(inside: str | None) -> bool:
    """Return True in a process that a launcher has started, and that is no rank of its own.

    Compared, because a cluster may set RANK for the launcher itself.
    """
    told = json.loads(inside) if inside is not None else {}
    if told.get("alone") is not None and told["alone"] == sys.orig_argv[1:]:
        return False
    return told.get("outside") == [os.environ.get("RANK"), os.environ.get("LOCAL_RANK")]


def _run_next_sitecustomize() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_waits = "HOTLAP_WAITS" in os.environ and os.environ.get("HOTLAP_OFF", "0") in ("", "0")
_config = os.environ.get("HOTLAP_ATTACH") if _waits else os.environ.pop("HOTLAP_ATTACH", None)
_inside = os.environ.get("HOTLAP_INSIDE")
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
if _waits and _config is not None:
    # What this process starts may be what trains: the environment stays as it is until then.
    _load_hotlap(os.path.dirname(os.path.dirname(_HERE)))
    from hotlap.attach import hook

    hook.install_in_command(_config)
elif not _is_beside_ranks(_inside):
    # Who is one leaves everything to the ranks that it may start.
    os.environ.pop("HOTLAP_INSIDE", None)
    _restore_variable(os.environ.pop("HOTLAP_PYTHONPATH", None))
    if _config is not None and os.environ.get("HOTLAP_OFF", "0") in ("", "0"):
        _load_hotlap(os.path.dirname(os.path.dirname(_HERE)))
        from hotlap.attach import hook

        hook.install(_config)
    elif _inside is not None:
        _load_hotlap(os.path.dirname(os.path.dirname(_HERE)))
        from hotlap.attach import hook

        hook.install_in_child(_inside)
_run_next_sitecustomize()
