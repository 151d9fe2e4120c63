"""Compares contents of tensors: what is written through `.data`, or in inference mode, counts as no
version."""

import torch

_SAMPLED = 4096
"""Elements of a sample; up to twice as many, so that they are from all over a tensor."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_plain(tensor: torch.Tensor) -> bool:
    """True if a tensor's contents can be compared here, and be written to."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    # Of parameters that ranks share, the memory is freed behind their forward.
    is_there = not tensor.numel() or tensor.untyped_storage().size() > 0
    has_bits = not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    return is_there and has_bits and not tensor.is_meta and 0 not in tensor.stride()


def are_equal(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    """Compare contents bit by bit; None is of a tensor that can no longer be compared."""
    if one is None or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(_bits_of(one), _bits_of(other))


def _bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers: NaN is unequal to itself."""
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])


def sample_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return some elements of a tensor, from all over it; None if they cannot be compared."""
    if not is_plain(tensor):
        return None
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)].clone()
