"""Which operators does this CPU compute more slowly on denormal numbers, and by how much?

Each operator of Adam's update, on a tensor that stays in a core's cache, by one thread: normal
numbers, denormal ones, and denormal ones with `torch.set_flush_denormal(True)`, in turns.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.__main__ import Result
from hotlap.host.facts import Host

_ELEMENTS = 50_000
_NORMAL, _DENORMAL = 1e-3, 5e-39
_OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "lerp_": lambda x, zeros: x.lerp_(zeros, 0.1),
    "mul_": lambda x, _: x.mul_(0.999),
    "addcmul_": lambda x, zeros: x.addcmul_(zeros, zeros),
    "sqrt": lambda x, _: x.sqrt(),
    "addcdiv_": lambda x, zeros: zeros.addcdiv_(x, zeros + 1.0, value=0.0),
}


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; option `--turns N` of each operator."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks denormals")
    parser.add_argument("--turns", type=int, default=20 if quick else 400)
    args = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result = Result()
    try:
        for name, operator in _OPERATORS.items():
            us = _turns(operator, args.turns)
            row: dict[str, object] = {"operator": name}
            row |= {f"{kind}, us": f"{median(each):.1f}" for kind, each in us.items()}
            ratio = median(us["denormal"]) / median(us["normal"])
            row["denormal / normal"] = f"{ratio:.1f}"
            result.rows.append(row)
            result.figures[f"{name}: denormal over normal"] = ratio
    finally:
        torch.set_num_threads(threads)
    return result


def _turns(
    operator: Callable[[torch.Tensor, torch.Tensor], object], turns: int
) -> dict[str, list[float]]:
    """Return microseconds of a call by kind of number."""
    found: dict[str, list[float]] = {"normal": [], "denormal": [], "flushed": []}
    made = {kind: torch.full((_ELEMENTS,), _DENORMAL) for kind in found}
    made["normal"].fill_(_NORMAL)
    for _ in range(turns):
        for kind, numbers in made.items():
            # Copied as they are: a flushed copy would hold zeros.
            given = numbers.clone()
            zeros = torch.zeros(_ELEMENTS)
            torch.set_flush_denormal(kind == "flushed")
            begin = time.perf_counter()
            operator(given, zeros)
            found[kind].append((time.perf_counter() - begin) * 1e6)
            torch.set_flush_denormal(False)
    return found
