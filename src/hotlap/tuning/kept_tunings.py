"""What tunings measured, in the user's cache: to be continued, or given once more.

One JSON file for each tuning that is asked for. It is valid as long as the script and what it
imports are, byte for byte, what was measured; nothing is known of other files that a script reads.
"""

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hotlap.host.facts import Host
from hotlap.host.kept_files import cache_folder, write_cached
from hotlap.host.probes import torch_version_of
from hotlap.lab.decisions import Decision
from hotlap.lab.statistics import Ratio, is_gain
from hotlap.lab.subject import Subject
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.tuning.result import Tuning
from hotlap.tuning.stored import data_of, plan_of, tuning_of, verdict_of

log = logging.getLogger("hotlap")
_SCHEMA = 2
_MOST_KEPT = 100
_MOST_READ = 64 * 2**20
"""Bytes of an argument's file that is read; a larger one is told by its size and its time."""
_OF_THE_TERMINAL = (
    "_",
    "ALACRITTY_",
    "COLUMNS",
    "COLORTERM",
    "DBUS_",
    "DISPLAY",
    "GNOME_",
    "GPG_",
    "INVOCATION_ID",
    "ITERM_",
    "JOURNAL_STREAM",
    "KITTY_",
    "KONSOLE_",
    "LINES",
    "LS_COLORS",
    "OLDPWD",
    "PWD",
    "PYTEST_",
    "SESSION_MANAGER",
    "SHLVL",
    "SLURM_JOB",
    "SLURM_STEP",
    "SLURM_TASK_PID",
    "SSH_",
    "STARSHIP_",
    "STY",
    "TERM",
    "TMUX",
    # Set by torch itself, once it has loaded its compiler.
    "TORCHINDUCTOR_CACHE_DIR",
    "VSCODE_",
    "VTE_",
    "WEZTERM_",
    "WINDOWID",
    "WT_",
    "XDG_",
)
"""What variables start with that say nothing of a training."""
_MORE_BUDGET = 1.5
"""How many times the budget of the live races must be had to hold them once more."""
_FINAL = ("gain", "nothing_to_gain")
"""Outcomes that are given once more; another one is worth another try."""
_PROVEN = ("exact", "rounding", "statistical", "changed")


@dataclass
class KeptTuning:
    """What was measured of one tuning so far; empty, and kept nowhere, without a path."""

    path: Path | None = None
    files: dict[str, str] = field(default_factory=dict)
    """The script's own files, and the SHA-256 of what was measured."""
    decisions: dict[Plan, Decision] = field(default_factory=dict)
    """What each plan of one technique gave alone, where that is decided; of `Decision.on` nothing
    is kept."""
    finalists: dict[Plan, Ratio] = field(default_factory=dict)
    """What gained in one live process, the fastest first."""
    rest: list[Plan] = field(default_factory=list)
    """What could not be tried in a live process."""
    live_floor: float = 0.0
    """How far the plain script was from itself there."""
    raced_s: float = 0.0
    """The budget of the tuning whose live races these were."""
    verdicts: dict[Plan, Verdict] = field(default_factory=dict)
    result: Tuning | None = None
    budget_s: float = 0.0
    """That the result had."""
    at: float = 0.0
    """When something was kept last, in seconds since 1970."""

    @property
    def is_begun(self) -> bool:
        """True if there is something to continue."""
        return bool(self.decisions or self.finalists or self.verdicts)

    @property
    def when(self) -> str:
        """When something was kept last, in words."""
        return time.strftime("%Y-%m-%d at %H:%M", time.localtime(self.at))

    def result_for(self, budget_s: float) -> Tuning | None:
        """Return the result of a tuning that had this budget at least, None if none is final."""
        if self.result is None or self.result.outcome not in _FINAL or self.budget_s < budget_s:
            return None
        return self.result

    def keep_files(self, files: Iterable[str]) -> None:
        """Note what was loaded for what is measured; forget what was measured of other files."""
        found = {path: digest for path in files if (digest := digest_of(path)) is not None}
        if any(found[path] != digest for path, digest in self.files.items() if path in found):
            self.decisions, self.finalists, self.verdicts, self.result = {}, {}, {}, None
        self.files = found

    def keep_live(
        self,
        alone: Mapping[Plan, Decision],
        finalists: Mapping[Plan, Ratio],
        rest: Sequence[Plan],
        floor: float,
        budget_s: float,
    ) -> None:
        """Keep what races in a live process said, which had a part of that budget.

        A gain that does not exceed how far the plain script was from itself is not kept: beside
        what disturbed these races nothing could be told, and the next tuning races it again.
        """
        self.finalists = {plan: each for plan, each in finalists.items() if is_gain(each, floor)}
        self.rest = list(rest)
        self.live_floor, self.raced_s = floor, budget_s
        self.keep_alone(alone, floor)

    def keep_alone(self, alone: Mapping[Plan, Decision], floor: float) -> None:
        """Keep what plans of one technique gave alone in a live process, see `keep_live`."""
        self.keep_decisions(
            {
                plan: each
                for plan, each in alone.items()
                if each.state != "faster" or each.ratio is None or is_gain(each.ratio, floor)
            }
        )

    def had_as_much(self, budget_s: float) -> bool:
        """True if the live races had about as much time as they would have now."""
        return budget_s < _MORE_BUDGET * self.raced_s

    def keep_decisions(self, alone: Mapping[Plan, Decision]) -> None:
        """Keep what plans of one technique gave alone, where that is decided."""
        states = ("faster", "not_faster")
        self.decisions |= {plan: each for plan, each in alone.items() if each.state in states}
        self._write()

    def keep_verdict(self, plan: Plan, verdict: Verdict) -> None:
        """Keep a verdict that rests on checks that were made."""
        if verdict.tier in _PROVEN:
            self.verdicts[plan] = verdict
            self._write()

    def keep_result(self, result: Tuning, budget_s: float) -> None:
        """Keep what the tuning came to."""
        self.result, self.budget_s = result, budget_s
        self._write()

    def _write(self) -> None:
        if self.path is None or not self.files:
            return
        self.at = time.time()
        try:
            write_cached(self.path, json.dumps(self._to_data()))
            newest = sorted(self.path.parent.glob("*.json"), key=os.path.getmtime, reverse=True)
            for old in newest[_MOST_KEPT:]:
                old.unlink(missing_ok=True)
        except (OSError, TypeError, ValueError) as error:
            # What was measured is reported all the same.
            log.info("the tuning is not kept: %s", error)

    def _to_data(self) -> dict[str, Any]:
        return {
            "schema": _SCHEMA,
            "files": self.files,
            "decisions": [[p.to_json(), asdict(each)] for p, each in self.decisions.items()],
            "finalists": [[p.to_json(), asdict(ratio)] for p, ratio in self.finalists.items()],
            "rest": [plan.to_json() for plan in self.rest],
            "live_floor": self.live_floor,
            "raced_s": self.raced_s,
            "verdicts": [[p.to_json(), asdict(verdict)] for p, verdict in self.verdicts.items()],
            "result": None if self.result is None else data_of(self.result),
            "budget_s": self.budget_s,
            "at": self.at,
        }


