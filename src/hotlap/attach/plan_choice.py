"""Chooses the plan file that a script runs under, and the one line that says so."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotlap.attach.entry import is_off
from hotlap.attach.launchers import COMMANDS, launched
from hotlap.attach.runner import exact_part
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile
from hotlap.techniques import EXACT_PLAN, check, registry


@dataclass(frozen=True)
class PlanChoice:
    """A plan, and why this one."""

    plan: Plan
    line: str


class Started(Protocol):
    """What is started: a script, a module or a recipe."""

    @property
    def path(self) -> str | None: ...
    @property
    def module(self) -> str | None: ...
    @property
    def args(self) -> tuple[str, ...]: ...
    @property
    def folder(self) -> Path: ...


def plan_path(script: Started) -> Path:
    """Return where the tuned plan of a script or recipe is kept."""
    if script.path is not None:
        return script.folder / Path(script.path).with_suffix(".plan.toml")
    module = script.module
    started = launched(script.args, module) if module in COMMANDS.values() else None
    if started is not None:
        # What is faster in one process need not be on ranks.
        stem = Path(started.name).with_suffix("") if started.is_script else started.name
        return script.folder / f"{stem}.ranks.plan.toml"
    return script.folder / f"{script.module}.plan.toml"


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
    if is_off():
        return PlanChoice(Plan(), "HOTLAP_OFF is set: running plain")
    if wanted is None:
        words = "exact techniques only, no plan was given"
        if plan_path(script).exists():
            words += f"; '{plan_path(script)}' exists: use it with `--plan auto`"
        return PlanChoice(EXACT_PLAN, _line(EXACT_PLAN, words))
    path = plan_path(script) if wanted == "auto" else Path(wanted)
    if wanted == "auto" and not path.exists():
        # Tuning writes no file where nothing is gained.
        words = (
            f"exact techniques only: '{path}' was not found; `hotlap tune {script}` writes it if "
            "it finds a faster plan"
        )
        return PlanChoice(EXACT_PLAN, _line(EXACT_PLAN, words))
    file = PlanFile.read(path)
    known = registry(techniques)
    check(file.plan, known)
    if file.verdict is not None and file.verdict.tier in ("unproven", "changed"):
        words = f"{path} is not used: its verdict is `{file.verdict.tier}`"
        return PlanChoice(Plan(), _line(Plan(), words))
    if by_hand and wanted != "auto" and _claims_nothing(file):
        return PlanChoice(
            file.plan, _line(file.plan, f"written by hand, nothing is proven, {path}")
        )
    strange = _why_not_applicable(file, cpu, torch)
    if strange:
        plan = exact_part(file.plan, known)
        out = ", ".join(name for name in file.plan.techniques if name not in plan.techniques)
        words = f"exact techniques of {path} only: {strange}" + (f"; dropped: {out}" if out else "")
        return PlanChoice(plan, _line(plan, words))
    if not file.plan:
        return PlanChoice(Plan(), _line(Plan(), f"{path}: nothing faster than plain was found"))
    verdict = file.verdict
    words = (
        f"verdict {verdict.tier} over {verdict.horizon_steps} steps" if verdict else "no verdict"
    )
    return PlanChoice(file.plan, _line(file.plan, f"{words}, from {path}"))


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
    return ""


def _line(plan: Plan, words: str) -> str:
    return f"plan {plan.hash}: {plan} ({words})"
