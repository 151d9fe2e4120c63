"""Runs an unedited script under a plan, as itself: its output, its signals, its exit code."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from hotlap.attach.entry import Script, environment, is_off
from hotlap.attach.heard_child import Child
from hotlap.attach.heard_child import problem as children_problem
from hotlap.attach.launchers import ACCELERATE, launched, ranks_wanted
from hotlap.attach.signal_forwarding import SignalForwarder
from hotlap.host.control_groups import out_of_memory_kills
from hotlap.host.parent_death import dies_with
from hotlap.plan import Plan
from hotlap.trial import exchange
from hotlap.trial.environment import plan_data
from hotlap.trial.hub import Hub
from hotlap.trial.protocol import NOT_IN_COMMAND, Config

_CLOSED_S = 2.0
"""Seconds that an ending process may take after its end of the socket was closed."""
_LISTEN_S = 0.5
"""Seconds of silence after which hotlap checks whether the script is still alive."""
_UNKNOWN = "it is not known which techniques took effect:"


class Recorded(Protocol):
    """A `RecordedScript`: what it imports, a run that is not recorded need not wait for."""

    def begin(self, about: dict[str, Any], plan: Plan) -> dict[str, Any]:
        """Write what the run is; return the option `record` of the script's process."""
        ...

    def end(self, exit_code: int, recorded: dict[str, Any] | None) -> None:
        """Write how it has ended; `recorded` is what the script's process said."""
        ...


class Outcome:
    """How a script ended that ran under a plan."""

    def __init__(self) -> None:
        self.exit_code = 1
        self.attached = False
        self.torch: str | None = None
        self.techniques: list[dict[str, str]] = []
        self.failure: str | None = None
        """Why the plan was not applied, if it was not."""
        self.steps: int | None = None
        """Optimizer steps of the script's own process, None if it did not say at its end."""
        self.out_of_memory = False
        """True if a process of this one's control group was killed meanwhile, for its limit."""
        self.cut = False
        """True if the script closed the socket long before its end."""
        self.signal: int | None = None
        """The signal that ended it, None if it ended by itself."""
        self.unheard: str | None = None
        """Why nobody could be heard, if so: no folder for temporary files can be written to."""
        self.children: list[Child] = []
        """Child processes that hotlap was in; with the script's own, if that is a rank itself."""
        self.recorded: dict[str, Any] | None = None
        """What the script's own process said of its records."""
        self.own_rank: Child | None = None
        """The script's own process, if it is a rank beside others."""

    @property
    def recorded_by_all(self) -> dict[str, Any] | None:
        """What the script's processes said of their records, None if none said anything."""
        said = (self.recorded, *(child.recorded for child in self.children))
        given = [each for each in said if each is not None]
        problems = dict.fromkeys(problem for each in given for problem in each["problems"])
        return {"problems": list(problems)} if given else None

    def problems(self, script: Script) -> list[str]:
        """Return, a line each, why the run was plain although a plan was to be applied."""
        if is_off():
            return []
        if self.out_of_memory and self.exit_code == 128 + signal.SIGKILL:
            from hotlap.host.memory import memory

            return [
                f"`{script}` was killed by the system: the memory of its control group "
                f"({memory()[0] / 2**20:.0f} MiB) was used up. `hotlap explain ended_by_signal` "
                "says what to look at, and what to do"
            ]
        if self.signal is not None:
            from hotlap.failures import recognize_signal

            ended = recognize_signal(self.signal)
            if ended is not None:
                # How much of the plan took effect is not known of a process that said no more.
                return [ended.line]
        if self.unheard is not None:
            return [f"{_UNKNOWN} the script could not connect to hotlap ({self.unheard})"]
        if not self.attached and script.is_command:
            return [f"hotlap could not attach to `{script}`, which ran plain: {NOT_IN_COMMAND}"]
        if not self.attached:
            return [
                f"hotlap could not attach to `{script}`, which ran plain: its Python ignores the "
                "environment that hotlap sets (flags -I, -E or -S do that)"
            ]
        if self.failure:
            return [f"the plan was not applied: {self.failure}"]
        if self.cut and self.steps is None:
            return [
                f"{_UNKNOWN} the script closed hotlap's socket (os.closerange, as daemons do), or "
                "replaced its process (os.execv), which then ran without the plan"
            ]
        heard = [child for child in self.children if child.trains]
        if self.torch is None and self.exit_code == 0 and not heard:
            return [f"`{script}` did not import torch in its own process: nothing was applied"]
        if self.torch is not None and self.steps is None and self.exit_code == 0:
            return [f"{_UNKNOWN} the script ended without Python's clean-up (os._exit)"]
        line = children_problem(self.steps, self.exit_code, heard)
        return [] if line is None else [line]

    def started_fewer(self, script: Script) -> str | None:
        """Return a line on a launcher that has started one process where several were wanted."""
        ranks = [child for child in self.children if child.trains and child.is_rank]
        if script.module != ACCELERATE or len(ranks) != 1 or ranks[0].ranks > 1:
            return None
        wanted, started = ranks_wanted(script.args), launched(script.args, ACCELERATE)
        if wanted == 1 or started is None:
            return None
        return (
            f"`accelerate launch` has started one process, not {wanted}: it starts several only "
            "with `--multi_gpu`, or by mpirun with `--mpirun_hostfile`. Use `torchrun "
            f"--nproc_per_node {wanted} {' '.join(started.words)}`"
        )


