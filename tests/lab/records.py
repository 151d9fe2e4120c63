"""The record of a proof's run, as a verdict reads it."""

import json
from typing import Any

STEPS = 40


def record() -> dict[str, Any]:
    """Return what a run of so many steps noted; each call returns another, equal one."""
    return {
        "fed": [f"batch{i}" for i in range(STEPS)],
        "inputs": [f"input{i}" for i in range(STEPS)],
        "losses": [1.0 + 0.01 * (i % 7) for i in range(STEPS)],
        "loss_digests": list(range(STEPS)),
        "weights": [f"w{i}" for i in range(STEPS)],
        "start": {"0.weight": [7, True], "0.bias": [8, True]},
        "buffers": ["b"] * STEPS,
        "moved": [],
        "state_moved": [],
        "numbers": [json.dumps([{"lr": 0.1}])] * STEPS,
    }
