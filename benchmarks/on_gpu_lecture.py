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

import hotlap
from benchmarks.gpu_turns import FUSED, RESIDENT, Engine, Sizes, Tf32, forget, in_turns
from hotlap.plan import Plan
from hotlap.techniques import EXACT_PLAN

EXAMPLE = Path(__file__).parents[1] / "examples" / "fashion_mnist"
BATCH = 64
GRAPH = {**RESIDENT, "cuda_graph": {}}
BLOCKS = {**RESIDENT, "cuda_graph": {"steps": 64}}
_RUNS = ("engine, exact", "engine, graph", "engine, graph of 64")
ENGINE: dict[str, dict[str, Any]] = {
    "engine, exact": dict(EXACT_PLAN.techniques),
    "engine, fused": {**RESIDENT, **FUSED},
    "engine, graph": GRAPH,
    "engine, graph, loss compiled": {**GRAPH, "compile": {"region": "loss"}},
    "engine, graph, masters": {**GRAPH, "master_weights": {}},
    "engine, graph of 8": {**RESIDENT, "cuda_graph": {"steps": 8}},
    "engine, graph of 64": BLOCKS,
    "engine, graph of 64, loss compiled": {**BLOCKS, "compile": {"region": "loss"}},
}
PLANS_OF_RUNS = {name: ENGINE[name] for name in ENGINE if name in _RUNS}


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
        "engine, graph of 64, TF32": (lambda: Engine(task, BLOCKS, sizes), Tf32),
        "engine, graph of 64, loss compiled, TF32": (
            engine["engine, graph of 64, loss compiled"],
            Tf32,
        ),
        "plain again": lambda: PlainLoop(data, sizes),
    }
    in_turns(ways, sizes, BATCH, trace_of="engine, graph of 64")


def _task(data: Any, held_out: Any = None, epochs: int = 10**6) -> Any:
    example()
    import recipe

    made = recipe.task(model="mlp", epochs=epochs)
    measured = {} if held_out is not None else {"evaluate": None}
    return dataclasses.replace(made, data=data, held_out=held_out, **measured)


class _Epochs:
    """A whole run, a row for each of its epochs; the first one's time has the start in it."""

    def __init__(self, name: str, sizes: Sizes) -> None:
        self._name, self._sizes = name, sizes
        self._begin = time.perf_counter()

    def train(self, task: Any, plan: dict[str, Any]) -> None:
        hotlap.train(task, Plan(plan), device=self._sizes.device.name, progress=self._note)

    def _note(self, done: Any) -> None:
        seconds, self._begin = time.perf_counter() - self._begin, time.perf_counter()
        self._sizes.rows.add(
            way=self._name,
            epoch=done.epoch,
            epoch_s=seconds,
            training_s=done.seconds,
            accuracy=done.held_out["accuracy"],
        )


def mlp_run(sizes: Sizes) -> None:
    """Seconds of whole epochs with their evaluation, one row each, and of what comes before."""
    data = images(640 if sizes.is_small else 60_000)
    held_out = images(128 if sizes.is_small else 10_000, train=False)
    epochs = 2 if sizes.is_small else 4
    for name, plan in PLANS_OF_RUNS.items():
        forget()
        _Epochs(name, sizes).train(_task(data, held_out, epochs), plan)
    loop, plain = PlainLoop(data, sizes), example()
    loader = torch.utils.data.DataLoader(held_out, batch_size=BATCH)
    for epoch in range(1, 2 if sizes.left_s() < 30 else 3):
        begin = time.perf_counter()
        loop(len(loop.loader))
        score = plain.accuracy(loop.model, loader, sizes.device.name) / 100
        seconds = time.perf_counter() - begin
        sizes.rows.add(way="plain", epoch=epoch, epoch_s=seconds, accuracy=score)


PARTS = {"mlp": mlp, "mlp-run": mlp_run}
