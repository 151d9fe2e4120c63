"""Errors of a captured step: what is not finite is seen, unless the script's own is neither."""

from math import inf, nan
from typing import Any

import pytest
import torch

from hotlap.trial.comparing import (
    compare_buffers,
    compare_gradients,
    compare_outputs,
    compare_updates,
)


def of(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def gradients(captured: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> dict[str, Any]:
    return compare_gradients({"a": captured}, {"a": exact}, {"a": plain})


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_a_gradient_that_is_finite_only_when_repeated_is_lost(odd: float) -> None:
    found = gradients(of(1, odd), of(1, 2), of(1, 2))
    assert found["gradient_error"] == found["own_error"] == inf
    assert (found["plain_error"], found["lost"]) == (0, 1)
    assert compare_gradients({"a": of(1, odd)}, {"a": of(1, 2)}, None)["lost"] == 1


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_a_gradient_that_is_the_plain_one_is_not_lost_where_none_is_finite(odd: float) -> None:
    found = gradients(of(1, odd), of(1, odd), of(1, odd))
    assert found["gradient_error"] == found["own_error"] == found["lost"] == 0
    assert found["gradient_slope"] == 1
    # In the wider format it may be finite.
    found = gradients(of(1, odd), of(1, 2), of(1, odd))
    assert found["own_error"] == found["lost"] == 0
    assert found["gradient_error"] == found["plain_error"] == inf
    # What is finite is compared all the same.
    found = gradients(of(2, odd), of(1, odd), of(1, odd))
    assert found["gradient_error"] == found["own_error"] == 1


def test_infinity_of_the_other_sign_is_another_number() -> None:
    assert gradients(of(inf), of(-inf), of(-inf))["gradient_error"] == inf


@pytest.mark.parametrize("odd", [nan, inf])
def test_an_update_to_what_is_no_number_is_seen(odd: float) -> None:
    def error(before: float, after: float, expected: float) -> float:
        exact = {"a": torch.tensor([1, expected], dtype=torch.float64)}
        return compare_updates({"a": of(0, before)}, {"a": of(1, after)}, exact)["update_error"]

    assert error(1, odd, 2) == inf
    assert error(1, odd, odd) == error(odd, odd, odd) == 0
    # A format that cannot hold it gives the same.
    assert error(1, inf, 1e39) == 0
    assert error(1, 2, 1e39) > 0.9


def test_a_mask_of_infinities_is_an_ordinary_buffer() -> None:
    def found(after: torch.Tensor, plain: torch.Tensor) -> dict[str, float]:
        named = [{"mask": each} for each in (of(0, -inf), after, of(0, -inf), plain)]
        return compare_buffers(*named)["mask"]

    mask = of(0, -inf)
    assert found(mask, mask) == {"error": 0, "plain_error": 0}
    for other in (of(0, inf), of(0, nan), of(nan, -inf), of(0, 0)):
        assert found(other, mask) == {"error": inf, "plain_error": 0}
        assert found(mask, other) == {"error": 0, "plain_error": inf}


def test_a_buffer_that_grows_beyond_its_format_is_no_error_by_itself() -> None:
    named = [{"mean": each} for each in (of(1, 1), of(2, nan), of(2, 3), of(2, nan))]
    assert compare_buffers(*named)["mean"] == {"error": inf, "plain_error": inf}


def test_an_output_that_is_no_number_is_seen() -> None:
    def error(captured: float) -> float:
        return compare_outputs([of(1, captured)], [of(1, -inf)], [of(1, -inf)])["error"]

    assert error(-inf) == 0
    assert error(nan) == error(0) == error(inf) == inf


def test_both_halves_of_complex_numbers_are_compared() -> None:
    one, other = torch.tensor([1 + 1j]), torch.tensor([1 + 2j])
    assert gradients(one, one, one)["gradient_error"] == 0
    assert gradients(other, one, one)["gradient_error"] == pytest.approx(0.5**0.5)
    assert gradients(one.conj(), one, one)["gradient_error"] == pytest.approx(2**0.5)
    assert compare_gradients({}, {"a": one}, {"a": one})["gradient_error"] == 1
    zero = torch.zeros(1, dtype=torch.complex64)
    wide = {"a": one.to(torch.complex128)}
    assert compare_updates({"a": zero}, {"a": one}, wide)["update_error"] == 0
    assert compare_updates({"a": zero}, {"a": one.conj()}, wide)["update_error"] > 1
    named = [{"state": each} for each in (zero, other, one, one)]
    assert compare_buffers(*named)["state"]["error"] == pytest.approx(0.5**0.5)
