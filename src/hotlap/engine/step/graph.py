"""`CapturedGraph`: the whole step, captured once as a CUDA graph and replayed."""

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.device.capture import Graph, in_one_line
from hotlap.engine.step.blocks import Block, Blocks, Gradients
from hotlap.engine.step.device_rates import DeviceRates
from hotlap.engine.step.passes import MicroBatches, trained_tensors
from hotlap.engine.step.rates_ahead import RatesAhead
from hotlap.engine.step.update import Update
from hotlap.feed.sources.device_epoch import DeviceEpoch
from hotlap.nested import flatten_into, has_packed, rebuild

log = logging.getLogger("hotlap")

_DEPTH = 3
"""Containers within each other that are looked into, a module's own attributes the first."""
_MOST_FORMS = 8
"""Forms of batches before one of them has come often enough to be captured."""


class CapturedGraph:
    """Captures forward, loss, backward, clipping and update, and repeats them.

    The first steps run as they are, on the stream that captures later; the next one is captured
    and replayed, and so is every later one whose batch has the same structure, shapes and dtypes.
    Others, an epoch's last and shorter one, run as they are, with the same kernels.

    Args:
        model: that is trained.
        attempt: takes a step, and returns tensors on the device only.
        update: of that step.
        device: a CUDA device.
        rates: that the optimizer reads, on the device.
        ahead: the rates to come, where a schedule steps with the optimizer and they are known.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        attempt: Callable[[MicroBatches], torch.Tensor],
        update: Update,
        device: Cuda,
        rates: DeviceRates,
        ahead: RatesAhead | None = None,
    ) -> None:
        self._attempt, self._update, self._device = attempt, update, device
        self._wish = update.target.graph
        """What the technique asks for; it is told what happened."""
        self._rates = rates
        self._stream = device.new_stream()
        self._graph: Graph | None = None
        self._model = model
        self.replayed: MicroBatches | None = None
        self._held: Any = None
        """Hyperparameters that the graph holds as constants."""
        self._modes: _Modes | None = None
        """Of the model, which the graph holds as well."""
        self._inputs: dict[Any, _Inputs] = {}
        """By the form of their batches; only the one that was captured, once one was."""
        self._gradients: Gradients = []
        self._shown: Gradients | None = None
        """Those that parameters have as `.grad`, None if no graph left them."""
        self._read: dict[int, torch.Tensor] = {}
        """By where it lies: what graphs may read there, whatever the model has in its place later.
        """
        self.blocks: Blocks | None = None
        if self._wish.steps > 1:
            self.blocks = Blocks(attempt, update, device, self._stream, ahead, self._wish.steps)

    def __call__(self, micros: MicroBatches) -> torch.Tensor:
        """Replay a step, or take it as it is; return what the attempt returns."""
        self._rates.follow()
        self.replayed = None
        if self._wish.refused is not None:
            return self._run_uncaptured(micros)
        form, leaves = _form(micros)
        inputs = self._inputs.get(form)
        if inputs is None and self._graph is None and form is not None:
            inputs = self._inputs[form] = _Inputs(form, leaves, micros)
            if any(map(has_packed, form[0])):
                self._wish.refused = "a batch holds a PackedSequence, which is read on the host"
            elif len(self._inputs) > _MOST_FORMS:
                self._wish.refused = f"batches had {len(self._inputs)} different shapes"
        elif form is None:
            self._wish.refused = "a batch holds objects that are not tensors"
        if inputs is None or self._wish.refused is not None:
            return self._run_uncaptured(micros)
        inputs.take(leaves)
        if self._graph is None and not self._try_capture(inputs):
            return self._warm_up(inputs)
        if self._wish.refused is None:
            self._wish.refused = self._why_not_replayed()
        if self._wish.refused is not None:
            return self._run_uncaptured(micros)
        self.replayed = inputs.micros
        return self._replay()

    def _why_not_replayed(self) -> str | None:
        """Return what is no longer as it was when the graph was captured, None if all is."""
        assert self._modes is not None
        moved = self._modes.find_change()
        if moved is not None:
            self.forget()
            return (
                f"{moved} was changed during the run, and a graph repeats the step as it was "
                "captured; change it before the first step, or use a plan without cuda_graph"
            )
        now = self._rates.constant_hyperparameters()
        if now == self._held:
            return None
        pairs = zip(self._held, now, strict=False)
        moved = sorted({key for old, new in pairs for key in new if new[key] != old.get(key)})
        self.forget()
        return (
            f"the optimizer's {', '.join(moved) or 'parameter groups'} changed during the run, and "
            "a graph holds all hyperparameters but the learning rate; use a schedule of the "
            "learning rate only (`OneCycleLR` with cycle_momentum=False), or a plan without "
            "cuda_graph"
        )

    def take_block(
        self, epoch: DeviceEpoch, first: int, most: int, totals: Callable[[], tuple[Any, Any]]
    ) -> Block | None:
        """Take several steps of an epoch at once; None, with nothing done, if it cannot be.

        Args:
            epoch: whose rows are gathered.
            first: step of the epoch, from 0.
            most: whole steps that may be taken.
            totals: see `Blocks.take`.
        """
        blocks = self.blocks
        # What single steps show comes first: whether they can be captured at all.
        if blocks is None or self._graph is None or self._wish.refused is not None:
            return None
        count = blocks.length(most)
        if not count or not epoch.may_gather or self._update.recorder is not None:
            return None
        self._wish.refused = self._why_not_replayed()
        if self._wish.refused is not None:
            return None
        self._rates.follow()
        if not blocks.has(count):
            self._keep_what_is_read()
        found = blocks.take(epoch, first, count, totals)
        if found is None:
            # A capture that failed has left no gradients.
            self._shown = None
            if blocks.has_failed:
                self.forget()
                blocks.has_failed = False
            return None
        self._update.has_begun, self.replayed = True, None
        self._show(found[1])
        return found[0]

    def _show(self, gradients: Gradients) -> None:
        """Let who looks at `.grad` find those of the last step."""
        if self._shown is not gradients:
            self._shown = gradients
            for tensor, gradient in gradients:
                tensor.grad = gradient

    def forget(self) -> None:
        """Forget the graph: what a step that failed held would be missing, and batches may have
        another form from now on."""
        self._graph = None
        self._inputs.clear()
        self._read.clear()
        self._gradients, self._shown = [], None
        if self.blocks is not None:
            self.blocks.forget()

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Queue the block on the stream that captures, and let the current one wait for it.

        Nodes of autograd belong to the stream on which they were made, and a model that keeps an
        output keeps them: those of another stream would break a later capture.
        """
        device = self._device
        done = known = device.mark()
        try:
            with device.use_stream(self._stream):
                device.wait(known)
                try:
                    yield
                finally:
                    done = device.mark()
        finally:
            # A step that failed has queued work, which what is put back must not overtake.
            device.wait(done)

    def _run_uncaptured(self, micros: MicroBatches) -> torch.Tensor:
        self._wish.other_steps += 1
        self._shown = None
        if self._wish.refused is not None:
            return self._attempt(micros)
        with self.on_stream():
            result = self._attempt(micros)
        self._device.hand_over(result)
        return result

    def _warm_up(self, inputs: "_Inputs") -> torch.Tensor:
        inputs.warmed_up += 1
        self._wish.other_steps += 1
        device = self._device
        with self.on_stream(), device.host_draws() as drawn, device.host_reads() as reads:
            result = self._attempt(inputs.micros)
        device.hand_over(result)
        # What is done once may read and draw; what every step does may not.
        if inputs.warmed_up >= self._wish.warm_up:
            if reads:
                self._wish.refused = f"the step synchronizes with the device at {reads[0]}"
            elif drawn:
                self._wish.refused = (
                    f"the step draws from {drawn[0]}, and a graph would repeat the number that was "
                    f"drawn when it was captured; draw on the device (torch.rand(..., "
                    "device=...)), or use a plan without cuda_graph"
                )
        return result

    def _try_capture(self, inputs: "_Inputs") -> bool:
        """Capture once there have been enough steps; return whether warming up is over."""
        if inputs.warmed_up < self._wish.warm_up:
            return False
        attempt = self._attempt
        self._keep_what_is_read()
        try:
            self._graph = self._device.capture(lambda: attempt(inputs.micros), self._stream)
        except RuntimeError as error:
            log.info("cuda_graph refused", exc_info=True)
            self._wish.refused = f"the capture failed: {_in_words(error)}"
            # It may have been captured while it unscaled.
            self._update.forget_unscaling()
        if self._graph is None:
            # The frames that failed have held memory, as its gradients do.
            self._update.zero()
            gc.collect()
            self._device.release_memory()
            return True
        self._inputs = {inputs.form: inputs}
        self._held = self._rates.constant_hyperparameters()
        self._modes = _Modes(self._model)
        self._gradients = [(each, each.grad) for each in trained_tensors(self._update.optimizer)]
        self._shown = self._gradients
        return True

    def _keep_what_is_read(self) -> None:
        """Keep tensors in attributes alive: a replay reads where they were when it was captured.

        A mask, for one, is kept until a batch has another length.
        """
        for each in tensors_in_attributes(self._model):
            if each.layout is torch.strided:
                # A subclass of a package's own may have no storage.
                with contextlib.suppress(RuntimeError):
                    self._read.setdefault(each.untyped_storage().data_ptr(), each.detach())

    def _replay(self) -> torch.Tensor:
        assert self._graph is not None
        self._update.has_begun = True
        self._wish.replays += 1
        self._show(self._gradients)
        return self._graph.replay()


