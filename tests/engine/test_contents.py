"""Contents of tensors are compared bit by bit."""

import pytest
import torch

from hotlap.engine.contents import are_equal, is_plain, sample_of

KINDS = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.uint16)


@pytest.mark.parametrize("dtype", [*KINDS, torch.complex64, torch.complex128], ids=str)
def test_a_change_of_any_element_is_seen(dtype: torch.dtype) -> None:
    one = torch.zeros(6, 4).to(dtype).t()
    other = one.clone()
    assert is_plain(one) and are_equal(one, other)
    other[3, 5] = 1
    assert not are_equal(one, other)
    assert not are_equal(None, other) and not are_equal(one[:2], other)


def test_what_is_not_a_number_is_unchanged() -> None:
    tensor = torch.tensor([1.0, float("nan")])
    assert are_equal(tensor, tensor.clone())
    assert are_equal(sample_of(tensor), tensor)


def test_what_has_no_bits_of_its_own_is_not_compared() -> None:
    conjugate = torch.zeros(2, dtype=torch.complex64).conj()
    assert not is_plain(conjugate) and sample_of(conjugate) is None
    assert not is_plain(torch.zeros(1).expand(3)) and not is_plain(torch.zeros(2, device="meta"))
