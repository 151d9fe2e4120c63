"""Reads a plan file, and chooses what of it applies on this host, by CPU, torch and verdict."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hotlap.attach.default_plan import (
    PlanChoice,
    Started,
    choice_line,
    choose_default,
    plan_path,
)
from hotlap.host import probes
from hotlap.plan import Plan
from hotlap.plan.file import MeasuredOn, PlanFile
from hotlap.techniques import check, exact_part, named

__all__ = ["PlanChoice", "Started", "choose", "measured_on", "plan_path"]


def choose(
    script: Started,
    wanted: str | None,
    *,
    cpu: str,
    torch: str,
    by_hand: bool = False,
    techniques: tuple[str, ...] = (),
) -> PlanChoice:
    """Return the plan to run under.

    Args:
        script: what will be run.
        wanted: a plan file, `auto` for the tuned one, None for bit-exact techniques only; these
            too if nothing was tuned.
        cpu: this host's CPU.
        torch: this host's torch.
        by_hand: take a file that claims nothing, as people write one, for what it says.
        techniques: techniques from outside that it may name, as `module:NAME`.

    Raises:
        MissingFile: there is no such plan file.
        PlanError: it holds what no plan holds.
    """
    chosen = choose_default(script, wanted)
    if chosen is not None:
        return chosen
    path = plan_path(script) if wanted is None or wanted == "auto" else Path(wanted)
    file = PlanFile.read(path)
    known = named(file.plan, techniques)
    check(file.plan, known)
    if file.verdict is not None and file.verdict.tier in ("unproven", "changed"):
        words = f"{path} is not used: its verdict is `{file.verdict.tier}`"
        return PlanChoice(Plan(), choice_line(Plan(), words))
    if by_hand and wanted != "auto" and _claims_nothing(file):
        return PlanChoice(
            file.plan, choice_line(file.plan, f"written by hand, nothing is proven, {path}")
        )
    strange = _why_not_applicable(file, cpu, torch)
    if strange:
        plan = exact_part(file.plan, known)
        out = ", ".join(name for name in file.plan.techniques if name not in plan.techniques)
        words = f"exact techniques of {path} only: {strange}" + (f"; dropped: {out}" if out else "")
        return PlanChoice(plan, choice_line(plan, words))
    if not file.plan:
        return PlanChoice(
            Plan(), choice_line(Plan(), f"{path}: nothing faster than plain was found")
        )
    verdict = file.verdict
    words = (
        f"verdict {verdict.tier} over {verdict.horizon_steps} steps" if verdict else "no verdict"
    )
    return PlanChoice(file.plan, choice_line(file.plan, f"{words}, from {path}"))


def measured_on(host: Any) -> MeasuredOn:
    """Return what a plan file says of a `Host`."""
    gpus = _gpu_names(gpu.name for gpu in host.gpus)
    return MeasuredOn(host.cpu, host.torch or "", host.cores, gpus)


def _gpu_names(names: Iterable[str]) -> str | None:
    # One of several alike is as good as all.
    return ", ".join(sorted(set(names))) or None


def _claims_nothing(file: PlanFile) -> bool:
    return not file.measured and file.host is None and file.verdict is None


def _why_not_applicable(file: PlanFile, cpu: str, torch: str) -> str:
    """Return why the file's verdict does not apply on this host, empty if it does."""
    if not file.is_as_measured:
        return "it was written or edited by hand"
    if file.host is None or file.verdict is None:
        return "it does not say where it was measured, or what was proven"
    if file.host.cpu != cpu:
        return f"it was measured on {file.host.cpu}, this is {cpu}"
    if file.host.torch != torch:
        return f"it was measured with torch {file.host.torch}, this is {torch}"
    cores = probes.usable_cores()
    if file.host.cores not in (None, cores):
        return f"it was measured on {file.host.cores} cores, here are {cores}"
    if file.host.gpus is not None:
        found = probes.gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        gpus = _gpu_names(each["name"] for each in found)
        if gpus != file.host.gpus:
            return f"it was measured with {file.host.gpus}, here is {gpus or 'no GPU'}"
    return ""
