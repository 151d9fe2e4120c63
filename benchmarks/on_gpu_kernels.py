"""hotlap's own kernels beside Inductor's, and what the launch of a graph costs the host.

`loss` takes a cross-entropy forward and backward: by Inductor as it is and with tuned kernels, and
by `hotlap.kernels.softmax_rows` with several blocks; and a GELU, by Inductor both ways. `launches`
replays graphs of nodes of one kind, in one line and with a second stream, of which the host waits
for nothing.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu_turns import Sizes, attempted, forget, timed_mark
from hotlap.kernels import softmax_rows
from hotlap.lab.statistics import spread

CLASSES = 50304
BLOCKS = ((8192, 16), (16384, 32), (8192, 32), (4096, 16), (4096, 8), (8192, 8), (2048, 8))
"""Logits that a program holds at once, and warps."""


def loss(sizes: Sizes) -> None:
    """Milliseconds of a loss with its gradient, and the bytes a second if each moved once."""
    rows, classes = (64, 320) if sizes.is_small else (16384, CLASSES)
    logits = torch.randn(rows, classes, device=sizes.device.name, dtype=torch.bfloat16)
    targets = torch.randint(classes, (rows,), device=sizes.device.name)
    moved = 2 * logits.numel() * logits.element_size()
    attempted("error", lambda: _error(logits[:64].clone(), targets[:64], sizes), sizes)
    if softmax_rows.has_kernel(sizes.device.kind):
        for block, warps in BLOCKS:
            name = f"softmax_rows, {block} in {warps} warps"
            work = _in_place(logits.clone(), targets, block, warps)
            attempted(name, lambda n=name, w=work: _timed(n, w, moved, sizes), sizes)
    else:
        _timed("softmax_rows, by operators", _in_place(logits.clone(), targets), moved, sizes)
    forget()
    wide = torch.randn(rows, 8 if sizes.is_small else 3072, device=logits.device).bfloat16()
    bent_bytes = 5 * wide.numel() * wide.element_size()
    for is_tuned in (False, True):
        how = ", kernels tuned" if is_tuned else ""
        compiled = _compiled(lambda x: functional.cross_entropy(x.float(), targets), is_tuned)
        work = _both_ways(compiled, logits)
        attempted(
            f"inductor{how}", lambda h=how, w=work: _timed(f"inductor{h}", w, moved, sizes), sizes
        )
        bent = _both_ways(_compiled(functional.gelu, is_tuned), wide)
        attempted(
            f"GELU{how}", lambda h=how, w=bent: _timed(f"GELU{h}", w, bent_bytes, sizes), sizes
        )


def _error(logits: torch.Tensor, targets: torch.Tensor, sizes: Sizes) -> None:
    """Write down how far losses and gradients are from those in float64."""
    wide = logits.double().requires_grad_()
    expected = functional.cross_entropy(wide, targets, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), wide)
    scale = torch.ones((), device=logits.device)
    losses = softmax_rows.take_losses(logits, targets, scale, -100, 0.0)
    far = (logits.double() - gradient).norm() / gradient.norm()
    sizes.rows.add(
        way="error", losses=float((losses - expected).detach().abs().max()), gradients=float(far)
    )


def _in_place(
    logits: torch.Tensor, targets: torch.Tensor, block: int = 0, warps: int = 0
) -> Callable[[], Any]:
    """Return what takes a loss again and again; that logits become gradients costs nothing."""
    scale = torch.full((), 1 / len(logits), device=logits.device)

    def work() -> None:
        softmax_rows.take_losses(logits, targets, scale, -100, 0.0, block or None, warps or None)

    return work


def _compiled(function: Callable[..., Any], is_tuned: bool) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, options={"coordinate_descent_tuning": is_tuned})


def _both_ways(function: Callable[..., Any], given: torch.Tensor) -> Callable[[], Any]:
    leaf = given.clone().requires_grad_()
    gradient: list[torch.Tensor] = []

    def work() -> None:
        leaf.grad = None
        found = function(leaf)
        if not gradient:
            gradient.append(torch.ones_like(found))
        found.backward(gradient[0])

    return work


def _timed(name: str, work: Callable[[], Any], moved: int, sizes: Sizes) -> None:
    """Time single calls by events, on a CPU by the clock."""
    for _ in range(3):
        work()
    found = []
    for _ in range(3 + sizes.rounds):
        sizes.device.synchronize()
        begin, first = time.perf_counter(), timed_mark(sizes.device)
        work()
        last = timed_mark(sizes.device)
        sizes.device.synchronize()
        wall = (time.perf_counter() - begin) * 1e3
        found.append(wall if first is None else first.elapsed_time(last))
    row = spread(found)
    sizes.rows.add(
        way=name, ms=row.median, ms_interval=[row.low, row.high], gb_s=moved / row.median / 1e6
    )


def launches(sizes: Sizes) -> None:
    """Microseconds of the host for a replay, by how many nodes there are and of which kind."""
    if not sizes.is_cuda:
        sizes.rows.add(way="launches", failed=f"{sizes.device.name} has no graphs")
        return
    for kind in ("kernel", "product", "copy", "fill", "one fork", "forks"):
        for count in (20, 200) if sizes.is_small else (200, 2000):
            way = f"{kind}, {count} nodes"
            attempted(way, lambda w=way, k=kind, c=count: _replayed(w, k, c, sizes), sizes)


def _replayed(way: str, kind: str, count: int, sizes: Sizes) -> None:
    graph = torch.cuda.CUDAGraph()
    node = _node_of(kind)
    node(0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for number in range(count):
            node(number)
    host, whole = [], []
    for _ in range(3 + 2 * sizes.rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        graph.replay()
        queued = time.perf_counter()
        torch.cuda.synchronize()
        host.append((queued - begin) * 1e6)
        whole.append((time.perf_counter() - begin) * 1e6)
    row = statistics.median(host[3:])
    sizes.rows.add(
        way=way, host_us=row, ns_a_node=row / count * 1e3, all_us=statistics.median(whole[3:])
    )


def _node_of(kind: str) -> Callable[[int], Any]:
    """Return what queues one node; of kinds that are not kernels each 20th is one."""
    values, other = torch.zeros(2, 4096, device="cuda")
    square = torch.randn(64, 64, device="cuda")
    result = torch.empty_like(square)
    side = torch.cuda.Stream()

    def fork() -> None:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            other.add_(1)
        values.add_(1)
        here.wait_stream(side)

    seldom: dict[str, Callable[[], Any]] = {
        "copy": lambda: other.copy_(values),
        "fill": lambda: values.zero_(),
        "forks": fork,
    }

    def node(number: int) -> None:
        if kind == "product":
            torch.mm(square, square, out=result)
        elif kind in seldom and number % 20 == 0:
            seldom[kind]()
        elif kind == "one fork" and number == 0:
            fork()
        else:
            values.add_(1)

    return node


PARTS: dict[str, Callable[[Sizes], None]] = {"loss": loss, "launches": launches}
