"""`Lab` and `Trial`: a script in a fresh process: messages, memory limit, pause, how it ended."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hotlap.errors import TrialError, UsageError
from hotlap.failures import recognize_output, recognize_signal
from hotlap.host.control_groups import out_of_memory_kills
from hotlap.host.memory import available_bytes, memory
from hotlap.lab import family, listening
from hotlap.lab.heard_ranks import Ranks
from hotlap.lab.last_words import attach_error, exit_in_words, last_words, signal_of
from hotlap.lab.scratch import Protection, Scratch, probe
from hotlap.lab.stacks import ask_where
from hotlap.lab.subject import Subject
from hotlap.lab.trial_output import TrialOutput
from hotlap.plan import Plan
from hotlap.trial import exchange
from hotlap.trial.environment import TRACKERS_FOLDERS, plan_data
from hotlap.trial.hub import Hub
from hotlap.trial.protocol import EXIT_CUT, Config, Role

_WATCH_S = 0.5
_MEMORY_SHARE = 0.8
_LAST_S = 30.0
"""Seconds that a script may take to end, after its end of the socket was closed."""
_CUT = (
    "closed hotlap's socket: it closes file descriptors that it did not open (`os.closerange`, as "
    "daemons do). Remove that call, or close only the script's own descriptors"
)
_UNTIMED_ROLES = ("verify", "seeds", "reference", "own_place")
_EXIT_S = 10.0

Returned = TypeVar("Returned")


@dataclass
class Lab:
    """Where trials of a script or recipe are held: the files they see, their limits.

    A context manager; leaving it ends every trial that still lives.
    """

    subject: Subject
    hide: tuple[str, ...] = ()
    """Patterns of files that trials must not see, such as the script's own checkpoint."""
    techniques: tuple[str, ...] = ()
    """Techniques from outside, as `module:NAME`."""
    inject_seed: int | None = None
    shift_seeds: int = 0
    memory_bytes: int | None = None
    """A trial whose processes together hold more resident memory is ended; None for most of what
    is available."""
    protection: Protection | None = None
    """How the files are protected; found out if None."""

    def __enter__(self) -> "Lab":
        # Before anything is made: where no trial can be started, this raises.
        protection = self.protection or probe(self.subject.folder)
        self._available = available_bytes()
        self._opened = contextlib.ExitStack()
        self.exchange = self._opened.enter_context(exchange.folder())
        self.scratch = Scratch(
            self.subject.folder,
            passthrough=(self.exchange,),
            hide=self.hide,
            protection=protection,
            in_temporary=TRACKERS_FOLDERS,
        ).__enter__()
        self.plain_start_s = 0.0
        """Seconds before the first step, as they were seen in the plain script."""
        self.listens: str | None = None
        """What the script was seen to listen on; trials then get a network of their own."""
        self.trials: list[Trial] = []
        self._starting = threading.Lock()
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="hotlap-watch", daemon=True)
        self._watcher.start()
        return self

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What a trial could still change, in words; empty if nothing."""
        return self.scratch.protection.unprotected

    def __exit__(self, *exc: object) -> None:
        # Another thread may be starting one.
        with self._starting:
            self._closed.set()
        self._watcher.join()
        for trial in self.trials:
            trial.kill()
        self.scratch.__exit__(None, None, None)
        self._opened.close()

    def start(
        self, role: Role, plan: Plan | None = None, *, fill_ahead: bool = False, **options: Any
    ) -> "Trial":
        """Start a trial.

        Args:
            role: what it does, see `hotlap.attach`.
            plan: what is applied to it, nothing if None.
            fill_ahead: let the feed reach its steady state at once.
            options: what the role needs.

        Raises:
            TrialError: the lab was left.
        """
        with self._starting:
            if self._closed.is_set():
                raise TrialError("every trial was ended", reason="ended_early")
            trial = Trial(self, role, plan or Plan({}), fill_ahead=fill_ahead, options=options)
            self.trials.append(trial)
        return trial

    @property
    def own_network(self) -> bool:
        """True if trials get a network of their own: two would want the same address."""
        return self.listens is not None and self.scratch.why_no_network() is None

    def retry_if_address_in_use(self, trial: Callable[[], Returned]) -> Returned:
        """Call `trial`, and once more, in a network of its own, if its address was in use.

        Another process, another trial of this script for one, may have the address it wants.
        """
        had_its_own = self.own_network
        try:
            return trial()
        except TrialError as error:
            if had_its_own or error.reason != "crashed" or not listening.is_in_use(error.output):
                raise
            self.listens = self.listens or "an address that another process uses"
            if not self.own_network:
                raise
            return trial()

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_S):
            for trial in list(self.trials):
                if trial.is_alive and self.listens is None:
                    self.listens = listening.find_listening_address(trial.pids())
                held = trial.held_bytes(self._memory_limit) if trial.is_alive else 0
                limit = self._memory_limit(held)
                if held > limit:
                    trial.end_with(
                        "memory",
                        f"was ended: its processes used more than {limit / 2**20:.0f} MiB of "
                        "memory. Reduce its batch size, or free memory",
                    )

    def _memory_limit(self, held: int) -> int:
        """Return the bytes that a trial may hold which holds so many."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        # Some virtual machines are given memory as they use it.
        return int(max(self._available, available_bytes() + held) * _MEMORY_SHARE)


