"""Errors of a captured step against its repetition: gradients, updates, buffers.

A gradient or an update that is missing counts as zero, on either side.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

import torch

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
        `own_size`, `dot`, `count`}: the length of the
        exact gradient, of the captured one's difference from it, of the plain one's; of captured
        minus plain; captured times exact; elements. And `gradient_error`, `gradient_slope`,
        `plain_error`, `own_error` and `count` of them all.
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
        torch.zeros(like.numel(), dtype=torch.float64) if tensor is None else _vector(tensor)
        for tensor in tensors
    ]


def _vector(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return dense.cpu().double().flatten()


def _row(
    captured: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor, *, has_plain: bool
) -> dict[str, Any]:
    # Of another shape it is another parameter's: nothing of it is right.
    fits = captured.numel() == exact.numel()
    return {
        "size": float(exact.norm()),
        "off": float((captured - exact).norm()) if fits else inf,
        "plain": float((plain - exact).norm()) if has_plain else None,
        "own": (float((captured - plain).norm()) if fits else inf) if has_plain else None,
        "own_size": float(plain.norm()),
        "dot": float(captured @ exact) if fits else 0.0,
        "count": exact.numel(),
    }


def _summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    size = _length(row["size"] for row in rows)
    found = {
        "gradient_error": _share(_length(row["off"] for row in rows), size),
        "gradient_slope": sum(row["dot"] for row in rows) / size**2 if size else 1.0,
        "count": sum(row["count"] for row in rows),
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
        wide = _vector(value) - _vector(old)
        difference = float((_vector(new) - _vector(old) - wide).norm())
        rounding = torch.finfo(new.dtype).eps / 2 * float(_vector(new).norm())
        off.append(max(0.0, difference - rounding))
        size.append(float(wide.norm()))
        updates[name] = _share(off[-1], size[-1])
    return {"update_error": _share(_length(off), _length(size)), "updates": updates}


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
    size = _length(float(_vector(t).norm()) for t in exact)
    off = _length(
        float((_vector(a) - _vector(b)).norm()) for a, b in zip(captured, exact, strict=True)
    )
    own = _length(
        float((_vector(a) - _vector(b)).norm()) for a, b in zip(plain, exact, strict=True)
    )
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
        if value is None or old is None or wide is None or own is None:
            continue
        if not value.is_floating_point():
            found[name] = {
                "error": _unequal_share(value, wide),
                "plain_error": _unequal_share(own, wide),
            }
            continue
        size = float((_vector(wide) - _vector(old)).norm())
        rounding = torch.finfo(value.dtype).eps * (_norm(value) + _norm(old))
        errors = [
            _share(max(0.0, float((_vector(each) - _vector(wide)).norm()) - rounding), size)
            for each in (value, own)
        ]
        found[name] = {"error": errors[0], "plain_error": errors[1]}
    return found


def _unequal_share(left: torch.Tensor, right: torch.Tensor) -> float:
    return 0.0 if torch.equal(left.cpu().long(), right.cpu().long()) else inf


def _norm(tensor: torch.Tensor) -> float:
    return float(_vector(tensor).norm())


def _share(off: float, size: float) -> float:
    return off / size if size else (0.0 if off == 0 else inf)


def _length(parts: Iterable[float]) -> float:
    return sum(part**2 for part in parts) ** 0.5