def tensors_in_attributes(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the tensors that a model's modules have as attributes, or in containers that are."""
    found: dict[int, torch.Tensor] = {}

    def look(value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif isinstance(value, dict | list | tuple) and depth:
            for part in value.values() if isinstance(value, dict) else value:
                look(part, depth - 1)

    for module in model.modules():
        look(vars(module), _DEPTH)
    return list(found.values())


def _in_words(error: RuntimeError) -> str:
    said = in_one_line(error)
    if "previous error" in said:
        said += "; a model or loss that keeps an output of an earlier step can be the cause"
    return said


class _Inputs:
    """Tensors that the graph reads from: each step's batch is copied into them."""

    def __init__(self, form: Any, leaves: list[torch.Tensor], micros: MicroBatches) -> None:
        self.form = form
        self.warmed_up = 0
        self._leaves = [torch.empty_like(leaf) for leaf in leaves]
        rest, specs = iter(self._leaves), form[0]
        self.micros = [
            (samples, rebuild(spec, rest)) for (samples, _), spec in zip(micros, specs, strict=True)
        ]

    def take(self, leaves: list[torch.Tensor]) -> None:
        """Copy a step's tensors in."""
        for mine, given in zip(self._leaves, leaves, strict=True):
            mine.copy_(given, non_blocking=True)


class _Modes:
    """What of a model decides which kernels a step queues, and may be set between two steps.

    To look at it takes 50 ns for a parameter and its module, a thousandth of what a step takes for
    them.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._modules = list(model.modules())
        self._names = [
            *(f"requires_grad of the parameter '{name}'" for name, _ in model.named_parameters()),
            *(f"the mode (train or eval) of module '{name}'" for name, _ in model.named_modules()),
        ]
        self._at_capture = self._read()

    def find_change(self) -> str | None:
        """Return what has another mode than at first, None if all is as it was."""
        now = self._read()
        if now == self._at_capture:
            return None
        # The model itself comes before its modules, and has the mode of most of them.
        moved = [
            name
            for name, old, new in zip(self._names, self._at_capture, now, strict=True)
            if old != new
        ]
        return moved[0].replace("module ''", "the model")

    def _read(self) -> list[bool]:
        modes = [each.requires_grad for each in self._parameters]
        modes += [each.training for each in self._modules]
        return modes


def _form(micros: MicroBatches) -> tuple[Any, list[torch.Tensor]]:
    """Return what batches must agree in to be read by one graph, None if none can; the tensors."""
    leaves: list[torch.Tensor] = []
    specs = tuple(flatten_into(batch, leaves) for _, batch in micros)
    if None in specs:
        return None, []
    samples = tuple(count for count, _ in micros)
    forms = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves)
    return (specs, samples, forms), leaves
