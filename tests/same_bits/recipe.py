"""The recipe of an example, for so many steps, and with what a case asks for besides.

STEPS=200 FOLDER=examples/fashion_mnist ALSO=skipped hotlap train recipe.py --model cnn
"""

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch

import hotlap

STEPS, FOLDER, ALSO = int(os.environ["STEPS"]), Path(os.environ["FOLDER"]), os.environ["ALSO"]


class Spoilt:
    """A loss that is infinite each 17th time it is asked for in training."""

    def __init__(self, loss: Any) -> None:
        self.loss, self.asked = loss, 0

    def __call__(self, model: Any, batch: Any) -> Any:
        value = self.loss(model, batch)
        if torch.is_grad_enabled():
            self.asked += 1
            if self.asked % 17 == 0:
                return value * float("inf")
        return value


def _own() -> Any:
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("own_recipe", FOLDER / "recipe.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_recipe"] = module
    spec.loader.exec_module(module)
    return module


def task(*, model: str = "") -> hotlap.Task:
    given = {"model": model} if model else {}
    made = _own().task(**given)
    changed: dict[str, Any] = {"epochs": None, "steps": STEPS}
    if FOLDER.name == "gpt":
        # Its schedule is made for 500 steps, and refused for fewer.
        changed["schedule"] = None
    if ALSO == "skipped":
        changed["loss"] = Spoilt(made.loss)
    if ALSO == "clipped":
        changed |= {"clip_norm": 0.5, "clip_value": 0.01}
    if ALSO == "split":
        changed |= {"batch_size": made.batch_size // 4, "accumulate": 4}
    return dataclasses.replace(made, **changed)
