"""The lecture's MLP on a GPU: its plain loop, loops by hand up to K steps in a graph, the engine.

`mlp` lets all of them take turns; `mlp-run` times whole epochs, the first one from images that
nobody has decoded yet. Without FashionMNIST the images are random, which changes no time.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_turns import FUSED, RESIDENT, Engine, Sizes, Tf32, forget, in_turns
from hotlap.engine.build import build
from hotlap.engine.evaluate import evaluate
from hotlap.engine.run import steps_of
from hotlap.plan import Plan
from hotlap.techniques import EXACT_PLAN

EXAMPLE = Path(__file__).parents[1] / "examples" / "fashion_mnist"
BATCH = 64
GRAPH = {**RESIDENT, "cuda_graph": {}}
ENGINE: dict[str, dict[str, Any]] = {
    "engine, exact": dict(EXACT_PLAN.techniques),
    "engine, fused": {**RESIDENT, **FUSED},
    "engine, graph": GRAPH,
    "engine, graph, loss compiled": {**GRAPH, "compile": {"region": "loss"}},
    "engine, graph, masters": {**GRAPH, "master_weights": {}},
}
PLANS_OF_RUNS = {"engine, exact": ENGINE["engine, exact"], "engine, graph": GRAPH}


def example() -> Any:
    """Return the module of the plain script."""
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    import plain

    return plain


def images(count: int, train: bool = True) -> Any:
    """Return the first samples of the data set of the plain script, or as many random ones."""
    plain = example()

    class Random(plain.FashionMNIST):
        def __init__(self) -> None:
            self.images = torch.randint(256, (count, 28, 28), dtype=torch.uint8)
            self.labels = torch.randint(10, (count,))

    folder = plain.find()
    if folder is None:
        return Random()
    found = plain.FashionMNIST(folder, train)
    found.images, found.labels = found.images[:count], found.labels[:count]
    return found


class PlainLoop:
    """The plain script's own epoch, over as many of its batches as a turn has steps."""

    def __init__(self, data: Any, sizes: Sizes) -> None:
        plain = example()
        torch.manual_seed(0)
        self.device, self._epoch = sizes.device.name, plain.train_one_epoch
        self.model = plain.mlp().to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
        self._batches = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def __call__(self, count: int) -> None:
        some = _Some(self._batches, count)
        self._epoch(self.model, some, nn.CrossEntropyLoss(), self.optimizer, self.device)


class _Some:
    """The next batches of an iterator, as a loader of that length."""

    def __init__(self, batches: Iterator[Any], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, self._count)


class ByHand:
    """Decoded once, rows on the device; `steps` of them captured as one graph, or none.

    Inside the graph nothing comes from the host: rows are gathered at a counter on the device. On
    a CPU the same work runs as it is, to see that it is right.
    """

    def __init__(self, data: Any, sizes: Sizes, steps: int = 0) -> None:
        torch.manual_seed(0)
        device = sizes.device.name
        self.model = example().mlp().to(device)
        self.rows = data.images.to(device).unsqueeze(1).float().div(255)
        self.labels = data.labels.to(device)
        options: dict[str, Any] = {"fused": True}
        if sizes.is_cuda and steps:
            options["capturable"] = True
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, **options)
        self.whole = len(self.rows) // BATCH * BATCH
        self.order = torch.randperm(len(self.rows), device=device)[: self.whole]
        self.place = torch.zeros((), dtype=torch.long, device=device)
        self.within = torch.arange(BATCH, device=device)
        self.losses = torch.zeros(max(1, steps), device=device)
        self.unit = steps if sizes.is_cuda and steps else 1
        """Steps that one launch takes."""
        self._graph = self._captured() if sizes.is_cuda and steps else None

    def _step(self, number: int) -> None:
        index = self.order.index_select(0, (self.place + self.within) % self.whole)
        self.optimizer.zero_grad(set_to_none=True)
        found = self.model(self.rows.index_select(0, index))
        loss = nn.functional.cross_entropy(found, self.labels.index_select(0, index))
        loss.backward()
        self.optimizer.step()
        self.losses[number].copy_(loss.detach())
        self.place.add_(BATCH)

    def _captured(self) -> Any:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step(0)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=stream):
            for number in range(self.unit):
                self._step(number)
        return graph

    def __call__(self, count: int) -> None:
        if self._graph is None:
            for number in range(count):
                self._step(number % len(self.losses))
            return
        for _ in range(count // self.unit):
            self._graph.replay()


def mlp(sizes: Sizes) -> None:
    """All ways in turns; figures are samples a second, and how much faster than the plain loop."""
    plain = example()
    data = images(640 if sizes.is_small else 60_000)
    sizes.rows.add(data="random" if plain.find() is None else "FashionMNIST", samples=len(data))
    task = _task(data)
    graphs = (1, 4) if sizes.is_small else (1, 8, 64)
    engine = {name: lambda plan=plan: Engine(task, plan, sizes) for name, plan in ENGINE.items()}
    by_hand = {f"by hand, graph of {k}": lambda k=k: ByHand(data, sizes, k) for k in graphs}
    ways: dict[str, Any] = {
        "plain": lambda: PlainLoop(data, sizes),
        "engine, graph": engine["engine, graph"],
        "by hand": lambda: ByHand(data, sizes),
        **by_hand,
        **engine,
        "by hand, graph, TF32": (lambda: ByHand(data, sizes, graphs[-1]), Tf32),
        "engine, graph, TF32": (lambda: Engine(task, GRAPH, sizes), Tf32),
        "plain again": lambda: PlainLoop(data, sizes),
    }
    in_turns(ways, sizes, BATCH, trace_of="engine, graph")


def _task(data: Any, held_out: Any = None, epochs: int = 10**6) -> Any:
    example()
    import recipe

    made = recipe.task(model="mlp", epochs=epochs)
    measured = {} if held_out is not None else {"evaluate": None}
    return dataclasses.replace(made, data=data, held_out=held_out, **measured)


def mlp_run(sizes: Sizes) -> None:
    """Seconds of whole epochs with their evaluation, one row each, and of what comes before."""
    data = images(640 if sizes.is_small else 60_000)
    held_out = images(128 if sizes.is_small else 10_000, train=False)
    epochs = 2 if sizes.is_small else 4
    for name, plan in PLANS_OF_RUNS.items():
        forget()
        begin = time.perf_counter()
        built = build(_task(data, held_out, epochs), Plan(plan), device=sizes.device.name)
        sizes.rows.add(way=name, before_s=time.perf_counter() - begin)
        begin = time.perf_counter()
        for step in steps_of(built):
            if step.ends_epoch:
                score = evaluate(built)["accuracy"]
                sizes.device.synchronize()
                seconds, begin = time.perf_counter() - begin, time.perf_counter()
                sizes.rows.add(way=name, epoch=step.epoch, epoch_s=seconds, accuracy=score)
        built.end()
    loop, plain = PlainLoop(data, sizes), example()
    loader = torch.utils.data.DataLoader(held_out, batch_size=BATCH)
    for epoch in range(1, 2 if sizes.left_s() < 30 else 3):
        begin = time.perf_counter()
        loop(len(loop.loader))
        score = plain.accuracy(loop.model, loader, sizes.device.name) / 100
        seconds = time.perf_counter() - begin
        sizes.rows.add(way="plain", epoch=epoch, epoch_s=seconds, accuracy=score)


PARTS = {"mlp": mlp, "mlp-run": mlp_run}