def run(
    script: Script,
    plan: Plan,
    *,
    techniques: tuple[str, ...] = (),
    stdout: int | None = None,
    variables: Mapping[str, str] | None = None,
    recorded: Recorded | None = None,
) -> Outcome:
    """Run the script under the plan and return when it has ended.

    Args:
        script: what to run; its standard streams are this process's own.
        plan: checked before.
        techniques: techniques from outside, as `module:NAME`.
        stdout: descriptor of where its standard output goes, this process's own if None.
        variables: of the environment, beside this process's own.
        recorded: where its losses are recorded, None to record none.

    Raises:
        StorageError: the run's folder cannot be written.
    """
    outcome, killed_before = Outcome(), out_of_memory_kills()
    with contextlib.ExitStack() as opened:
        hub = _hub(opened, outcome, script)
        address = None if hub is None else hub.address
        options = {}
        if recorded is not None:
            options = {"record": recorded.begin(script.about(), plan)}
        config = Config("run", address, plan_data(plan), techniques, options=options)
        with SignalForwarder() as passing:
            process = subprocess.Popen(
                script.command(),
                env=environment(
                    config,
                    {**os.environ, **(variables or {})},
                    trial=False,
                    of_command=script.is_command,
                ),
                cwd=script.folder,
                stdout=stdout,
                preexec_fn=dies_with(os.getpid()) if sys.platform == "linux" else None,
            )
            passing.forward_to(process)
            # `Popen.wait` with a timeout looks only every 50 ms.
            ended = threading.Event()
            listener = threading.Thread(target=_listen, args=(hub, outcome, ended), daemon=True)
            listener.start()
            code = process.wait()
            ended.set()
        listener.join(timeout=5)
    outcome.out_of_memory = out_of_memory_kills() > killed_before
    outcome.exit_code = code if code >= 0 else 128 - code
    outcome.signal = -code if code < 0 else None
    if recorded is not None:
        recorded.end(outcome.exit_code, outcome.recorded_by_all)
    return outcome


def _hub(opened: contextlib.ExitStack, outcome: Outcome, script: Script) -> Hub | None:
    """Return where the script's processes connect, None where no socket can be made."""
    try:
        folder = opened.enter_context(exchange.folder())
        hub = Hub(folder, may_be_others=script.is_command)
        return opened.enter_context(contextlib.closing(hub))
    except OSError as error:
        outcome.unheard = str(error)
        return None


def _listen(hub: Hub | None, outcome: Outcome, ended: threading.Event) -> None:
    """Hear all processes; the first that connects is the script's own, which starts the others.

    A command may start several that no other one has started.
    """
    if hub is None:
        return
    # Else a process that connects later would wait for an answer.
    with contextlib.closing(hub):
        _hear(hub, outcome, ended)


def _hear(hub: Hub, outcome: Outcome, ended: threading.Event) -> None:
    def is_alive() -> bool:
        return not ended.is_set()

    children: dict[int, Child] = {}
    own = {0}
    while True:
        try:
            heard = hub.receive(_LISTEN_S, is_alive)
        except TimeoutError:
            if is_alive():
                continue
            # A child that has outlived the script is not waited for.
            return
        if heard is None:
            break
        number, message = heard
        if message["kind"] == "attached" and message.get("of_command"):
            own.add(number)
        if number in own:
            _hear_script(message, outcome)
        elif message["kind"] == "attached":
            children[number] = Child(message["by"], message["rank"], message["is_rank"])
            outcome.children.append(children[number])
        else:
            children[number].hear(message)
    outcome.cut = not ended.wait(_CLOSED_S)


def _hear_script(message: Mapping[str, Any], outcome: Outcome) -> None:
    kind = message["kind"]
    if kind == "attached":
        outcome.attached = True
    elif kind == "torch":
        outcome.torch = message["version"]
    elif kind == "failed":
        outcome.failure = message["error"]
    elif kind == "trains" and message["ranks"] > 1:
        outcome.own_rank = Child("the script", message["rank"])
        outcome.children.append(outcome.own_rank)
    elif kind == "report" and (message["steps"] or not outcome.steps):
        outcome.techniques = message["techniques"]
        outcome.steps = message["steps"]
        outcome.recorded = message.get("recorded")
    if outcome.own_rank is not None:
        outcome.own_rank.hear(message)
