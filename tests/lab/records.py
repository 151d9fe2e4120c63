"""The record of a proof's run, as a verdict reads it."""

import json
from typing import Any

STEPS = 40


def record() -> dict[str, Any]:
    """Return what a run of so many steps noted; each call returns another, equal one."""
    return {
        "batches": [f"batch{i}" for i in range(STEPS)],
        "inputs": [f"input{i}" for i in range(STEPS)],
        "losses": [1.0 + 0.01 * (i % 7) for i in range(STEPS)],
        "loss_digests": list(range(STEPS)),
        "weights": [f"w{i}" for i in range(STEPS)],
        "first_state": ["empty"],
        "saves": [[30, 2, "saved", "names"]],
        "without_gradients": [],
        "start": {"0.weight": [7, True], "0.bias": [8, True]},
        "untrained": ["b"] * STEPS,
        "untrained_moved": {},
        "untrained_changed": [],
        "moved": [],
        "state_moved": [],
        "carried_moved": [],
        "delivered": {"updates": [delivered() for _ in range(STEPS)], "problem": ""},
        "hyperparameters": [json.dumps([{"lr": 0.1}])] * STEPS,
        "averages": [averaged()],
        "evaluated": [[0, 10, "in", "out"], [0, 20, "in", "out"]],
        "followed": {
            "updates": [update(number) for number in range(STEPS)],
            "apart": [0.0] * STEPS,
            "problem": "",
        },
    }


def update(number: int) -> dict[str, Any]:
    """Return what was seen of an update that is as it should be: a group, Adam's state."""
    update, weight = 1e-3, 1.0
    return {
        "optimizer": 0,
        "gradients": "gg",
        "place": [17 * number % 624],
        "random": [f"torch {number}", "python", "numpy"],
        "sums": [[0.0, update**2, 0.0, weight**2, 0.0, 0.0, 1e-16]],
        "states": {"step": [0.0, 1.0, 2.0**-23], "exp_avg": [1e-9, 1.0, 2.0**-23]},
    }


def delivered() -> dict[str, Any]:
    """Return what was seen of two gradients that an update gets as backward computed them."""
    return {"optimizer": 0, "followed": 2, "unseen": 0, "lost": 0, "old": 0, "carried": 0} | {
        "norm": 1.0,
        "largest": 0.5,
    }


def averaged() -> dict[str, Any]:
    """Return what was seen of an average that moves a hundredth of the way at each update."""
    moved = [0.01] * (STEPS - 2)
    still = [0.0] * len(moved)
    return {
        "root": 0,
        "since": 2,
        "moved": moved,
        "doubt": [1e-6] * len(moved),
        "rest": still,
    }
