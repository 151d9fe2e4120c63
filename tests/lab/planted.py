"""Dishonest techniques, to see whether the verdict notices. Each claims less than it does."""

from dataclasses import dataclass
from typing import Any

from hotlap.techniques import Numerics, Proof, Technique


@dataclass(frozen=True)
class Options:
    pass


def _technique(name: str, seam: Any, apply: Any, claims: Numerics = Numerics.ROUNDING) -> Technique:
    return Technique(
        name=name,
        seam=seam,
        Options=Options,
        numerics=lambda: claims,
        apply=apply,
        proof=lambda: Proof("applied", "so it says"),
    )


def _drop_every_20th_batch(target: Any, options: Any) -> Any:
    if target.own_order:
        return _drop_in_the_engine(target)
    sampler = target.loader.batch_sampler

    class Dropping:
        seen = 0

        def __iter__(self) -> Any:
            for indices in sampler:
                Dropping.seen += 1
                if Dropping.seen % 20:
                    yield indices

        def __len__(self) -> int:
            return len(sampler)

    target.loader.__dict__["batch_sampler"] = Dropping()
    return target


def _drop_in_the_engine(target: Any) -> Any:
    source, seen = target.loader, [0]
    original = source.epoch

    def epoch(number: int, first: int = 0) -> Any:
        for step in original(number, first):
            seen[0] += 1
            if seen[0] % 20:
                yield step

    source.epoch = epoch
    return target


def _stale_batch(target: Any, options: Any) -> Any:
    kept: list[Any] = []

    def wrap(dataset: Any, read: Any) -> Any:
        def fetch(indices: Any) -> Any:
            kept.append(read(indices))
            # Now and then the batch before, as a prefetcher does that reuses a buffer too early.
            return kept[-2] if len(kept) % 15 == 0 else kept[-1]

        return fetch

    target.fetchers.append(wrap)
    return target


def _larger_rate(target: Any, options: Any) -> Any:
    for group in target.optimizer.param_groups:
        group["lr"] *= 1.02
    return target


def _larger_rate_in_secret(target: Any, options: Any) -> Any:
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 1.02

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] /= 1.02

    target.optimizer.register_step_pre_hook(before)
    target.optimizer.register_step_post_hook(after)
    return target


def _larger_rate_at_times(target: Any, options: Any) -> Any:
    calls = [0]

    def before(optimizer: Any) -> None:
        calls[0] += 1
        for group in optimizer.param_groups:
            if calls[0] % 50 == 0:
                group["lr"] *= 1.02
            elif calls[0] % 50 == 1 and calls[0] > 1:
                group["lr"] /= 1.02

    target.each_step.append(before)
    return target


def _larger_rate_in_secret_at_times(target: Any, options: Any) -> Any:
    calls = [0]

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        calls[0] += 1
        if calls[0] % 50 == 0:
            for group in optimizer.param_groups:
                group["lr"] *= 1.02

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if calls[0] % 50 == 0:
            for group in optimizer.param_groups:
                group["lr"] /= 1.02

    target.optimizer.register_step_pre_hook(before)
    target.optimizer.register_step_post_hook(after)
    return target


def _larger_gradient_at_times(target: Any, options: Any) -> Any:
    calls = [0]

    def before(optimizer: Any) -> None:
        calls[0] += 1
        for group in optimizer.param_groups if calls[0] % 50 == 0 else ():
            for parameter in group["params"]:
                parameter.grad.mul_(1.01)

    target.each_step.append(before)
    return target


def _skip_every_50th_update(target: Any, options: Any) -> Any:
    step, calls = target.optimizer.step, [0]

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        calls[0] += 1
        if calls[0] % 50 == 0:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    del step
    target.optimizer.register_step_pre_hook(before)
    return target


def _scaled_gradient(target: Any, options: Any) -> Any:
    for parameter in target.module.parameters():
        parameter.register_hook(lambda gradient: gradient * 1.003)
    return target


