"""`Study`: runs a search in its folder: starts jobs, notes outcomes, continues later. No torch.

FOLDER/journal.jsonl   what was decided and seen
FOLDER/trials/0007/    run folder of trial 7: checkpoints, measures, log
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.checkpoint.files import why_unwritable
from hotlap.checkpoint.lock import Lock
from hotlap.errors import UsageError
from hotlap.search.decide import next_job
from hotlap.search.job_order import TRIAL_FOLDER, order_of
from hotlap.search.journal import Journal, read
from hotlap.search.local import Executor, end_orphan
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
    """

    def __init__(self, folder: Path, spec: SearchSpec, space: Space) -> None:
        self.folder, self.spec, self.space = folder, spec, space
        self.state = SearchState(spec)
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
                self.spec = continued(records, self.spec, self.folder)
            else:
                self._check_no_trials()
                self._write({"kind": "search", **self.spec.to_json()})
            self.state = replay(self.spec, records)
            for lease in self.state.open.values():
                end_orphan(lease)
            yield self
        finally:
            self._journal.close()
            lock.release()

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


def continued(records: list[dict[str, Any]], spec: SearchSpec, folder: Path) -> SearchSpec:
    """Return the search of a journal, which goes on with the threads that it began with.

    Raises:
        UsageError: it is another search.
    """
    first = records[0]
    if first["kind"] != "search":
        raise UsageError(
            f"'{folder / JOURNAL}' does not begin with the settings of a search, so the search "
            "cannot be continued. Choose another folder with --run-dir, or use --again to delete "
            "this search and begin again."
        )
    begun = SearchSpec.from_json(first)
    different = replace(spec, threads=begun.threads).difference(begun)
    if different is not None:
        raise UsageError(
            f"'{folder}' holds a search with other settings: {different}. A search cannot be "
            "changed or extended: to continue it, run the command that started it, with the recipe "
            "as it was. For a new search, choose another --run-dir, or add --again to delete the "
            "old one."
        )
    return begun


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
            "the --run-dir of another search, or a new folder to begin one."
        )
    return replay(SearchSpec.from_json(records[0]), records)
