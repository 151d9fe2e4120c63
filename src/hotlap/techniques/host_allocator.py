"""Memory that a step frees on the CPU is kept for the next step.

What it does   tells the GNU C library to give no freed memory back to the system, and to take none
               by separate mappings: MALLOC_MMAP_MAX_=0 and a trim threshold that is never reached,
               in the environment; in the engine, whose process runs already, by mallopt. Otherwise
               every large tensor of a step is mapped, cleared by the system page by page, and
               unmapped again: hundreds to thousands of page faults a step.
When it helps  training on a CPU, wherever activations or gradients are more than some pages.
When it hurts  a process that needs much memory once and little later keeps it. Belief to correct:
               page faults of a process are not a sign of too little memory; and another allocator
               (jemalloc, tcmalloc) is not needed to be rid of them.
Numerics       exact: where a tensor lies changes nothing that is computed with it.
Measured       page faults of a step on an AMD EPYC, torch 2.13, one thread: MLP with batches of
               64, 80 to 1000 (it depends on where blocks come to lie), then fewer than 10; small
               CNN with batches of 64, 3000, then none; with batches of 1024, 268,000, then none.
               Time, two threads, steps of an MLP and a CNN with batches of 64, each twice: 0.93
               to 1.03 times as fast, so nothing was gained there. A GPT of a million parameters,
               one thread, in bfloat16: 3000 to 6000 faults, then fewer than 10; 40 to 47 ms of
               processor time a step, then 34 to 36. `tune` tries it where steps have faults.
Source         mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD; glibc manual, malloc tunables.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from hotlap.device import process_settings
from hotlap.task import TaskFacts
from hotlap.techniques.record import Numerics, ProcessTarget, Proof, Refusal, Technique
from hotlap.trace.paging import MANY, SHARE, Paging

VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(process_settings.TRIM_NEVER),
}
_OTHERS = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def why_not(task: TaskFacts, host: Any) -> str | None:
    if host.platform != "linux":
        return (
            "host_allocator sets options of the GNU C library on Linux, but this platform is "
            f"'{host.platform}'. Use a plan without host_allocator."
        )
    if task.device != "cpu":
        return (
            f"host_allocator speeds up training on a CPU, but the model trains on '{task.device}', "
            "whose memory PyTorch caches already. Use a plan without host_allocator."
        )
    return None


def apply(target: ProcessTarget) -> ProcessTarget:
    for name, value in VARIABLES.items():
        target.environment.setdefault(name, value)

    def switch() -> Callable[[], None]:
        if not process_settings.is_glibc():
            raise Refusal(
                "this process uses another `malloc` than that of the GNU C library, for example "
                "jemalloc by LD_PRELOAD. Unset LD_PRELOAD if it names such a library, or use a "
                "plan without host_allocator."
            )
        for name in (*VARIABLES, *_OTHERS):
            if os.environ.get(name, VARIABLES.get(name)) != VARIABLES.get(name):
                raise Refusal(
                    f"the environment variable {name}={os.environ[name]} is set, and hotlap does "
                    f"not override it. Unset {name}, or use a plan without host_allocator."
                )
        return process_settings.keep_freed_memory()

    paging = target.notes["host_allocator"] = Paging()
    target.switch = switch
    target.after_step.append(paging.step_ends)
    return target


def proof(target: ProcessTarget) -> Proof:
    kept = process_settings.keeps_freed_memory()
    if kept is not True:
        why = (
            "it was mapped separately, or returned to the system"
            if kept is False
            else "glibc is older than 2.33"
        )
        return Proof("no_effect", f"not confirmed by a test allocation of 40 MiB: {why}")
    paging = target.notes["host_allocator"]
    shown = "a test allocation of 40 MiB came from the heap, and was kept there once freed"
    if paging.steps > 0:
        shown += f"; page faults per step: {paging.step_means()[0]:.0f}"
    return Proof("applied", shown)


def candidates(task: TaskFacts) -> tuple[Mapping[str, Any], ...]:
    # A trial of it takes the time of one that may gain more.
    is_little = task.page_faults < MANY or task.system_share < SHARE
    return () if task.device == "cpu" and is_little else ({},)


TECHNIQUE = Technique(
    name="host_allocator",
    seam="process",
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=candidates,
    without_candidates=f"steps have fewer than {MANY} page faults each, or the system works for "
    f"less than {SHARE:.0%} of their time, so it can save little",
    is_opportunity=True,
    by_hand=f"start the script with {' '.join(f'{k}={v}' for k, v in VARIABLES.items())} in its "
    "environment",
    on_ranks=True,
)