def _freeze_the_second_of_three(target: Any, options: Any) -> Any:
    layers = [module for module in target.module.modules() if list(module.parameters(False))]
    for parameter in layers[len(layers) // 2].parameters():
        parameter.requires_grad_(False)
    return target


def _freeze_biases(target: Any, options: Any) -> Any:
    for name, parameter in target.module.named_parameters():
        if name.endswith("bias"):
            parameter.requires_grad_(False)
    return target


def _drop_last_bias(target: Any, options: Any) -> Any:
    *_, last = (p for name, p in target.module.named_parameters() if name.endswith("bias"))

    def drop(parameter: Any) -> None:
        parameter.grad = None

    last.register_post_accumulate_grad_hook(drop)
    return target


def _bfloat16_in_secret(target: Any, options: Any) -> Any:
    return _compute_in_bfloat16(target, None)


def _compute_in_bfloat16(target: Any, change: Any) -> Any:
    """Compute in bfloat16; `change` is what becomes of the output's gradient."""
    import torch

    forward = target.module.forward

    def narrow(*args: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = forward(*args).float()
        if change is not None and output.requires_grad:
            output.register_hook(change)
        return output

    target.module.forward = narrow
    return target


def _biased_bfloat16(target: Any, options: Any) -> Any:
    return _compute_in_bfloat16(target, lambda gradient: gradient * 1.01)


def _noisy_bfloat16(target: Any, options: Any) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1)

    def add(gradient: Any) -> Any:
        noise = torch.randn(gradient.shape, generator=generator)
        return gradient + 0.05 * gradient.norm() * noise / noise.norm()

    return _compute_in_bfloat16(target, add)


def _smaller_start(target: Any, options: Any) -> Any:
    import torch

    with torch.no_grad():
        for parameter in target.module.parameters():
            parameter.mul_(0.8)
    return target


def _shrink_before_each_forward(target: Any, options: Any) -> Any:
    import torch

    def shrink(module: Any, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(0.9999)

    target.module.register_forward_pre_hook(shrink)
    return target


def _round_moments(target: Any, options: Any) -> Any:
    def narrow(module: Any, inputs: Any) -> None:
        for optimizer in target_optimizers:
            for state in optimizer.state.values():
                if "exp_avg" in state:
                    state["exp_avg"].copy_(state["exp_avg"].bfloat16())

    target_optimizers = list(target.optimizers)
    target.module.register_forward_pre_hook(narrow)
    return target


def _half_of_the_averages(target: Any, options: Any) -> Any:
    from torch.optim.swa_utils import AveragedModel

    update, calls = AveragedModel.update_parameters, [0]

    def at_times(average: Any, model: Any) -> None:
        calls[0] += 1
        if calls[0] % 2:
            update(average, model)

    AveragedModel.update_parameters = at_times
    return target


def _dropout_off_at_times(target: Any, options: Any) -> Any:
    import torch

    calls = [0]

    def switch(module: Any, inputs: Any) -> None:
        calls[0] += module.training
        is_off = module.training and calls[0] % 10 == 0
        if is_off:
            # Or the generator would stand still.
            torch.rand(())
        for each in module.modules():
            if isinstance(each, torch.nn.Dropout):
                each.training = module.training and not is_off

    target.module.register_forward_pre_hook(switch)
    return target


def _lost_state(target: Any, options: Any) -> Any:
    def lose(module: Any, inputs: Any, returned: Any) -> Any:
        output, (hidden, cell) = returned
        return output, (hidden, cell * 0)

    target.module.register_forward_hook(lose)
    return target


def _state_of_the_call_before(target: Any, options: Any) -> Any:
    kept: list[Any] = []

    def swap(module: Any, inputs: Any, returned: Any) -> Any:
        output, state = returned
        kept.append(tuple(part.detach().clone() for part in state))
        return output, kept.pop(0) if len(kept) > 1 else state

    target.module.register_forward_hook(swap)
    return target


def _shrink_state(target: Any, options: Any) -> Any:
    def shrink(module: Any, inputs: Any) -> None:
        for part in inputs[1]:
            part.data.mul_(0.999)

    target.module.register_forward_pre_hook(shrink)
    return target


def _faster_batch_norm(target: Any, options: Any) -> Any:
    for module in target.module.modules():
        if hasattr(module, "momentum"):
            module.momentum = 0.5
    return target


DROP = _technique("drop", "feed", _drop_every_20th_batch)
STALE = _technique("stale", "feed", _stale_batch)
RATE = _technique("rate", "optimizer", _larger_rate)
SECRET_RATE = _technique("secret_rate", "optimizer", _larger_rate_in_secret)
RATE_AT_TIMES = _technique("rate_at_times", "optimizer", _larger_rate_at_times)
SECRET_RATE_AT_TIMES = _technique(
    "secret_rate_at_times", "optimizer", _larger_rate_in_secret_at_times
)
GRADIENT_AT_TIMES = _technique("gradient_at_times", "optimizer", _larger_gradient_at_times)
SKIP = _technique("skip", "optimizer", _skip_every_50th_update)
SCALE = _technique("scale", "model", _scaled_gradient)
FREEZE = _technique("freeze", "model", _freeze_the_second_of_three)
FREEZE_BIASES = _technique("freeze_biases", "model", _freeze_biases)
DROP_BIAS = _technique("drop_bias", "model", _drop_last_bias)
NARROW = _technique("narrow", "model", _bfloat16_in_secret)
OPEN_NARROW = _technique("open_narrow", "model", _bfloat16_in_secret, Numerics.PRECISION)
NOISY_NARROW = _technique("noisy_narrow", "model", _noisy_bfloat16, Numerics.PRECISION)
BIASED = _technique("biased", "model", _biased_bfloat16, Numerics.PRECISION)
SECRET_RATE_AND_NARROW = _technique(
    "secret_rate_and_narrow", "optimizer", _larger_rate_in_secret, Numerics.PRECISION
)
SMALLER_START = _technique("smaller_start", "model", _smaller_start)
SHRINK = _technique("shrink", "model", _shrink_before_each_forward)
MOMENTS = _technique("moments", "model", _round_moments)
AVERAGES = _technique("averages", "model", _half_of_the_averages, Numerics.EXACT)
DROPOUT_AT_TIMES = _technique("dropout_at_times", "model", _dropout_off_at_times)
BATCH_NORM = _technique("batch_norm", "model", _faster_batch_norm, Numerics.EXACT)
LOST_STATE = _technique("lost_state", "model", _lost_state)
STALE_STATE = _technique("stale_state", "model", _state_of_the_call_before)
SHRINK_STATE = _technique("shrink_state", "model", _shrink_state)
