"""Errors of a captured step against its repetition: gradients, updates, buffers.

A gradient or an update that is missing counts as zero, on either side. Elements that are equal, or
no number on both sides, are off by 0, however large they are; all others that are not finite are
infinitely far off. Lengths are those of the finite elements.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Any

import torch

_SAME_INPUTS = 1e-4
"""Error of a batch that the script computes again, as a share of its largest element."""

NamedTensors = Mapping[str, torch.Tensor | None]


def compare_gradients(
    captured: NamedTensors, exact: NamedTensors, plain: NamedTensors | None
) -> dict[str, Any]:
    """Compare the gradient of one step with its repetitions.

    Args:
        captured: what the run under the plan computed.
        exact: the repetition in the reference's dtype.
        plain: the repetition without a plan in the script's own dtype, whose error is what honest
            rounding looks like for this very step; None if there is none.

    Returns:
        `tensors`, of each name {`size`, `off`, `plain`, `own`,
        `own_size`, `dot`, `count`, `lost`}: the length of the
        exact gradient, of the captured one's difference from it, of the plain one's; of captured
        minus plain; captured times exact; elements; and those that are finite only when repeated.
        And `gradient_error`, `gradient_slope`, `plain_error`, `own_error`, `count` and `lost` of
        them all.
    """
    rows = {}
    for name in _names(captured, exact, plain or {}):
        tensors = _fill_missing(
            captured.get(name), exact.get(name), None if plain is None else plain.get(name)
        )
        rows[name] = None if tensors is None else _row(*tensors, has_plain=plain is not None)
    tensors = {name: row for name, row in rows.items() if row is not None}
    if not tensors:
        raise ValueError("the optimizer had no gradient, neither in the run nor when repeated")
    return {**_summarize(list(tensors.values())), "tensors": tensors}


def _names(*parts: NamedTensors) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


def _fill_missing(*tensors: torch.Tensor | None) -> list[torch.Tensor] | None:
    """Return the tensors as float64 vectors on the CPU, zeros for None; None if all are None."""
    like = next((tensor for tensor in reversed(tensors) if tensor is not None), None)
    if like is None:
        return None
    return [
        torch.zeros_like(_vector(like)) if tensor is None else _vector(tensor) for tensor in tensors
    ]


def _vector(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.cpu().double().flatten()


def _length_of(vector: torch.Tensor) -> float:
    """Return the length of its finite elements."""
    return float(torch.nan_to_num(vector, nan=0.0, posinf=0.0, neginf=0.0).norm())


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    is_same = (left == right) | (left.isnan() & right.isnan())
    off = float(torch.where(is_same, 0.0, left - right).norm())
    return off if isfinite(off) else inf


def _product(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the scalar product of what is finite in both."""
    known = left.isfinite() & right.isfinite()
    return float(torch.where(known, left, 0.0) @ torch.where(known, right, 0.0))


def _row(
    captured: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor, *, has_plain: bool
) -> dict[str, Any]:
    # Of another shape it is another parameter's: nothing of it is right.
    fits = captured.numel() == exact.numel()
    repeated = plain if has_plain else exact
    return {
        "size": _length_of(exact),
        "off": _distance(captured, exact) if fits else inf,
        "plain": _distance(plain, exact) if has_plain else None,
        "own": (_distance(captured, plain) if fits else inf) if has_plain else None,
        "own_size": _length_of(plain),
        "dot": _product(captured, exact) if fits else 0.0,
        "count": exact.numel(),
        "lost": int((repeated.isfinite() & ~captured.isfinite()).sum()) if fits else 0,
    }


def _summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    size = _length(row["size"] for row in rows)
    found = {
        "gradient_error": _share(_length(row["off"] for row in rows), size),
        "gradient_slope": sum(row["dot"] for row in rows) / size**2 if size else 1.0,
        "count": sum(row["count"] for row in rows),
        "lost": sum(row["lost"] for row in rows),
    }
    if rows[0]["plain"] is not None:
        own_size = _length(row["own_size"] for row in rows)
        found["plain_error"] = _share(_length(row["plain"] for row in rows), size)
        found["own_error"] = _share(_length(row["own"] for row in rows), own_size)
    return found


