"""The best ceilings measured so far on a device, kept in the user's cache.

One JSON file for all hosts, as a home may be on a network. A cache that cannot be read or written
is none: ceilings are measured again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotlap.host.ceilings import Ceilings
from hotlap.host.facts import Host
from hotlap.host.kept_files import cache_folder, write_cached

_SCHEMA = 1


def cache_file() -> Path:
    """Return the path of the file."""
    return cache_folder() / "ceilings.json"


def key_of(host: Host, device: str) -> str:
    """Return what ceilings belong to: the hardware, how much of it may be used, and torch."""
    if device == "cpu":
        hardware = f"{host.cpu}, {host.cores} cores"
    else:
        hardware = ", ".join(gpu.name for gpu in host.gpus) or device
    return f"{hardware}, torch {host.torch}"


def load(host: Host, device: str) -> Ceilings | None:
    """Return the best ceilings seen of that device, None if there are none."""
    row = _read().get(key_of(host, device))
    try:
        return Ceilings.from_json(row) if row is not None else None
    except (KeyError, TypeError):
        return None


def keep(host: Host, measured: Ceilings) -> Ceilings:
    """Keep the higher of what was measured and what was kept; return that."""
    before = load(host, measured.device)
    best = measured if before is None else measured.merge_fastest(before)
    if best != before:
        _write({**_read(), key_of(host, measured.device): asdict(best)})
    return best


def _read() -> dict[str, Any]:
    try:
        data = json.loads(cache_file().read_text())
        rows = data["ceilings"] if data["schema"] == _SCHEMA else {}
        return rows if isinstance(rows, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(rows: Mapping[str, Any]) -> None:
    text = json.dumps({"schema": _SCHEMA, "ceilings": rows}, indent=1, sort_keys=True)
    write_cached(cache_file(), text)
