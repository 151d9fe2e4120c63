"""Another number of threads for torch's own operators.

What it does   sets OMP_NUM_THREADS and MKL_NUM_THREADS before the process starts; in the engine,
               whose process runs already, torch's own number, until the run has ended.
When it helps  small layers, where threads wait for each other longer than they compute; a machine
               that others use as well (two threads on cores that are not free can be 50 times
               slower than one).
When it hurts  large layers on free cores.
Numerics       rounding: sums are split among threads, another number splits them otherwise.
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md
Source         PyTorch documentation, CPU threading; OpenMP 5.2, OMP_NUM_THREADS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques.record import Live, Numerics, ProcessTarget, Proof, Technique

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Options:
    count: int
    """Intra-op threads."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1024:
            raise ValueError(f"count={self.count} is not allowed. Expected: 1 to 1024.")


def why_not(task: TaskFacts, host: Any, options: Options) -> str | None:
    if options.count > host.cores:
        return (
            f"count={options.count} in [techniques.threads] of the plan is more than the "
            f"{host.cores} usable cores of this host. Expected: 1 to {host.cores}."
        )
    if task.threads == options.count:
        return (
            f"count={options.count} in [techniques.threads] of the plan is the script's number of "
            "threads already, so nothing would change. Choose another number from 1 to "
            f"{host.cores}, or use a plan without threads."
        )
    return None


def apply(target: ProcessTarget, options: Options) -> ProcessTarget:
    for variable in _VARIABLES:
        target.environment[variable] = str(options.count)
    target.switch = lambda: _set(target, options.count)
    return target


def _set(target: ProcessTarget, count: int) -> Callable[[], None]:
    import torch

    before = target.notes["threads"] = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    return lambda: torch.set_num_threads(before)


def _switch_on(target: ProcessTarget, options: Options) -> None:
    import torch

    del target
    torch.set_num_threads(options.count)


def _switch_off(target: ProcessTarget, options: Options) -> None:
    import torch

    del options
    torch.set_num_threads(target.notes["threads"])


def proof(options: Options) -> Proof:
    import torch

    threads = torch.get_num_threads()
    uses = f"torch uses {threads} thread{'' if threads == 1 else 's'}"
    if threads != options.count:
        return Proof("no_effect", f"{uses}: the script sets the number")
    return Proof("applied", uses)


def candidates(task: TaskFacts, host: Any) -> tuple[Mapping[str, Any], ...]:
    counts = {1, max(1, int(host.cores) // 2), int(host.cores)} - {task.threads}
    return tuple({"count": count} for count in sorted(counts))


TECHNIQUE = Technique(
    name="threads",
    seam="process",
    Options=Options,
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=candidates,
    live=Live(_switch_on, _switch_off),
    is_opportunity=True,
    by_hand="call torch.set_num_threads({count}) before training",
    on_ranks=True,
)