class Trial:
    """A live process of the script with hotlap inside, playing one role."""

    def __init__(
        self, lab: Lab, role: Role, plan: Plan, *, fill_ahead: bool, options: Mapping[str, Any]
    ) -> None:
        self.lab = lab
        self.plan = plan
        self.role = role
        self.started = time.monotonic()
        self.torch: dict[str, Any] | None = None
        self.report: dict[str, Any] | None = None
        self._ended_why: tuple[str, str] | None = None
        """What `_error` takes."""
        self.place = ""
        """The user's line that it was at when it gave no answer in time; empty if unknown."""
        self._hub = Hub(lab.exchange, may_be_others=lab.subject.kind == "command")
        self._stack_file = Path(f"{self._hub.address}.stack")
        config = Config(
            role,
            address=self._hub.address,
            plan=plan_data(plan),
            techniques=lab.techniques,
            inject_seed=lab.inject_seed,
            shift_seeds=lab.shift_seeds,
            fill_ahead=fill_ahead,
            options={"started": self.started, **options},
            stack_file=str(self._stack_file),
        ).with_options_in(Path(f"{self._hub.address}.options"))
        self._told_pid: int | None = None
        env = lab.subject.environment(config, os.environ, seed=lab.inject_seed)
        if role != "observe":
            # Compiled once for all trials; what a run costs from its very start shows without.
            env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(lab.exchange / "compiled"))
        self._killed_before = out_of_memory_kills()
        self.own_network = lab.own_network
        if self.own_network:
            env |= listening.LOOPBACK_ONLY
        if role in _UNTIMED_ROLES:
            # Threads that wait by spinning keep other processes from the cores.
            env.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            self._process = lab.scratch.popen(
                lab.subject.command(),
                env=env,
                own_network=self.own_network,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except BaseException:
            self._hub.close()
            raise
        assert self._process.stdout is not None
        self._printed = TrialOutput(self._process.stdout)
        self._attached = self._was_idle = False
        self.ranks = Ranks()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """The last lines that the script printed, standard error included."""
        return self._printed.tail

    @property
    def output_bytes(self) -> int:
        """How much it has printed in all."""
        return self._printed.bytes

    def message(self, kinds: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Return the next message of one of `kinds`.

        Raises:
            TrialError: the script ended, crashed, or took longer than `timeout_s`.
            AttachError: it ended, and hotlap had never been inside it.
            UsageError: a recipe, or what it was given, is wrong.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                heard = self._hub.receive(deadline - time.monotonic(), lambda: self.is_alive)
            except TimeoutError:
                self.place = ask_where(self.pids(), self._told_pid, self._stack_file)
                self.kill()
                at = f", at {self.place}" if self.place else ""
                words = (
                    f"did not respond within {timeout_s:.0f} s{at}: it hangs, still reads its "
                    "data, or takes no optimizer step any more. Run it outside of this command to "
                    "check; if it needs more time, set a larger --budget"
                )
                words += self.ranks.whom_they_wait_for()
                raise self._error(words, "timeout") from None
            if heard is None:
                raise self.exit_error()
            _, message = heard
            kind = message["kind"]
            self.ranks.hear(message)
            if kind == "attached":
                self._attached = True
                if message.get("rank") in (None, 0):
                    self._told_pid = message.get("pid")
            elif kind == "torch":
                self.torch = message
            elif kind == "report":
                self.report = message
            elif kind == "idle":
                self._was_idle = True
            elif kind == "refused":
                self.kill()
                raise UsageError(message["error"])
            elif kind == "failed":
                self.kill()
                raise TrialError(
                    f"hotlap failed inside the script: {message['error']}",
                    reason="crashed",
                    output=message["traceback"],
                )
            if kind in kinds:
                return message

    def send(self, kind: str, **values: Any) -> None:
        """Tell something to every process of the trial."""
        self._hub.send(kind, **values)

    def pause(self) -> None:
        """Stop every process of the trial, whatever session it is in; return when all stand still.

        Raises:
            TrialError: something goes on starting or continuing them.
        """
        family.stop(self._process.pid, keeper_too=self.lab.scratch.is_view)

    def resume(self) -> None:
        """Continue every process of the trial."""
        family.resume(self._process.pid, keeper_too=self.lab.scratch.is_view)

    def kill(self) -> None:
        """End every process of the trial. Does nothing if it has ended."""
        if self.is_alive:
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._printed.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._hub.close()

    def end_with(self, reason: str, why: str) -> None:
        """End the trial for a reason that `message` will then give."""
        self._ended_why = (why, reason)
        self._signal(signal.SIGKILL)

    def pids(self) -> list[int]:
        """Return the process IDs of the trial, its launcher's first; none if it has ended."""
        return family.pids(self._process.pid)

    def held_bytes(self, limit_of: Callable[[int], int]) -> int:
        """Return the memory that all its processes hold, see `family.held_bytes`."""
        return family.held_bytes(self.pids(), limit_of)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def exit_error(self) -> Exception:
        """Wait for the trial's end and return what to raise for it."""
        try:
            code = self._process.wait(_LAST_S)
        except subprocess.TimeoutExpired:
            # Its end of the socket is closed, and the script goes on.
            self.kill()
            code = EXIT_CUT
        self._printed.wait()
        if self._ended_why is not None:
            return self._error(*self._ended_why)
        if code == 128 + signal.SIGKILL and out_of_memory_kills() > self._killed_before:
            words = (
                f"was killed: the memory of its control group ({memory()[0] / 2**20:.0f} MiB) was "
                "used up. Reduce the script's batch size, or raise that memory limit"
            )
            return self._error(words, "memory")
        if code == EXIT_CUT:
            return self._error(_CUT, "crashed")
        after = f" after {self.report['steps']} steps" if self.report is not None else ""
        if code != 0:
            words = f"{exit_in_words(code)}{after}. Run it outside of this command to see why"
            if "EOFError" in self.output:
                words += "; here its standard input is empty"
            return self._error(words, "crashed", signal_of(code))
        if not self._attached:
            return attach_error(self.lab.subject)
        if self.torch is None:
            words = "ended without importing torch. Expected: a script that trains with torch"
            return self._error(words, "no_training")
        if self._was_idle if self.report is None else self.report["steps"] == 0:
            words = "ended without an optimizer step. Expected: a call of `optimizer.step()`"
            return self._error(words, "no_training")
        how = "ended" if self.report is not None or self._was_idle else "was ended by `os._exit`"
        words = (
            f"{how}{after}, before the measurement was complete. Let it take more steps or epochs"
        )
        return self._error(words, "ended_early")

    def check_exit(self) -> None:
        """Wait for the exit of a script that came to its own end, which is reported before it.

        Raises:
            TrialError: it died, by an exception for one: what it reported is no whole run.
        """
        if self.report is None or self.report["ended"] != "script":
            return
        # Python tears down after the report; a process that hangs there has trained nonetheless.
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(_EXIT_S) != 0:
                raise self.exit_error()

    def _error(self, why: str, reason: str, number: int | None = None) -> TrialError:
        tail = self.output.strip()
        lines = "\n".join(last_words(tail.splitlines()))
        said = f"`{self.lab.subject}` {why}."
        if self.own_network:
            said += (
                " It ran in a separate network without outside connections, because it listens on "
                f"{self.lab.listens}."
            )
        known = recognize_output(lines) if reason == "crashed" else None
        if known is None and number is not None:
            known = recognize_signal(number)
        meaning = "" if known is None else known.line
        parts = (f"{said} Its last output:" if lines else said, lines, meaning)
        text = "\n".join(filter(None, parts))
        return TrialError(text, reason=reason, output=tail, why=said, shown=lines, meaning=meaning)