def compare_updates(
    before: NamedTensors, after: NamedTensors, expected: NamedTensors
) -> dict[str, Any]:
    """Compare the update of one step with its repetition.

    Args:
        before: weights before the update.
        after: weights after it.
        expected: weights after the repeated update, in float64.

    Returns:
        `update_error` of all weights, and `updates`, of each; as shares of the expected update.
        What the format of the weights cannot hold of it is no error.
    """
    off, size, updates = [], [], {}
    for name, value in expected.items():
        old, new = before.get(name), after.get(name)
        assert value is not None
        if old is None or new is None or old.numel() != value.numel():
            off.append(inf)
            size.append(0.0)
            updates[name] = inf
            continue
        start, end, wide = _vector(old), _vector(new), _as_held(_vector(value), new.dtype)
        difference = _distance(end - start, wide - start)
        rounding = torch.finfo(new.dtype).eps / 2 * _length_of(end)
        off.append(max(0.0, difference - rounding))
        size.append(_length_of(wide - start))
        updates[name] = _share(off[-1], size[-1])
    return {"update_error": _share(_length(off), _length(size)), "updates": updates}


def _as_held(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return weights that are infinite where they are too large for their format."""
    held = wide.to(dtype.to_real()).double()
    return torch.where(held.isfinite(), wide, held)


def is_nearly(given: torch.Tensor, captured: torch.Tensor) -> bool:
    """Return whether inputs are the captured ones, but for their rounding."""
    if given.shape != captured.shape:
        return False
    if not captured.is_floating_point():
        return torch.equal(given, captured)
    given = given.to_dense() if given.is_sparse else given
    largest = captured.abs().max().item() if captured.numel() else 0.0
    error = (given.double() - captured.double()).abs()
    return bool((error <= _SAME_INPUTS * largest).all())


def relative_error(captured: torch.Tensor | None, exact: torch.Tensor) -> float:
    """Return how far a tensor is from its repetition, as a share of that one's length.

    What the format of the captured one cannot hold is no error; it is infinite if it is missing, or
    has another shape.
    """
    if captured is None or captured.shape != exact.shape:
        return inf
    kind = torch.finfo(captured.dtype)
    rounding = kind.eps / 2 * _norm(exact) + kind.tiny * exact.numel() ** 0.5
    off = max(
        0.0, _distance(_vector(captured), _as_held(_vector(exact), captured.dtype)) - rounding
    )
    return _share(off, _norm(exact))


def compare_outputs(
    captured: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], plain: Sequence[torch.Tensor]
) -> dict[str, Any]:
    """Compare what a forward gave with its repetitions, as `compare_gradients` does.

    Returns:
        `error` and `plain_error`, as shares of the exact output's length; infinite if it has
        another form.
    """
    if [t.shape for t in captured] != [t.shape for t in exact]:
        return {"error": inf, "plain_error": 0.0}
    size = _length(map(_norm, exact))
    off = _length(_distance(_vector(a), _vector(b)) for a, b in zip(captured, exact, strict=True))
    own = _length(_distance(_vector(a), _vector(b)) for a, b in zip(plain, exact, strict=True))
    return {"error": _share(off, size), "plain_error": _share(own, size)}


def compare_buffers(
    before: NamedTensors, after: NamedTensors, exact: NamedTensors, plain: NamedTensors
) -> dict[str, Any]:
    """Compare what a step has made of a model's buffers with its repetitions.

    Args:
        before: buffers before the step.
        after: buffers after it.
        exact: after its repetition in the reference's dtype.
        plain: after its repetition in the script's own dtype.

    Returns:
        Name -> {`error`, `plain_error`}, as shares of what the step should have changed. What the
        format of a buffer cannot hold of it is no error.
    """
    found = {}
    for name, value in after.items():
        old, wide, own = before.get(name), exact.get(name), plain.get(name)
        if value is None or old is None:
            # It was made in the step, or is none.
            continue
        if wide is None or own is None:
            found[name] = {"error": inf, "plain_error": inf}
            continue
        if not value.is_floating_point() and not value.is_complex():
            found[name] = {
                "error": _unequal_share(value, wide),
                "plain_error": _unequal_share(own, wide),
            }
            continue
        size = _length_of(_vector(wide) - _vector(old))
        rounding = torch.finfo(value.dtype).eps * (_norm(value) + _norm(old))
        errors = [
            _share(max(0.0, _distance(_vector(each), _vector(wide)) - rounding), size)
            for each in (value, own)
        ]
        found[name] = {"error": errors[0], "plain_error": errors[1]}
    return found


def _unequal_share(left: torch.Tensor, right: torch.Tensor) -> float:
    return 0.0 if torch.equal(left.cpu().long(), right.cpu().long()) else inf


def _norm(tensor: torch.Tensor) -> float:
    return _length_of(_vector(tensor))


def _share(off: float, size: float) -> float:
    if off == 0:
        return 0.0
    return off / size if 0 < size < inf else inf


def _length(parts: Iterable[float]) -> float:
    return sum(part**2 for part in parts) ** 0.5
