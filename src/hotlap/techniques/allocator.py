"""Other settings of torch's allocator of GPU memory.

What it does   gives torch's caching allocator its settings, under both names of the variable:
               PYTORCH_ALLOC_CONF, and the older PYTORCH_CUDA_ALLOC_CONF. torch 2.13 takes the older
               one where both are set, so both get the same text. In the engine, whose process runs
               already, torch is told directly. What the environment says already is kept.
When it helps  memory that is reserved and cannot be used: batches of changing sizes leave holes,
               and segments that can grow have none. It makes a run fit, more than it makes it fast.
When it hurts  a run that fits anyway gains nothing. Beliefs to correct: torch.cuda.empty_cache
               frees nothing that is alive, and makes the next steps ask the driver again, which is
               slow; `max_split_size_mib` set low wastes memory; a setting in the environment after
               `import torch` and the first tensor on the GPU comes too late.
Numerics       exact: where a tensor lies changes nothing that is computed with it.
Measured       not yet measured on a GPU.
Source         PyTorch documentation, "CUDA semantics", memory management.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotlap.device import process_settings
from hotlap.task import TaskFacts
from hotlap.techniques.record import Numerics, ProcessTarget, Proof, Refusal, Technique

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True)
class Options:
    expandable_segments: bool = True
    """Segments of memory that grow in place of many that leave holes."""
    backend: Literal["native", "cudaMallocAsync"] = "native"
    """torch's own allocator, or that of CUDA's runtime, which knows no segments."""
    max_split_size_mib: int = 0
    """Larger blocks are never split for smaller tensors; 0 for no limit, else 21 or more."""
    garbage_collection_threshold: float = 0.0
    """Give unused blocks back beyond this share of the memory; 0.0 for never."""

    def __post_init__(self) -> None:
        size, share = self.max_split_size_mib, self.garbage_collection_threshold
        if size != 0 and not 20 < size <= 2**20:
            raise ValueError(
                f"max_split_size_mib={size} is out of range. Expected: 0, or 21 to {2**20}."
            )
        if not 0 <= share < 1:
            raise ValueError(
                f"garbage_collection_threshold={share} is out of range. "
                "Expected: at least 0.0 and less than 1.0."
            )
        if self.backend == "cudaMallocAsync" and (self.expandable_segments or size or share):
            raise ValueError(
                "backend='cudaMallocAsync' takes no other setting. Expected: "
                "expandable_segments=false, max_split_size_mib=0 and "
                "garbage_collection_threshold=0.0."
            )


def why_not(task: TaskFacts, host: Any, options: Options) -> str | None:
    if not host.gpus or task.device == "cpu":
        return (
            "allocator sets PyTorch's CUDA allocator, but no GPU is used for training "
            f"(device='{task.device}', {len(host.gpus)} GPUs on the host). Train on a CUDA GPU, "
            "or use a plan without allocator."
        )
    if options == Options(expandable_segments=False):
        return (
            "expandable_segments=false alone is PyTorch's default and changes nothing. Set "
            "expandable_segments=true or another option in the plan's [techniques.allocator], or "
            "use a plan without allocator."
        )
    return None


def torch_settings(options: Options) -> dict[str, str]:
    """Return torch's words for what the options ask for."""
    words = {}
    if options.backend != "native":
        words["backend"] = options.backend
    if options.expandable_segments:
        words["expandable_segments"] = "True"
    if options.max_split_size_mib:
        words["max_split_size_mb"] = str(options.max_split_size_mib)
    if options.garbage_collection_threshold:
        words["garbage_collection_threshold"] = str(options.garbage_collection_threshold)
    return words


def merge(options: Options, environment: Mapping[str, str]) -> str:
    """Return the variables' text: what the environment says already comes before the options."""
    # The older name comes last, as it does for torch.
    said = [parse(environment.get(name, "")) for name in VARIABLES]
    return text({**torch_settings(options), **said[0], **said[1]})


def parse(settings: str) -> dict[str, str]:
    """Read `key:value,key:value`; a value in brackets may hold commas."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(settings):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(settings[start:place])
            start = place + 1
    pairs = [part.partition(":") for part in [*parts, settings[start:]] if part.strip()]
    return {key.strip(): value.strip() for key, _, value in pairs}


def text(settings: Mapping[str, str]) -> str:
    """Return `key:value,key:value`."""
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def apply(target: ProcessTarget, options: Options) -> ProcessTarget:
    joined = merge(options, target.environment)
    for name in VARIABLES:
        target.environment[name] = joined

    def switch() -> Callable[[], None]:
        if target.device != "cuda" or not process_settings.has_cuda():
            raise Refusal(
                f"no CUDA device is in use (device='{target.device}'). Train on a CUDA GPU to use "
                "allocator, or use a plan without it."
            )
        wanted, now = torch_settings(options), parse(process_settings.allocator_settings() or "")
        if all(now.get(key) == value for key, value in wanted.items()):
            return _do_nothing
        own = {k: v for name in VARIABLES for k, v in parse(os.environ.get(name, "")).items()}
        kept = [f"{key}:{own[key]}" for key in wanted if own.get(key, wanted[key]) != wanted[key]]
        if kept:
            raise Refusal(
                f"the environment already sets {', '.join(kept)} in {' or '.join(VARIABLES)}, and "
                "hotlap does not override this. Remove this setting from these variables to use "
                "the plan's value, or use a plan without allocator."
            )
        if "backend" in wanted:
            raise Refusal(
                f"backend='{options.backend}' must be chosen before torch is imported. Set "
                f"{VARIABLES[0]}={text(wanted)} in the environment before the process starts, and "
                "remove `allocator` from the plan: the variable alone has the same effect."
            )
        if not process_settings.set_allocator(text({**now, **wanted})):
            raise Refusal(
                "this version of torch cannot change its allocator's settings at runtime. Set "
                f"{VARIABLES[0]}={text(wanted)} in the environment before the process starts, and "
                "remove `allocator` from the plan: the variable alone has the same effect."
            )
        # torch forgets what is not named, but for the segments, which have to be told.
        return lambda: _restore(text({"expandable_segments": "False", **now}))

    target.switch = switch
    return target


def _do_nothing() -> None:
    """The environment has done it: there is no way back, and none is needed."""


def _restore(settings: str) -> None:
    process_settings.set_allocator(settings)


def proof(options: Options) -> Proof:
    if not process_settings.cuda_has_begun():
        return Proof("no_effect", "the run used no CUDA device")
    backend = process_settings.allocator_backend()
    if backend != options.backend:
        return Proof("no_effect", f"the allocator's backend is {backend}")
    if options.backend != "native":
        return Proof("applied", f"the allocator's backend is {backend}")
    said = process_settings.allocator_settings()
    settings = parse(said or "")
    off = [key for key, value in torch_settings(options).items() if settings.get(key) != value]
    if said is not None and off:
        return Proof("no_effect", f"the allocator's settings are {text(settings) or 'empty'}")
    if not options.expandable_segments:
        if said is None:
            return Proof("applied", "torch accepted the settings and does not report them")
        return Proof("applied", f"the allocator's settings are {said}")
    grows, count = process_settings.expandable_segments()
    if grows == 0:
        return Proof("no_effect", f"none of {count} GPU memory segments is expandable")
    return Proof("applied", f"{grows} of {count} GPU memory segments are expandable")


TECHNIQUE = Technique(
    name="allocator",
    seam="process",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    on_ranks=True,
)
