"""A captured step is repeated from its own batches, and draws what it drew."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from hotlap.attach.roles.repetition import Repetition
from hotlap.rng import rng_states


def test_each_batch_of_a_step_comes_with_the_rng_that_it_had(tmp_path: Path) -> None:
    tensors, drawn = {}, []
    for number in range(2):
        torch.manual_seed(10 + number)
        for name, state in rng_states().items():
            tensors[f"rng.{number}.{name}"] = state.clone()
        tensors[f"batch.{number}.0"] = torch.full((2,), float(number))
        drawn.append(torch.rand(3))
    meta = {"step": 4, "specs": ["tensor", "tensor"], "updates": []}
    save_file(tensors, tmp_path / "step.safetensors", metadata={"hotlap": json.dumps(meta)})
    step = Repetition(str(tmp_path / "step.safetensors"), [], torch.float64)
    for number in range(2):
        torch.manual_seed(0)
        batch = step.batch()
        assert batch.dtype == torch.float64 and batch.tolist() == [number, number]
        assert torch.equal(torch.rand(3), drawn[number])
