"""JSON documents of `diagnose`, `tune`, `verify` in a run's folder: kept, read, their figures."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.host.whole_file import write_whole
from hotlap.plan import Plan
from hotlap.track.metrics_file import METRICS
from hotlap.track.recording import check_folder, describe
from hotlap.track.run_file import MEASURED, RUN, RunInfo, now

KINDS = ("diagnosis", "memory", "tuning", "verdict")
"""Of documents that a run's folder keeps, one of each: `tuning.json` and so on."""
_SUBJECTS = ("recipe", "script", "module", "command")


def subject_of(task: Mapping[str, Any]) -> str | None:
    """Return what is trained by what `run.json` says of the task; None if it does not say it."""
    return next((task[name] for name in _SUBJECTS if isinstance(task.get(name), str)), None)


def check_findings(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse a folder that cannot keep what is found out about a task; nothing is left behind.

    Args:
        folder: the run's; it need not exist.
        about: what is measured, as `run.json` says it of a task.

    Raises:
        UsageError: it cannot be written into, or holds the run of something else.
    """
    check_folder(folder)
    info = RunInfo.read(folder)
    theirs, mine = None if info is None else subject_of(info.task), subject_of(about)
    if theirs is not None and theirs != mine:
        raise UsageError(
            f"'{folder}' holds a run of '{theirs}', but this command was given '{mine}', and such "
            "a folder keeps results of one script or recipe. Choose another folder with --run-dir."
        )


def check_no_script(folder: Path) -> None:
    """Refuse a folder that holds the run of a script, which `hotlap run` has recorded.

    Raises:
        UsageError: the records of a training would be mixed with it.
    """
    info = RunInfo.read(folder)
    subject = None if info is None else subject_of(info.task)
    # Of a training, whatever the caller says of it, the model is known.
    if info is None or subject is None or info.state == MEASURED or "model" in info.task:
        return
    raise UsageError(
        f"'{folder}' already holds a run of '{subject}' by `hotlap run`, and the records of two "
        "runs would be mixed. Pass a new folder with --run-dir."
    )


def keep_finding(folder: Path, kind: str, document: str, about: Mapping[str, Any]) -> Path:
    """Keep a document in a run's folder, in place of an earlier one of its kind.

    A folder without a run gets a `run.json` that says what was measured: it is listed, and a
    training may begin in it.

    Args:
        folder: the run's; made if it is missing.
        kind: one of `KINDS`.
        document: as the command prints it with `--json`.
        about: see `check_findings`.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.json"
    write_whole(path, f"{document}\n")
    if not (folder / RUN).exists():
        info = describe(about, Plan(), None, None)
        replace(info, state=MEASURED, ended=now(), process={}).write(folder)
    return path


def read_findings(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the documents that a run's folder keeps, by kind; what is none of ours is left out."""
    found = {}
    for kind in KINDS:
        try:
            document = json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(document, Mapping) and document.get("kind") == kind:
            found[kind] = document
    return found


def is_trained(folder: Path) -> bool:
    """True if a folder holds a run that has begun, and not only what was found out about one."""
    info = RunInfo.read(folder)
    is_begun = (folder / RUN).exists() and (info is None or info.state != MEASURED)
    return is_begun or (folder / METRICS).exists() or (folder / "ckpt").exists()


def figures_of(kind: str, document: Mapping[str, Any]) -> dict[str, float | str | None]:
    """Return the few figures that a list shows of a document, by name."""
    if kind == "diagnosis":
        first = next(iter(_list(document, "findings")), {})
        where = f"{first['rule']} at {first.get('where')}" if first.get("rule") else None
        return {
            "step_ms": _part(document, "step_ms").get("mean"),
            "largest_cause": where,
            "largest_cause_ms": first.get("cost_ms"),
        }
    if kind == "memory":
        return {"peak_bytes": _part(document, "memory").get("peak_bytes")}
    verdict = _part(document, "verdict")
    if kind == "verdict":
        plan = _part(document, "b").get("plan_hash")
        return {"tier": verdict.get("tier"), "plan": plan}
    is_gain = document.get("outcome") == "gain"
    return {
        "outcome": document.get("outcome"),
        "speedup": _part(document, "speedup").get("median") if is_gain else None,
        "tier": verdict.get("tier") if is_gain else None,
    }


def side_by_side(
    first: Mapping[str, Mapping[str, Any]], second: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, Any, Any]]:
    """Give (kind, name, first value, second value) of what the folders of two runs keep.

    Args:
        first: document by kind, as `read_findings` returns them; without those that are missing.
        second: the other run's.
    """
    for kind in KINDS:
        mine, theirs = (
            figures_of(kind, found[kind]) if kind in found else {} for found in (first, second)
        )
        for name in dict.fromkeys([*mine, *theirs]):
            yield kind, name, mine.get(name), theirs.get(name)


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = document.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
