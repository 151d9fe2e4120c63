"""Modules of examples, which all have a `data` and a `plain`: each under a name of its own."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_of(path: Path) -> ModuleType:
    """Import an example's file, which may import its neighbours by their short names."""
    folder = str(path.parent)
    hidden = {name: sys.modules.pop(name, None) for name in ("data", "plain", "recipe")}
    sys.path.insert(0, folder)
    try:
        name = f"{path.parent.name}_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Worker processes find its classes under this name.
        sys.modules[name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
        for short, module_before in hidden.items():
            sys.modules.pop(short, None)
            if module_before is not None:
                sys.modules[short] = module_before
    return module
