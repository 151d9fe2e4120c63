"""Hyperparameters are the same texts in every process in which they are the same."""

import subprocess
import sys

import pytest

GROUPS = """
import functools
import json
import torch
from hotlap.trial.hyperparameters import group_hyperparameters

def picks(parameter):
    return parameter.ndim > 1

class Rule:
    pass

optimizer = torch.optim.SGD([torch.zeros(2)], lr=LR)
optimizer.param_groups[0].update(
    filter=picks, partial=functools.partial(picks), rule=Rule(), names={"weight", "bias", "scale"}
)
print(json.dumps(group_hyperparameters(optimizer)))
"""


def text_of(lr: str) -> str:
    code = GROUPS.replace("LR", lr)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(("lr", "is_equal"), [("0.1", True), ("0.2", False)])
def test_functions_objects_and_sets_are_told_by_what_they_are(lr: str, is_equal: bool) -> None:
    assert (text_of("0.1") == text_of(lr)) is is_equal
    assert ":picks" in text_of(lr)
