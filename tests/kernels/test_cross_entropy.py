"""A cross-entropy that never holds its logits has the plain one's value and gradients."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch.nn import functional

import hotlap
from hotlap.errors import UsageError
from hotlap.kernels import cross_entropy
from hotlap.kernels.cross_entropy import Setting, compute_loss

ROWS, FEATURES, CLASSES = 37, 16, 101
CASES = [
    {"reduction": reduction, "label_smoothing": smoothing, "weighs": weighs, "ignores": ignores}
    for reduction, smoothing, weighs, ignores in itertools.product(
        ("mean", "sum", "none"), (0.0, 0.1), (False, True), (False, True)
    )
]


def given(weighs: bool = False, ignores: bool = False) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    leaves = [
        torch.randn(*shape, generator=generator, requires_grad=True)
        for shape in ((ROWS, FEATURES), (CLASSES, FEATURES), (CLASSES,))
    ]
    targets = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    if ignores:
        targets[::3] = -100
    return *leaves, targets, torch.rand(CLASSES, generator=generator) if weighs else None


def both(dtype: torch.dtype | None, case: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    options = {key: case[key] for key in ("reduction", "label_smoothing")}
    found = []
    for is_chunked in (False, True):
        hidden, weight, bias, targets, weights = given(case["weighs"], case["ignores"])
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            if is_chunked:
                loss = hotlap.chunked_cross_entropy(
                    hidden, weight, targets, bias=bias, class_weights=weights, rows=8, **options
                )
            else:
                logits = functional.linear(hidden, weight, bias)
                loss = functional.cross_entropy(logits, targets, weights, **options)
        (loss * torch.linspace(0.5, 2, loss.numel()).view(loss.shape)).sum().backward()
        found.append([loss.detach(), hidden.grad, weight.grad, bias.grad])
    return found[0], found[1]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_value_and_gradients_are_those_of_the_plain_loss(
    dtype: torch.dtype | None, case: dict[str, Any]
) -> None:
    for plain, chunked in zip(*both(dtype, case), strict=True):
        assert plain.dtype == chunked.dtype
        allowed = 2e-6 if dtype is None else 1e-2
        assert (plain - chunked).abs().max() <= allowed * plain.abs().max()


def test_the_comparison_can_fail_one_chunk_left_out_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = cross_entropy._Gradients.add

    def forgetful(self: Any, place: slice, part: Any, gradient: Any) -> None:
        if place.start != 32:
            real(self, place, part, gradient)

    monkeypatch.setattr(cross_entropy._Gradients, "add", forgetful)
    plain, chunked = both(None, {**CASES[0], "ignores": False, "weighs": False})
    assert (plain[2] - chunked[2]).abs().max() > 1e-2 * plain[2].abs().max()


@pytest.mark.parametrize("has_gradients", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_a_narrow_model_is_added_up_over_many_chunks(
    dtype: torch.dtype, reduction: str, has_gradients: bool
) -> None:
    """A sum in bfloat16 takes no part in that is smaller than some 256th of it."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 4, generator=generator).to(dtype) for n in (1024, 9))
    targets = torch.randint(0, 9, (1024,), generator=generator)
    plain = functional.cross_entropy((hidden @ weight.t()).float(), targets, reduction=reduction)
    weight.requires_grad_(has_gradients)
    found = hotlap.chunked_cross_entropy(hidden, weight, targets, reduction=reduction, rows=2)
    assert found.dtype == dtype
    assert float(found.detach()) == pytest.approx(float(plain), rel=5e-3)


def test_a_mean_of_float16_is_finite_where_the_sum_is_not() -> None:
    hidden, weight = torch.zeros(8192, 2).half(), torch.zeros(2**14, 2).half()
    found = hotlap.chunked_cross_entropy(hidden, weight, torch.zeros(8192).long())
    assert float(found) == pytest.approx(math.log(2**14), rel=1e-2)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_small_float16_gradients_are_scaled_before_they_exist(is_scaled: bool) -> None:
    """A class that is this unlikely has a gradient that float16 rounds to nothing."""
    hidden, classes = torch.ones(8, 4), torch.zeros(8, dtype=torch.int64)
    weight = torch.zeros(9, 4, requires_grad=True)
    bias = torch.zeros(9)
    bias[0] = 17.0
    setting = Setting(dtype=torch.float16, loss_dtype=torch.float32, is_scaled=is_scaled)
    (compute_loss(hidden, weight, bias, classes, None, setting) * 2.0**16).backward()
    assert weight.grad is not None
    expected = 2.0**16 * math.exp(-17) if is_scaled else 0.0
    assert float(weight.grad[7, 0]) == pytest.approx(expected, rel=1e-2)


def test_what_does_not_fit_is_refused() -> None:
    hidden, weight, _, targets, _ = given()
    for wrong, words in (
        ((hidden, weight, targets[:5], {}), "do not match"),
        ((hidden, weight, targets.float(), {}), "class indices of dtype torch.int64"),
        ((hidden, weight, targets, {"reduction": "men"}), "Did you mean 'mean'"),
        ((hidden, weight, targets, {"rows": 0}), "rows=0"),
    ):
        with pytest.raises(UsageError, match=words):
            hotlap.chunked_cross_entropy(*wrong[:3], **wrong[3])


def test_a_second_backward_is_refused_and_not_wrong() -> None:
    hidden, weight, _, targets, _ = given()
    loss = hotlap.chunked_cross_entropy(hidden, weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"Call backward\(\) once"):
        loss.backward()


def test_no_more_rows_exist_at_once_than_asked_for() -> None:
    hidden, weight, _, targets, _ = given()
    setting = Setting(rows=10)
    compute_loss(hidden, weight, None, targets, None, setting).backward()
    assert (setting.seen.count, setting.seen.most_rows, setting.seen.rows) == (4, 10, 37)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_without_gradients_the_loss_alone_is_computed(
    mode: Any, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, bias, targets, _ = given()
    with_gradients = hotlap.chunked_cross_entropy(
        hidden, weight, targets, bias=bias, reduction=reduction
    )

    def refuse(*_: Any) -> None:
        raise AssertionError("a gradient was taken")

    monkeypatch.setattr(cross_entropy._Gradients, "add", refuse)
    with mode():
        # As a layer's output is in inference mode.
        made = hidden * 1
        for each in (hidden, made):
            loss = hotlap.chunked_cross_entropy(
                each, weight, targets, bias=bias, reduction=reduction
            )
            assert torch.allclose(loss, with_gradients.detach()) and not loss.requires_grad
