"""Techniques that change what is learned, each in a way of its own and by a size that is given.

They are found by name: `benchmarks.lies_planted:SHRINK` for the plan `{"shrink": {"size": 1e-3}}`.
All but a few claim to be `rounding`, so that everything that the claim asks for is checked.
"""

import gc
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotlap.techniques import Numerics, Proof, Technique

_LATE = 20
"""The forward before which something moves."""


@dataclass(frozen=True)
class Options:
    size: float = 1.0


def _technique(
    name: str, seam: Any, apply: Callable[[Any, float], None], claims: Numerics = Numerics.ROUNDING
) -> Technique:
    def applied(target: Any, options: Options) -> Any:
        apply(target, options.size)
        return target

    return Technique(
        name=name,
        seam=seam,
        Options=Options,
        numerics=lambda: claims,
        apply=applied,
        proof=lambda: Proof("applied", "so it says"),
    )


def _weights(target: Any) -> list[Any]:
    return list(target.module.parameters())


def _layers(target: Any) -> list[Any]:
    return [module for module in target.module.modules() if list(module.parameters(False))]


def _in_training(target: Any, work: Callable[[], None]) -> None:
    """Do it before each forward in training."""
    import torch

    def before(module: Any, _inputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            with torch.no_grad():
                work()

    target.module.register_forward_pre_hook(before)


def _each(count: list[int], every: float) -> bool:
    count[0] += 1
    return count[0] % round(every) == 0


# What takes no part.


def freeze_layer(target: Any, size: float) -> None:
    layers = _layers(target)
    for parameter in layers[min(int(size), len(layers) - 1)].parameters():
        parameter.requires_grad_(False)


def freeze_biases(target: Any, _size: float) -> None:
    for name, parameter in target.module.named_parameters():
        if name.endswith("bias"):
            parameter.requires_grad_(False)


def drop_last_gradient(target: Any, size: float) -> None:
    """At every `size`-th backward."""
    count = [0]

    def drop(parameter: Any) -> None:
        if _each(count, size):
            parameter.grad = None

    _weights(target)[-1].register_post_accumulate_grad_hook(drop)


# Where it begins.


def other_seed(target: Any, size: float) -> None:
    import torch

    state = torch.get_rng_state()
    torch.manual_seed(1000 + round(size))
    for module in target.module.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    torch.set_rng_state(state)


def scaled_start(target: Any, size: float) -> None:
    import torch

    with torch.no_grad():
        for parameter in _weights(target):
            parameter.mul_(1 - size)


def rounded_start(target: Any, size: float) -> None:
    """To so many bits of the fraction."""
    import torch

    with torch.no_grad():
        for parameter in _weights(target):
            _round(parameter, size)


def _round(tensor: Any, bits: float) -> None:
    import torch

    fraction, exponent = torch.frexp(tensor)
    tensor.copy_(torch.ldexp((fraction * 2**bits).round() / 2**bits, exponent))


# What moves between the updates.


def shrink(target: Any, size: float) -> None:
    weights = _weights(target)

    def work() -> None:
        for parameter in weights:
            parameter.mul_(1 - size)

    _in_training(target, work)


def shrink_at_read(target: Any, size: float) -> None:
    """At each read of a batch, through the weights that a module of the data's was given."""
    import torch
    from torch.utils.data import dataloader

    original = dataloader._BaseDataLoaderIter.__next__
    parameters = _weights(target)

    def reading(iterator: Any) -> Any:
        batch = original(iterator)
        if torch.is_grad_enabled():
            with torch.no_grad():
                for parameter in parameters:
                    parameter.mul_(1 - size)
        return batch

    dataloader._BaseDataLoaderIter.__next__ = reading


def round_moments(target: Any, size: float) -> None:
    optimizers = _optimizers(target)

    def narrow() -> None:
        for optimizer in optimizers():
            for state in optimizer.state.values():
                for value in state.values():
                    if getattr(value, "ndim", 0):
                        _round(value, size)

    _in_training(target, narrow)


def forget_moments(target: Any, size: float) -> None:
    optimizers, count = _optimizers(target), [0]

    def forget() -> None:
        if _each(count, size):
            for optimizer in optimizers():
                for state in optimizer.state.values():
                    for value in state.values():
                        if getattr(value, "ndim", 0):
                            value.zero_()

    _in_training(target, forget)


def _optimizers(target: Any) -> Callable[[], list[Any]]:
    import gc

    import torch

    found: list[Any] = []

    def look() -> list[Any]:
        if not found:
            own = {id(parameter) for parameter in target_parameters}
            for each in gc.get_objects():
                if issubclass(type(each), torch.optim.Optimizer) and any(
                    id(p) in own for group in each.param_groups for p in group["params"]
                ):
                    found.append(each)
        return found

    target_parameters = _weights(target)
    return look


# What is drawn.


def same_mask(target: Any, size: float) -> None:
    """The same random numbers in every `size`-th step as in the first."""
    import torch

    count, state = [0], []

    def again() -> None:
        if not state:
            state.append(torch.get_rng_state())
        if _each(count, size):
            torch.set_rng_state(state[0])

    _in_training(target, again)


def fixed_mask(target: Any, _size: float) -> None:
    """Dropout of one mask for the whole run, which draws nothing."""
    import torch

    for module in target.module.modules():
        if isinstance(module, torch.nn.Dropout):
            _fix(module)


def dropout_off(target: Any, size: float) -> None:
    """At every `size`-th forward in training, which draws a number all the same."""
    import torch

    count = [0]

    def switch(module: Any, _inputs: Any) -> None:
        is_off = module.training and _each(count, size)
        if is_off:
            torch.rand(())
        for each in module.modules():
            if isinstance(each, torch.nn.Dropout):
                each.training = module.training and not is_off

    target.module.register_forward_pre_hook(switch)


def _fix(module: Any) -> None:
    import torch

    masks: dict[Any, Any] = {}

    def forward(values: Any) -> Any:
        if not module.training:
            return values
        if values.shape not in masks:
            kept = torch.rand(values.shape, generator=torch.Generator().manual_seed(1)) > module.p
            masks[values.shape] = kept / (1 - module.p)
        return values * masks[values.shape]

    module.forward = forward


# The gradient.


def noise(target: Any, size: float) -> None:
    """Of `size` times the length of each gradient."""
    import torch

    generator = torch.Generator().manual_seed(7)

    def noisy(gradient: Any) -> Any:
        drawn = torch.randn(gradient.shape, generator=generator)
        return gradient + size * gradient.norm() / gradient.numel() ** 0.5 * drawn

    for parameter in _weights(target):
        parameter.register_hook(noisy)


def scaled_gradient(target: Any, size: float) -> None:
    for parameter in _weights(target):
        parameter.register_hook(lambda gradient: gradient * (1 + size))


def scaled_output(target: Any, size: float) -> None:
    """Of what the model gives, so that backward itself computes other gradients."""

    def after(module: Any, _inputs: Any, output: Any) -> None:
        if module.training and output.requires_grad:
            output.register_hook(lambda gradient: gradient * (1 + size))

    target.module.register_forward_hook(after)


def larger_gradient(target: Any, size: float) -> None:
    """Gradients are a fifth too large in a share `size` of the steps."""
    import random

    coin = random.Random(0)

    def after(module: Any, _inputs: Any, output: Any) -> None:
        if module.training and output.requires_grad and coin.random() < size:
            output.register_hook(lambda gradient: gradient * 1.2)

    target.module.register_forward_hook(after)


def late_gradient(target: Any, size: float) -> None:
    """Every `size`-th update gets gradients that are 1 % larger than backward left them."""
    weights = _weights(target)
    count = [0]

    def enlarge(_parameter: Any) -> None:
        # Backward comes to the first layer last.
        if _each(count, size):
            for parameter in weights:
                if parameter.grad is not None:
                    parameter.grad.mul_(1.01)

    weights[0].register_post_accumulate_grad_hook(enlarge)


def stale_gradient(target: Any, size: float) -> None:
    """Every `size`-th is that of the backward before."""
    for parameter in _weights(target):
        parameter.register_hook(_stale(size))


def _stale(every: float) -> Callable[[Any], Any]:
    count: list[int] = [0]
    before: list[Any] = []

    def replaced(gradient: Any) -> Any:
        is_late = _each(count, every)
        kept = before[0] if before else gradient
        before[:] = [gradient.detach().clone()]
        return kept if is_late else gradient

    return replaced


def zero_gradient(target: Any, size: float) -> None:
    """Every `size`-th is zero."""
    for parameter in _weights(target):
        count = [0]
        parameter.register_hook(lambda g, count=count: g * 0 if _each(count, size) else g)


# The update.


def _inside(target: Any, key: str, factor: float) -> None:
    def change(by: float) -> Callable[..., None]:
        def changed(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            for group in optimizer.param_groups:
                group[key] = group[key] * by

        return changed

    target.optimizer.register_step_pre_hook(change(factor))
    target.optimizer.register_step_post_hook(change(1 / factor))


def secret_rate(target: Any, size: float) -> None:
    _inside(target, "lr", 1 + size)


def secret_decay(target: Any, size: float) -> None:
    _inside(target, "weight_decay", 1 + size)


def skip_update(target: Any, size: float) -> None:
    """Every `size`-th, inside the optimizer's step."""
    count = [0]

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if _each(count, size):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    target.optimizer.register_step_pre_hook(before)


def moments_inside(target: Any, size: float) -> None:
    """Adam's first moments have so many bits, rounded by the function that updates them.

    An optimizer of the same process, made to repeat the update, calls it too.
    """
    adam: Any = importlib.import_module("torch.optim.adam")
    original = adam._single_tensor_adam
    del target

    def rounded(params: Any, grads: Any, moments: Any, *args: Any, **kwargs: Any) -> None:
        original(params, grads, moments, *args, **kwargs)
        for moment in moments:
            _round(moment, size)

    adam._single_tensor_adam = rounded


# Beside the step.


def batch_norm(target: Any, size: float) -> None:
    for module in target.module.modules():
        if hasattr(module, "running_mean"):
            module.momentum = size


def skip_average(_target: Any, size: float) -> None:
    """Every `size`-th update of averaged models is left out."""
    from torch.optim.swa_utils import AveragedModel

    original, count = AveragedModel.update_parameters, [0]

    def update(self: Any, model: Any) -> None:
        if not _each(count, size):
            original(self, model)

    AveragedModel.update_parameters = update


def _rounded(target: Any) -> None:
    """Let bits differ from the plain run's, as under an honest technique that rounds otherwise."""

    def after(module: Any, _inputs: Any, output: Any) -> Any:
        return output * (1 + 2.0**-22) if module.training else None

    target.module.register_forward_hook(after)


def _averaged(target: Any) -> list[Any]:
    """Return the copies of the model that averaged models hold."""
    found = [each for each in gc.get_objects() if type(each) is type(target.module)]
    return [each for each in found if each is not target.module]


def scaled_average(target: Any, size: float) -> None:
    """Averaged models start with other weights."""
    import torch

    _rounded(target)
    with torch.no_grad():
        for module in _averaged(target):
            for parameter in module.parameters():
                parameter.mul_(1 + size)


def average_buffers(target: Any, size: float) -> None:
    """Averaged models have other buffers after each update."""
    from torch.optim.swa_utils import AveragedModel

    _rounded(target)
    original = AveragedModel.update_parameters

    def update(self: Any, model: Any) -> None:
        original(self, model)
        for buffer in self.module.buffers():
            if buffer.is_floating_point():
                buffer.mul_(1 + size)

    AveragedModel.update_parameters = update


def swapped_weights(target: Any, size: float) -> None:
    """Smaller weights are evaluated, and put back before training goes on."""
    import torch

    _rounded(target)
    original, weights, kept = target.module.train, _weights(target), []

    def train(mode: bool = True) -> Any:
        with torch.no_grad():
            for parameter in () if mode or kept else weights:
                kept.append((parameter, parameter.clone()))
                parameter.mul_(1 - size)
            for parameter, before in kept if mode else ():
                parameter.copy_(before)
        if mode:
            kept.clear()
        return original(mode)

    target.module.train = train


def scaled_inputs(target: Any, size: float) -> None:
    """Inputs are smaller in evaluation, but for the first batch."""
    count = [0]
    _rounded(target)

    def before(module: Any, inputs: Any) -> None:
        count[0] += not module.training
        if count[0] > 1 and not module.training:
            inputs[0].mul_(1 - size)

    target.module.register_forward_pre_hook(before)


def shifted_scores(target: Any, size: float) -> None:
    """In evaluation each class gets the score of another one."""

    def after(module: Any, _inputs: Any, output: Any) -> Any:
        return None if module.training else output.roll(round(size), -1)

    target.module.register_forward_hook(after)


def first_batches(_target: Any, size: float) -> None:
    """Evaluation reads so many batches."""
    import torch
    from torch.utils.data import dataloader

    from hotlap.engine import evaluate

    original = dataloader._BaseDataLoaderIter.__next__
    read: dict[int, int] = {}

    def reading(iterator: Any) -> Any:
        if not torch.is_grad_enabled():
            read[id(iterator)] = read.get(id(iterator), 0) + 1
            if read[id(iterator)] > size:
                raise StopIteration
        return original(iterator)

    dataloader._BaseDataLoaderIter.__next__ = reading
    batches = evaluate._batches
    evaluate._batches = lambda built: list(batches(built))[: round(size)]


def filled_state(target: Any, size: float) -> None:
    """Adam's second moments are there before the first update."""
    import torch

    for group in target.optimizer.param_groups:
        for weight in group["params"]:
            target.optimizer.state[weight] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.full_like(weight, size),
            }


def scaled_buffer(target: Any, size: float) -> None:
    """A buffer that never changes starts another."""
    target.module.scale.mul_(1 + size)


def _once(target: Any, tensors: Callable[[], Any], size: float) -> None:
    """Scale tensors before the 20th forward in training."""
    count = [0]

    def work() -> None:
        count[0] += 1
        if count[0] == _LATE:
            for tensor in tensors():
                tensor.mul_(1 + size)

    _in_training(target, work)


def moved_buffer(target: Any, size: float) -> None:
    """It changes in the middle of the run."""
    scale = target.module.scale
    _once(target, lambda: [scale], size)


def moved_frozen(target: Any, size: float) -> None:
    """A frozen layer changes in the middle of the run."""
    module = target.module
    _once(target, module.frozen.parameters, size)


def _teacher() -> list[Any]:
    found = [each for each in gc.get_objects() if type(each).__name__ == "Teacher"]
    return [parameter for module in found for parameter in module.parameters()]


def scaled_teacher(target: Any, size: float) -> None:
    """The teacher starts with other weights."""
    del target
    for parameter in _teacher():
        parameter.mul_(1 + size)


def moved_teacher(target: Any, size: float) -> None:
    """The teacher changes in the middle of the run."""
    _once(target, _teacher, size)


def scaled_save(target: Any, size: float) -> None:
    """What `state_dict` gives is not what the model has."""

    def scale(_module: Any, state: Any, _prefix: str, _local: Any) -> None:
        for name, tensor in state.items():
            if tensor.is_floating_point():
                state[name] = tensor * (1 + size)

    target.module.register_state_dict_post_hook(scale)


FREEZE_LAYER = _technique("freeze_layer", "model", freeze_layer)
FREEZE_BIASES = _technique("freeze_biases", "model", freeze_biases)
DROP_LAST_GRADIENT = _technique("drop_last_gradient", "model", drop_last_gradient)
OTHER_SEED = _technique("other_seed", "model", other_seed)
SCALED_START = _technique("scaled_start", "model", scaled_start)
ROUNDED_START = _technique("rounded_start", "model", rounded_start)
SHRINK = _technique("shrink", "model", shrink)
SHRINK_AT_READ = _technique("shrink_at_read", "model", shrink_at_read)
ROUND_MOMENTS = _technique("round_moments", "model", round_moments)
FORGET_MOMENTS = _technique("forget_moments", "model", forget_moments)
SAME_MASK = _technique("same_mask", "model", same_mask)
FIXED_MASK = _technique("fixed_mask", "model", fixed_mask)
NOISE = _technique("noise", "model", noise)
DROPOUT_OFF = _technique("dropout_off", "model", dropout_off)
NARROW_NOISE = _technique("narrow_noise", "model", noise, Numerics.PRECISION)
SCALED_GRADIENT = _technique("scaled_gradient", "model", scaled_gradient)
SCALED_OUTPUT = _technique("scaled_output", "model", scaled_output)
LATE_GRADIENT = _technique("late_gradient", "model", late_gradient)
STALE_GRADIENT = _technique("stale_gradient", "model", stale_gradient)
ZERO_GRADIENT = _technique("zero_gradient", "model", zero_gradient)
SECRET_RATE = _technique("secret_rate", "optimizer", secret_rate)
SECRET_DECAY = _technique("secret_decay", "optimizer", secret_decay)
SKIP_UPDATE = _technique("skip_update", "optimizer", skip_update)
BATCH_NORM = _technique("batch_norm", "model", batch_norm, Numerics.EXACT)
SKIP_AVERAGE = _technique("skip_average", "model", skip_average, Numerics.EXACT)
LARGER_GRADIENT = _technique("larger_gradient", "model", larger_gradient)
SCALED_AVERAGE = _technique("scaled_average", "model", scaled_average)
AVERAGE_BUFFERS = _technique("average_buffers", "model", average_buffers)
SHIFTED_SCORES = _technique("shifted_scores", "model", shifted_scores, Numerics.EXACT)
FIRST_BATCHES = _technique("first_batches", "model", first_batches, Numerics.EXACT)
FILLED_STATE = _technique("filled_state", "optimizer", filled_state)
SCALED_BUFFER = _technique("scaled_buffer", "model", scaled_buffer)
MOVED_BUFFER = _technique("moved_buffer", "model", moved_buffer)
MOVED_FROZEN = _technique("moved_frozen", "model", moved_frozen)
SCALED_TEACHER = _technique("scaled_teacher", "model", scaled_teacher)
MOVED_TEACHER = _technique("moved_teacher", "model", moved_teacher)
SCALED_SAVE = _technique("scaled_save", "model", scaled_save, Numerics.EXACT)
MOMENTS_INSIDE = _technique("moments_inside", "model", moments_inside)
SWAPPED_WEIGHTS = _technique("swapped_weights", "model", swapped_weights)
SCALED_INPUTS = _technique("scaled_inputs", "model", scaled_inputs)
