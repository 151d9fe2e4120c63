"""Sentences on running out of memory: the line, the largest tensors there, half the batch size."""

from collections.abc import Iterable

from hotlap.failures.death import Death, Held
from hotlap.failures.sizes import in_words

_MOST_SHOWN = 2
_LEAST_SHOWN = 2**20
"""Bytes below which a tensor does not matter."""


def say_where(death: Death, device: str) -> list[str]:
    """Say at which line memory ran out, and what that line's frames hold.

    Args:
        death: where it died.
        device: of the tensors that count, as `tensor.device.type`.
    """
    said = [] if death.place is None else [f"It died at {death.place}."]
    held = [each for each in death.tensors() if each.tensor.device.type == device]
    largest = list(_distinct(held))[:_MOST_SHOWN]
    if largest:
        shown = ", ".join(_in_words(each) for each in largest)
        said.append(f"The largest tensors that the lines of the traceback hold: {shown}.")
    return said


def advise_half(death: Death) -> list[str]:
    """Say what a smaller batch of the loader in the traceback would need, if there is one."""
    batch = death.find("torch.utils.data:DataLoader", "batch_size")
    if type(batch) is not int or batch < 2:
        return []
    return [
        f"The DataLoader's batch_size is {batch}: with {batch // 2}, activations take about half; "
        "weights, gradients and the optimizer's state take the same."
    ]


def _distinct(held: Iterable[Held]) -> Iterable[Held]:
    """Give each memory once: a view is no second tensor."""
    seen: set[tuple[int, int]] = set()
    for each in held:
        if str(each.tensor.layout) != "torch.strided" or each.bytes < _LEAST_SHOWN:
            continue
        key = (each.tensor.untyped_storage()._cdata, each.bytes)
        if key not in seen:
            seen.add(key)
            yield each


def _in_words(held: Held) -> str:
    dtype = str(held.tensor.dtype).removeprefix("torch.")
    return f"`{held.name}` {list(held.tensor.shape)} {dtype}, {in_words(held.bytes)}"
