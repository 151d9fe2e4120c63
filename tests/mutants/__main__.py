"""python -m tests.mutants [--only NAME] [--json]: break each guard in turn, and see a test fail.

Each mutant is applied to a copy of the repository in a temporary folder, never to the working tree,
and the tests that are named for it are run there. Before that the same tests are run on a copy that
nothing was done to: there they must pass. Ends with 1 if a mutant survives.
"""

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant, load

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "results")
_PYTEST = ("-m", "pytest", "-q", "-x", "-rfE", "--tb=line", "-p", "no:randomly")
_PASSED, _FAILED = 0, 1
_FIRST_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """What pytest said."""

    state: str
    """`passed`, `failed`, `timed_out`, or `not_run` if it came to no test."""
    words: str
    """The test that failed; for `timed_out` and `not_run`, why."""
    seconds: float


@dataclass(frozen=True)
class Result:
    """What became of one mutant: `killed` by a test, or `survived`, `timed_out`, `not_run`."""

    name: str
    file: str
    state: str
    seconds: float
    words: str


class Copy:
    """A copy of the repository, to break."""

    def __init__(self, folder: Path) -> None:
        self.root, self._temporary = folder / "copy", folder / "tmp"
        shutil.copytree(ROOT, self.root, ignore=_LEFT_OUT, symlinks=True)
        self._temporary.mkdir()

    @contextlib.contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant, and take it back in the end."""
        path = mutant.path(self.root)
        source = path.read_text()
        path.write_text(mutant.applied(source))
        try:
            yield
        finally:
            path.write_text(source)

    def check(self) -> None:
        """Refuse to go on where tests would import something else than this copy."""
        words = ("-c", "import hotlap; print(hotlap.__file__)")
        told = subprocess.run(
            [sys.executable, *words], cwd=self.root, env=self._environment(), capture_output=True
        )
        found = Path(os.fsdecode(told.stdout.strip()) or "(nothing)")
        if not found.is_relative_to(self.root):
            raise SystemExit(f"tests in {self.root} import hotlap from {found}: nothing was tried")

    def run(self, tests: Sequence[str], limit_s: float) -> Ran:
        """Run tests in this copy, in a session of their own that a time limit ends."""
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, *tests],
            cwd=self.root,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Ran("timed_out", f"not done after {limit_s:.0f} s", time.monotonic() - begin)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.monotonic() - begin
        if process.returncode == _PASSED:
            return Ran("passed", "", seconds)
        failed = _FIRST_FAILED.search(output)
        if process.returncode == _FAILED and failed is not None:
            return Ran("failed", failed[1], seconds)
        return Ran("not_run", " ".join(output.split()[-40:]), seconds)

    def _environment(self) -> dict[str, str]:
        given = {key: value for key, value in os.environ.items() if not key.startswith("HOTLAP_")}
        data = os.environ.get("HOTLAP_DATA")
        return {
            **given,
            **({"HOTLAP_DATA": data} if data else {}),
            "PYTHONPATH": str(self.root / "src"),
            # Two texts of one length, written in the same second, would share one compiled file.
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self._temporary),
            "OMP_NUM_THREADS": "1",
        }


def run_all(
    mutants: Sequence[Mutant],
    *,
    jobs: int,
    limit_s: float,
    progress: Callable[[str], None],
) -> list[Result]:
    """Run the tests unbroken, then every mutant's, and return what became of each, in order.

    Raises:
        SystemExit: a test fails without any mutant.
    """
    with tempfile.TemporaryDirectory(prefix="hotlap-mutants-") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(jobs):
            copies.put(Copy(Path(folder).resolve() / str(number)))
        with ThreadPoolExecutor(jobs) as pool:
            _check_unbroken(mutants, copies, pool, jobs, limit_s)
            progress("the tests pass without a mutant")
            running = [pool.submit(_try, mutant, copies, limit_s) for mutant in mutants]
            try:
                for done in as_completed(running):
                    result = done.result()
                    progress(
                        f"{result.state:9} {result.seconds:6.1f} s  {result.name}: {result.words}"
                    )
            finally:
                # After Ctrl-C only what runs is waited for.
                pool.shutdown(wait=False, cancel_futures=True)
            return [done.result() for done in running]


def _try(mutant: Mutant, copies: "queue.Queue[Copy]", limit_s: float) -> Result:
    copy = copies.get()
    try:
        with copy.broken(mutant):
            ran = copy.run(mutant.tests, limit_s)
    finally:
        copies.put(copy)
    state = {"failed": "killed", "passed": "survived"}.get(ran.state, ran.state)
    words = mutant.breaks if state == "survived" else ran.words
    return Result(mutant.name, mutant.file, state, round(ran.seconds, 1), words)


def _check_unbroken(
    mutants: Sequence[Mutant],
    copies: "queue.Queue[Copy]",
    pool: ThreadPoolExecutor,
    jobs: int,
    limit_s: float,
) -> None:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    # A file that is named whole is not to be run once more for a test in it.
    tests = [test for test in tests if "::" not in test or test.partition("::")[0] not in tests]

    def run(part: list[str]) -> Ran:
        copy = copies.get()
        try:
            copy.check()
            return copy.run(part, limit_s * len(part))
        finally:
            copies.put(copy)

    parts = [tests[k::jobs] for k in range(jobs) if tests[k::jobs]]
    for ran in pool.map(run, parts):
        if ran.state != "passed":
            raise SystemExit(f"without any mutant the tests do not pass: {ran.words}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", help="only mutants whose name or file holds this word"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at a time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that each may take")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    known = load()
    mutants = [each for each in known if args.only is None or args.only in each.name + each.file]
    if not mutants:
        parser.error(
            f"--only {args.only}: no mutant is called so. Known: {[m.name for m in known]}"
        )
    results = run_all(
        mutants,
        jobs=args.jobs,
        limit_s=args.limit,
        progress=lambda line: print(line, file=sys.stderr if args.json else sys.stdout, flush=True),
    )
    alive = [result for result in results if result.state != "killed"]
    if args.json:
        rows = [asdict(result) for result in results]
        json.dump({"schema": 1, "killed": len(results) - len(alive), "rows": rows}, sys.stdout)
        print()
    else:
        print(f"{len(results) - len(alive)} of {len(results)} killed")
        for result in alive:
            print(f"{result.state}: {result.name} ({result.file}): {result.words}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
