"""`Study`: runs a search in its folder: starts jobs, notes outcomes, continues later. No torch.

FOLDER/journal.jsonl   what was decided and seen
FOLDER/trials/0007/    run folder of trial 7: checkpoints, measures, log
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.checkpoint.files import why_unwritable
from hotlap.checkpoint.lock import Lock
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.search.decide import next_job
from hotlap.search.job_order import TRIAL_FOLDER, asks_in_vain, is_saved, order_of
from hotlap.search.journal import Journal, read
from hotlap.search.local import Executor, end_orphan
from hotlap.search.origin import Origin
from hotlap.search.parameters import Space
from hotlap.search.propose import propose
from hotlap.search.spec import SearchSpec
from hotlap.search.state import Job, SearchState, replay

JOURNAL = "journal.jsonl"
TRIALS = "trials"


class Study:
    """A search whose folder is this process's.

    Args:
        folder: of the search; made if it is missing.
        spec: what is asked.
        space: the same, with the functions of derived parameters.
        origin: what it begins with; once it is opened, what it was begun with.
        plan_is_given: the plan was named, so that a search with another one is another search.
    """

    def __init__(
        self,
        folder: Path,
        spec: SearchSpec,
        space: Space,
        origin: Origin | None = None,
        *,
        plan_is_given: bool = True,
    ) -> None:
        self.folder, self.spec, self.space = folder, spec, space
        self.origin, self._plan_is_given = origin or Origin(), plan_is_given
        self.state = SearchState(spec)
        self.notes: list[str] = []
        """What the user should know of the search that the folder holds, in words."""
        self._journal = Journal(folder / JOURNAL)

    @contextmanager
    def opened(self) -> Iterator["Study"]:
        """Take the folder, and what its journal says; give it back at the end.

        Raises:
            UsageError: it cannot be written, holds another search, or another process has it.
        """
        lock = Lock(self.folder / TRIALS)
        try:
            (self.folder / TRIALS).mkdir(parents=True, exist_ok=True)
            lock.take()
            records = self._journal.open()
        except OSError as error:
            lock.release()
            raise UsageError(
                f"the search cannot be saved in '{self.folder}': "
                f"{why_unwritable(error, self.folder)}. Choose another folder with --run-dir."
            ) from error
        try:
            if records:
                records = self._taken_over(records)
            if not records:
                self._check_no_trials()
                origin = self.origin.to_json()
                self._write({"kind": "search", **self.spec.to_json(), "origin": origin})
            self.state = replay(self.spec, records)
            for lease in self.state.open.values():
                end_orphan(lease)
            yield self
        finally:
            self._journal.close()
            lock.release()

    def _taken_over(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Continue the search that the folder holds, and return its journal; empty if it had no
        result yet, and was deleted as it is another one.

        Raises:
            UsageError: it is another search, and has results.
        """
        asked, (begun, origin) = self.spec, begun_by(records, self.folder / JOURNAL)
        state = replay(begun, records)
        is_over = not state.open and next_job(state) is None
        plans = Plan(begun.plan), Plan(asked.plan)
        keeps_plan = not self._plan_is_given and plans[0] != plans[1]
        if keeps_plan:
            asked = replace(asked, plan=begun.plan)
        different = difference(asked, begun, origin, records[0])
        changed = origin.changed_file(asked.recipe)
        if different is None and changed is not None and not is_over:
            different = f"'{changed}', which the recipe imports, was changed"
        if different is not None:
            if self._holds_work(records, state):
                raise UsageError(_another_search(self.folder, different))
            self._delete(state)
            self.notes.append(
                f"the search in '{self.folder}' had no result yet, and was deleted: {different}"
            )
            return []
        if keeps_plan:
            self.notes.append(
                f"the search keeps the plan that it began with, {plans[0]}. To search with "
                f"{plans[1]}, add --again or choose another --run-dir"
            )
        if is_over:
            self.notes.append(_printed_again(origin, changed))
        versions = origin.other_versions(self.origin)
        if versions:
            self.notes.append(f"the search was begun with other versions: {versions}")
        # Jobs that are left find the recipe where it is now.
        self.spec, self.origin = replace(begun, recipe=asked.recipe), origin
        return records

    def _holds_work(self, records: list[dict[str, Any]], state: SearchState) -> bool:
        """True if a trial has ended, was saved and can be continued, or may still run on Ray."""
        if any(record["kind"] == "result" for record in records):
            return True
        if any(lease and "pid" not in lease for lease in state.open.values()):
            return True
        trials = list(self._trial_folders())
        return not any(map(asks_in_vain, trials)) and any(map(is_saved, trials))

    def _trial_folders(self) -> Iterator[Path]:
        for path in (self.folder / TRIALS).iterdir():
            if TRIAL_FOLDER.fullmatch(path.name):
                yield path

    def _delete(self, state: SearchState) -> None:
        """Delete what the folder holds of another search."""
        for lease in state.open.values():
            end_orphan(lease)
        try:
            # The journal last: trials without one are refused.
            for path in list(self._trial_folders()):
                shutil.rmtree(path)
            self._journal.clear()
        except OSError as error:
            raise UsageError(
                f"the search in '{self.folder}' is another one than asked for and has no result "
                f"yet, so it was to be deleted, but that failed: {error}. Choose another folder "
                "with --run-dir."
            ) from error

    def _check_no_trials(self) -> None:
        """Refuse a folder with trials of a search whose journal is missing.

        They would be resumed as those of this search, whatever recipe they were trained with.
        """
        names = [path.name for path in (self.folder / TRIALS).iterdir()]
        left = sorted(name for name in names if TRIAL_FOLDER.fullmatch(name))
        if left:
            raise UsageError(
                f"'{self.folder}' holds trials of a search ('{TRIALS}/{left[0]}'), but not its "
                f"journal '{JOURNAL}', so it cannot be continued. Add --again to delete these "
                "trials and begin a new search, or choose another folder with --run-dir."
            )

    def run(
        self,
        executor: Executor,
        told: Callable[[SearchState, Job], None] = lambda _state, _job: None,
    ) -> SearchState:
        """Do everything that is left, and return the final state.

        Args:
            executor: where jobs are done; it is closed at the end, however that comes.
            told: called with each job that was started or has ended.

        Raises:
            UsageError: the objective is not measured.
            StorageError: the journal cannot be written.
        """
        # What was decided before this process began is not decided again.
        left = list(self.state.open)
        try:
            while True:
                while executor.free:
                    job = left.pop(0) if left else self._decide()
                    if job is None:
                        break
                    self._start(executor, job)
                    told(self.state, job)
                outcomes = executor.wait()
                if not outcomes:
                    return self.state
                for outcome in outcomes:
                    self._write({"kind": "result", **outcome.to_json()})
                    told(self.state, outcome.job)
        finally:
            executor.close()

    def _decide(self) -> Job | None:
        """Write the next decision, and return it; None if there is none now."""
        record = decision(self.state, self.space)
        if record is None:
            return None
        self._write(record)
        return Job(record["trial"], record["rung"], record["repeat"])

    def _start(self, executor: Executor, job: Job) -> None:
        order = order_of(self.spec, job, self.state.trials[job.trial], self.folder)
        lease = executor.start(job, order)
        self._write({"kind": "lease", **job._asdict(), **lease})

    def _write(self, record: dict[str, Any]) -> None:
        self._journal.append(record)
        self.state.apply(record)


