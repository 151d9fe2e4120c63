"""`Sampler`: system metrics of a run, every few seconds, from a thread of its own."""

import threading
from collections.abc import Callable, Mapping

from hotlap.errors import UsageError
from hotlap.host.monitor import Monitor, open_gpus
from hotlap.track.records import SYSTEM
from hotlap.track.writer import Writer

EVERY_S = 2.0
_LEAST_S = 0.5
_END_S = 2.0


class Sampler:
    """Records what `sample` returns, until it is closed.

    Args:
        sample: returns figures by name; called in the sampler's thread.
        writer: takes the records.
        every_s: seconds between two samples.
    """

    def __init__(
        self, sample: Callable[[], Mapping[str, float]], writer: Writer, every_s: float = EVERY_S
    ) -> None:
        self._sample, self._writer, self._every_s = sample, writer, every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotlap-system", daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int:
        """The thread, as the system tells its CPU time."""
        return self._thread.ident or 0

    def close(self) -> None:
        """Sample no more."""
        self._ends.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        writer = self._writer
        while not self._ends.wait(self._every_s):
            try:
                figures = self._sample()
            except Exception as error:
                writer.problems.append(
                    f"system metrics are not recorded any more: {type(error).__name__}: {error}"
                )
                return
            writer.add(SYSTEM, writer.step, None, figures)


def start_sampler(writer: Writer, every_s: float, pid: int | None = None) -> Sampler | None:
    """Start to record the figures of a process, its children, the host and its GPUs.

    Args:
        writer: takes the records, and what the user should know.
        every_s: seconds between two samples.
        pid: of the process, this one if None.

    Returns:
        None if nothing can be sampled here, which is no reason to end a run.
    """
    try:
        gpus, why = open_gpus()
        monitor = Monitor(pid, gpus)
    except Exception as error:
        writer.problems.append(f"system metrics are not recorded: {type(error).__name__}: {error}")
        return None
    if why:
        writer.problems.append(why)
    return Sampler(monitor.sample, writer, every_s)


def check_every(every_s: float) -> None:
    """Refuse an interval that would cost the training time.

    Raises:
        UsageError: it is shorter than half a second.
    """
    if not every_s >= _LEAST_S:
        raise UsageError(
            f"an interval of {every_s:g} s between two samples of system metrics is too short, as "
            f"it would slow down training. Set --every (in Python, system_every_s) to {_LEAST_S:g} "
            "s or more."
        )
