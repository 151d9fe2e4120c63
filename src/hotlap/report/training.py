"""The progress lines and the summary of `hotlap train`."""

from typing import Any

from rich.console import Console
from rich.table import Table

from hotlap.report.printable import printable


def opening_line(task: Any) -> str:
    """Return the line that says what will be trained."""
    split = f" in {task.accumulate} micro-batches" if task.accumulate > 1 else ""
    holds = f"{task.logical_batch} samples"
    if task.budget is not None:
        holds = f"at most {task.tokens_per_batch * task.accumulate} tokens"
    each = f"steps of {holds}{split}"
    if task.total_steps is None:
        epochs = "1 epoch" if task.epochs == 1 else f"{task.epochs} epochs"
        return f"{epochs} in {each}, until the stream ends"
    an_epoch = f", {task.steps_per_epoch} an epoch" if task.steps_per_epoch is not None else ""
    return f"{task.total_steps} {each}{an_epoch}"


def line(epoch: Any, task: Any) -> str:
    """Return the line on one epoch."""
    of = f" of {task.epochs}" if task.epochs is not None else ""
    held_out = "".join(
        f", held-out {printable(name)} {value:.4g}" for name, value in epoch.held_out.items()
    )
    padding = "" if epoch.padding is None else f", padding {100 * epoch.padding:.1f} %"
    return (
        f"epoch {epoch.epoch}{of}: loss {epoch.loss:.6f}{held_out}, "
        f"{epoch.samples_per_s:,.0f} samples/s{padding}, {epoch.seconds:.1f} s, "
        f"{epoch.peak_memory_bytes / 2**20:,.0f} MiB"
        + (f", {epoch.skipped_steps} skipped steps" if epoch.skipped_steps else "")
        + _time_left(epoch.left_s)
    )


def _other_counts(memory: Any) -> str:
    """Return what others count of a device's memory than torch counts of its tensors."""
    if not memory:
        return ""
    reserved, used = (f"{memory[name] / 2**20:,.0f} MiB" for name in ("reserved", "used"))
    return f" of tensors ({reserved} reserved by torch, {used} used on the device)"


def _time_left(seconds: float) -> str:
    if seconds <= 0:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f", {hours}:{minutes:02}:{rest:02} left" if hours else f", {minutes}:{rest:02} left"


def stop_line(done: Any, signal: str) -> str:
    """Return the line on a run that a signal has ended."""
    if done.run_dir is None:
        return f"{signal}: ended after step {done.steps}, nothing was saved"
    return (
        f"{signal}: ended after step {done.steps}, saved in '{done.run_dir}'. Use --resume auto to "
        "continue"
    )


def _steps_taken(done: Any) -> str:
    """Return the steps that this process took: what it measured is of these."""
    if not done.begun_step:
        return f"{done.steps} steps"
    taken = done.steps - done.begun_step
    return f"{taken:,} of {done.steps:,} steps, resumed from step {done.begun_step:,},"


def page(done: Any, console: Console) -> None:
    """Print what a training gave."""
    if done.epochs:
        console.print(
            f"{_steps_taken(done)} in {done.seconds:.1f} s, steady {done.samples_per_s:,.0f} "
            f"samples/s, peak memory {done.peak_memory_bytes / 2**20:,.0f} MiB"
            + _other_counts(done.device_memory)
        )
        console.print(f"loss {done.epochs[-1].loss:.6f}")
    elif not done.is_stopped:
        console.print(f"nothing left to train: {done.steps} steps were already done")
    for name, value in done.held_out.items():
        console.print(f"held-out {printable(name)} {value:.6g}")
    for batch in done.warmed:
        console.print(
            f"largest batch {batch.samples} samples x {batch.length} tokens, tried before step 1: "
            f"{batch.seconds:.2f} s, peak {batch.peak_memory_bytes / 2**20:,.0f} MiB"
        )
    if done.skipped_steps:
        console.print(
            f"{done.skipped_steps} skipped steps: the loss or the gradient norm was not finite"
        )
    for retry in done.retries:
        again = "at the same size" if retry.then == retry.samples else f"in at most {retry.then}"
        console.print(
            f"step {retry.step} ran out of memory in micro-batches of {retry.samples}, and was "
            f"taken again {again}"
        )
    table = Table("technique", "state", "why", box=None)
    for row in done.techniques:
        words = "; ".join(filter(None, (row["why"], row.get("on_ranks"))))
        table.add_row(row["name"], row["state"], printable(words))
    if table.row_count:
        console.print(table)
