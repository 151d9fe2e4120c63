"""The most memory that was held at once."""

import torch


def peak_memory(device: str) -> int:
    """Return bytes, since the process began: the device's, or the process's own on a CPU."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
