"""Compares two tensors bit by bit, with their dtype and shape."""

import torch


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare two tensors bit by bit (NaN equals itself), dtype and shape included."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(as_bytes(left), as_bytes(right))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a dense tensor's numbers, uint8, shape (n,); a view where it can be."""
    # Whether numbers are conjugated or negated may be noted on the tensor, beside its bytes.
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.stride(0) != 1:
        # One number of a strided tensor is contiguous, and cannot be viewed as bytes.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
