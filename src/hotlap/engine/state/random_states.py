"""The global RNG states in a checkpoint: Python's, NumPy's and torch's."""

import random
from typing import Any

import numpy
import torch

from hotlap import rng
from hotlap.checkpoint.codec import decode, encode
from hotlap.checkpoint.read import Checkpoint


def capture_random_states() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the states that are tensors, by name, and the others as plain data."""
    legacy = numpy.random.get_state(legacy=False)
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(legacy["state"]["key"].astype("int64")),
    }
    if torch.cuda.is_initialized():
        for number, device in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"cuda {number}"] = device
    tensors |= rng.device_states(rng.other_accelerators())
    rest = [legacy["state"]["pos"], legacy["has_gauss"], legacy["gauss"]]
    return tensors, {
        "python": encode(random.getstate(), "Python's random"),
        "numpy": encode(rest, "numpy.random"),
    }


def load_random_states(checkpoint: Checkpoint) -> None:
    """Let all generators go on from where they were when the checkpoint was made."""
    tensors, others = checkpoint.tensors["random"], checkpoint.state["random"]
    random.setstate(decode(others["python"]))
    position, has_gauss, gauss = decode(others["numpy"])
    key = tensors["numpy"].numpy().astype("uint32")
    numpy.random.set_state(("MT19937", key, position, has_gauss, gauss))
    torch.set_rng_state(tensors["torch"])
    devices = [tensors[f"cuda {n}"] for n in range(len(tensors)) if f"cuda {n}" in tensors]
    if devices and torch.cuda.is_available():
        # A checkpoint may come from a machine with more of them.
        torch.cuda.set_rng_state_all(devices[: torch.cuda.device_count()])
    rng.set_device_states(tensors)