def decision(state: SearchState, space: Space) -> dict[str, Any] | None:
    """Return the next decision as a line of the journal; None if nothing can be started now."""
    job = next_job(state)
    if job is None:
        return None
    record: dict[str, Any] = {"kind": "job", **job._asdict()}
    if job.trial == len(state.trials):
        record["values"] = propose(space, state)
    return record


def begun_by(records: list[dict[str, Any]], path: Path) -> tuple[SearchSpec, Origin]:
    """Return the settings of a journal's search, and what it was begun with.

    Raises:
        UsageError: the journal does not begin with them.
    """
    first = records[0]
    if first["kind"] != "search":
        raise UsageError(
            f"'{path}' does not begin with the settings of a search, so the search cannot be "
            "continued. Choose another folder with --run-dir, or pass --again to `hotlap search` "
            "to delete this search and begin a new one."
        )
    origin = Origin.from_json(first.get("origin", {}), path.stat().st_mtime)
    return SearchSpec.from_json(first), origin


def difference(
    spec: SearchSpec, begun: SearchSpec, origin: Origin, first: Mapping[str, Any]
) -> str | None:
    """Return in words what is asked otherwise than in a search that was begun, None if nothing.

    Args:
        spec: what is asked.
        begun: what was asked.
        origin: what that was begun with.
        first: its line in the journal.
    """
    # Trials keep the threads that they began with, and what an earlier version did without asking.
    free = ["threads"] + ([] if "is_own_length" in first else ["is_own_length"])
    if Path(spec.recipe).resolve() in (Path(begun.recipe).resolve(), Path(origin.recipe)):
        free.append("recipe")
    return replace(spec, **{name: getattr(begun, name) for name in free}).difference(begun)


def _another_search(folder: Path, different: str) -> str:
    return (
        f"'{folder}' holds a search with other settings: {different}. A search cannot be changed "
        "or extended: to continue it, run the command that started it, with the recipe and what it "
        "imports as they were. For a new search, choose another --run-dir, or add --again to "
        "delete the old one."
    )


def _printed_again(origin: Origin, changed: str | None) -> str:
    """Return what to say of a search that has ended before."""
    since = "nothing was trained now"
    if changed is not None:
        since = f"'{changed}', which the recipe imports, was changed since"
    return f"the result is of a search of {origin.made['time']}, {since}; to search again: --again"


def read_study(folder: Path) -> SearchState:
    """Return what the journal of a search says, whether it runs or has ended.

    Raises:
        UsageError: there is none.
    """
    path = folder / JOURNAL
    if not path.is_file():
        raise UsageError(
            f"'{folder}' holds no search: {JOURNAL} was not found in it. Expected: the --run-dir "
            "of a `hotlap search`. Check the path."
        )
    records, _ = read(path)
    if not records or records[0]["kind"] != "search":
        raise UsageError(
            f"'{path}' does not begin with the record of a search: it is empty, damaged, or not "
            "hotlap's. Expected: the journal that `hotlap search` wrote into its --run-dir. Pass "
            "the run folder of another search, or add --again to the `hotlap search` command that "
            "wrote this one, to begin again."
        )
    return replay(SearchSpec.from_json(records[0]), records)
