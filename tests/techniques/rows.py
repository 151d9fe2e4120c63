"""Every technique, with the options of its row in the conformance tables."""

from typing import Any

ROWS: dict[str, dict[str, Any]] = {
    "resident": {},
    "workers": {"count": 1},
    "optimizer foreach": {"implementation": "foreach"},
    "optimizer fused": {"implementation": "fused"},
    "threads": {"count": 1},
    "channels_last": {},
    "autocast": {},
    "master_weights": {},
}
"""A technique without a row fails a test. The row's first word is the technique."""

IN_THE_ENGINE_ONLY = ("autocast", "master_weights")
"""Techniques of the seam `step`, which a script does not offer."""
