"""Where a script's plan file is kept, and the plan of a run that reads none. Imports little."""

from pathlib import Path
from typing import NamedTuple, Protocol

from hotlap.attach.entry import is_notebook, is_off
from hotlap.attach.launchers import COMMANDS, launched
from hotlap.plan import Plan
from hotlap.plan.before_start import EXACT_PLAN


class PlanChoice(NamedTuple):
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
    def program(self) -> str | None: ...
    @property
    def args(self) -> tuple[str, ...]: ...
    @property
    def folder(self) -> Path: ...


def plan_path(script: Started) -> Path:
    """Return where the tuned plan of a script or recipe is kept."""
    if is_notebook(script.path):
        # A script beside it may have its name.
        return script.folder / f"{script.path}.plan.toml"
    if script.path is not None:
        path = Path(script.path)
        if path.name in ("", ".."):
            # `.` is a folder, whose name does not stand there.
            path = Path((script.folder / path).resolve().name or "root")
        return script.folder / path.with_suffix(".plan.toml")
    if script.program is not None:
        # Whoever starts a script, its plan is the script's.
        words = (script.program, *script.args)
        named = next((word for word in words if word.endswith(".py")), script.program)
        name = named if named.endswith(".py") else Path(named).name
        return script.folder / Path(name).with_suffix(".plan.toml")
    module = script.module
    started = launched(script.args, module) if module in COMMANDS.values() else None
    if started is not None:
        # What is faster in one process need not be on ranks.
        stem = Path(started.name).with_suffix("") if started.is_script else started.name
        return script.folder / f"{stem}.ranks.plan.toml"
    return script.folder / f"{script.module}.plan.toml"


def choose_default(script: Started, wanted: str | None) -> PlanChoice | None:
    """Return the plan to run under where no plan file is read, None where one is.

    Args:
        script: what will be run.
        wanted: a plan file, `auto` for the tuned one, None for bit-exact techniques only.
    """
    if is_off():
        return PlanChoice(Plan(), "HOTLAP_OFF is set: running plain")
    path = plan_path(script)
    if wanted is None:
        words = "exact techniques only, no plan was given"
        if path.exists():
            words += f"; '{path}' exists: use it with `--plan auto`"
    elif wanted == "auto" and not path.exists():
        # Tuning writes no file where nothing is gained.
        words = (
            f"exact techniques only: '{path}' was not found; `hotlap tune {script}` writes it if "
            "it finds a faster plan"
        )
    else:
        return None
    return PlanChoice(EXACT_PLAN, choice_line(EXACT_PLAN, words))


def choice_line(plan: Plan, words: str) -> str:
    """Return the line that says which plan was chosen, and why."""
    return f"plan {plan.hash}: {plan} ({words})"
