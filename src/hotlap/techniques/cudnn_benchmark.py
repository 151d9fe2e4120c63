"""cuDNN tries its convolution algorithms on each new shape, and keeps the fastest.

What it does   sets torch.backends.cudnn.benchmark.
When it helps  convolutions whose inputs have few shapes.
When it hurts  shapes that change: every new one is searched again, the shorter last batch of an
               epoch and evaluation too. Belief to correct: it is no free switch. It may also choose
               another algorithm in another run, so two runs need not be equal, and some algorithms
               take more workspace.
Numerics       rounding: another algorithm sums in another order.
Measured       not yet measured on a GPU.
Source         PyTorch documentation, torch.backends.cudnn.benchmark; cuDNN developer guide,
               algorithm search.
"""

from collections.abc import Callable
from typing import Any

from hotlap.device import process_settings
from hotlap.task import TaskFacts
from hotlap.techniques.record import Numerics, ProcessTarget, Proof, Refusal, Technique


def why_not(task: TaskFacts, host: Any) -> str | None:
    if not host.gpus or task.device == "cpu":
        return (
            "cudnn_benchmark chooses cuDNN's kernels, but no GPU is used for training "
            f"(device='{task.device}', {len(host.gpus)} GPUs on the host). Train on a CUDA GPU, "
            "or use a plan without cudnn_benchmark."
        )
    if not any("Conv" in name for name in task.layers):
        return (
            "the model has no convolution, so cudnn_benchmark would change nothing. Use a plan "
            "without it, or a model with `Conv1d`, `Conv2d` or `Conv3d`"
        )
    return None


def apply(target: ProcessTarget) -> ProcessTarget:

    def switch() -> Callable[[], None]:
        import torch

        if target.device != "cuda" or not process_settings.has_cuda():
            raise Refusal(
                f"no CUDA device is in use (device='{target.device}'). Train on a CUDA GPU to use "
                "cudnn_benchmark, or use a plan without it."
            )
        if torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic:
            raise Refusal(
                "deterministic algorithms are on, by `torch.use_deterministic_algorithms(True)`, "
                "`torch.backends.cudnn.deterministic = True` or `deterministic` in the plan, which "
                "rules out cudnn_benchmark. Remove this, or use a plan without cudnn_benchmark."
            )
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True

        def undo() -> None:
            torch.backends.cudnn.benchmark = before

        return undo

    target.switch = switch
    return target


def proof(target: ProcessTarget) -> Proof:
    import torch

    if not torch.backends.cudnn.benchmark:
        return Proof("no_effect", "the script set torch.backends.cudnn.benchmark to False")
    if not process_settings.cuda_has_begun():
        return Proof("no_effect", "the run used no CUDA device")
    if "cudnn_benchmark" not in target.notes:
        # Once: a process is asked after every turn of a race, and a search takes memory.
        target.notes["cudnn_benchmark"] = process_settings.kernels_of_convolutions(target.device)
    first, later = target.notes["cudnn_benchmark"]
    kernels = f"a convolution of a new shape ran {first} kernels, then {later}"
    if first <= later:
        return Proof("no_effect", f"{kernels}: no algorithms were benchmarked")
    return Proof("applied", f"{kernels}: algorithms were benchmarked")


TECHNIQUE = Technique(
    name="cudnn_benchmark",
    seam="process",
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    on_ranks=True,
)