def kept_tuning(
    subject: Subject, host: Host, request: Mapping[str, Any], *, again: bool = False
) -> KeptTuning:
    """Return what is kept of a tuning; empty if nothing is, or if a file of the script changed.

    Args:
        subject: what is tuned.
        host: where.
        request: what else was asked for, the budget apart: numbers, words, and tuples of these.
        again: forget what is kept.
    """
    path = cache_folder() / "tunings" / f"{key_of(subject, host, request)}.json"
    if again:
        return KeptTuning(path)
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # It is not there, or another version has written it: it is measured once more.
        return KeptTuning(path)


def _read(path: Path) -> KeptTuning:
    data = json.loads(path.read_text())
    is_as_it_was = all(digest_of(each) == digest for each, digest in data["files"].items())
    if data["schema"] != _SCHEMA or not is_as_it_was:
        return KeptTuning(path)
    result = data["result"]
    return KeptTuning(
        path,
        files=data["files"],
        decisions={plan_of(plan): _decision(each) for plan, each in data["decisions"]},
        finalists={plan_of(plan): Ratio(**ratio) for plan, ratio in data["finalists"]},
        rest=[plan_of(plan) for plan in data["rest"]],
        live_floor=data["live_floor"],
        raced_s=data["raced_s"],
        verdicts={plan_of(plan): verdict_of(verdict) for plan, verdict in data["verdicts"]},
        result=None if result is None else tuning_of(result),
        budget_s=data["budget_s"],
        at=data["at"],
    )


def _decision(data: Mapping[str, Any]) -> Decision:
    ratio = None if data["ratio"] is None else Ratio(**data["ratio"])
    return Decision(**{**data, "on": (), "ratio": ratio})


def key_of(subject: Subject, host: Host, request: Mapping[str, Any]) -> str:
    """Return what names a tuning: what is started, where, with which torch and which hotlap.

    Other libraries are not looked at.
    """
    gpus = [gpu.name for gpu in host.gpus]
    versions = host.torch, torch_version_of(subject.python)
    variables = sorted(os.environ.items())
    surroundings = {k: v for k, v in variables if not k.startswith(_OF_THE_TERMINAL)}
    named = {
        "subject": [subject.command(), str(subject.folder), repr(subject)],
        "given": [_given(subject.folder / each) for each in subject.command()[1:]],
        "host": [host.cpu, host.cores, gpus, versions, surroundings],
        "hotlap": _own_files(),
        "request": dict(request),
    }
    text = json.dumps(named, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _own_files() -> str:
    """Return what changes with hotlap's own files: a version says nothing of a checkout."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def digest_of(path: str) -> str | None:
    """Return the SHA-256 of a file, None if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def _given(path: Path) -> str | None:
    """Return what changes with a file that an argument names, None if it names none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    # A pipe can be read once only, and the script is to read it.
    if not stat.S_ISREG(found.st_mode):
        return None
    if found.st_size > _MOST_READ:
        return f"{found.st_size} {found.st_mtime_ns}"
    return digest_of(str(path))
