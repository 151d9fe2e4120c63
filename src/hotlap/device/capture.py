"""Captures work as a CUDA graph, and finds the lines where the host waits for the device."""

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from hotlap import compat

log = logging.getLogger("hotlap")

_WATCHERS = tuple(
    os.path.join(Path(__file__).parents[1], *folder, "")
    for folder in (["trial"], ["engine", "roles"])
)
"""Folders of what watches a run that is proven or observed, and is no part of its steps."""


class CaptureFailed(RuntimeError):
    """Work could not be captured.

    The random generator has got another state since: graphs that were captured before draw from
    the old one, which nothing else does, and must not be replayed any more.
    """


class Graph(Protocol):
    """Work that was captured once and can be repeated without Python."""

    def replay(self) -> Any:
        """Repeat the work; return a copy of what it gave."""
        ...


def capture_graph(work: Callable[[], Any], device: str, stream: Any) -> Graph:
    """Capture what `work` queues, see `Cuda.capture`.

    Raises:
        CaptureFailed: the work did something that a graph cannot hold.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    handled = sys.exception()
    before, pool = torch.cuda.current_stream(device), torch.cuda.graph_pool_handle()
    # Other threads may go on: one of them may be pinning the next batch.
    mode = "thread_local"
    raised: list[BaseException] = []
    try:
        with torch.cuda.graph(graph, pool, stream=stream, capture_error_mode=mode):
            try:
                result = work()
            except BaseException as error:
                raised.append(error)
                raise
    except Exception as error:
        # Not only torch's: that a graph is empty may be a warning, and warnings may be errors.
        _leave_capture(before, pool)
        # That the capture could not end is raised last, and says nothing of why.
        first = _first_error(raised[0] if raised else error, handled)
        raise CaptureFailed(in_one_line(first)) from error
    return _CudaGraph(graph, result)


def in_one_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its class where it says nothing."""
    said = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, RuntimeError) and said:
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _first_error(error: BaseException, handled: BaseException | None) -> BaseException:
    """Return what could not be captured, where more errors followed on it while frames ended.

    Args:
        error: the last of them.
        handled: what was being handled before the capture began, None if nothing was.

    Raises:
        BaseException: one that is no error, as of Ctrl-C: the others only followed on it.
    """
    first, before = error, error.__context__
    # A handler's own error has what it handled as its context: a missing key, say.
    while isinstance(before, RuntimeError) and before is not handled:
        first, before = before, before.__context__
    before = error
    while before is not None and before is not handled:
        if not isinstance(before, Exception | GeneratorExit):
            raise before
        before = before.__context__
    return first


def _leave_capture(before: Any, pool: Any) -> None:
    """Undo what torch leaves behind where the driver does not even let it end a capture.

    Its stream stays current, memory that several streams use is never given back, all that was
    allocated stays reserved for a graph, and the random generator believes that it is captured.
    Source: torch/cuda/graphs.py, `graph.__exit__`; aten/src/ATen/cuda/CUDAGraph.cpp.
    """
    import torch

    torch.cuda.set_stream(before)
    end, release = map(compat.find_optional, ("_cuda_endAllocateToPool", "_cuda_releasePool"))
    if end is not None:
        try:
            end(before.device_index, pool)
        except RuntimeError:
            # Then the capture has ended, and the graph releases the pool when it is dropped.
            log.debug("the memory pool was already left", exc_info=True)
        else:
            if release is not None:
                release(before.device_index, pool)
    generator = torch.cuda.default_generators[before.device_index]
    try:
        generator.graphsafe_set_state(generator.clone_state())
    except (AttributeError, RuntimeError):
        log.debug("the state of the CUDA generator was not restored", exc_info=True)


class _CudaGraph:
    def __init__(self, graph: Any, result: Any) -> None:
        self._graph, self._result = graph, result

    def replay(self) -> Any:
        self._graph.replay()
        # The next replay writes over it.
        return self._result.clone()


@contextlib.contextmanager
def noted_host_reads() -> Iterator[list[str]]:
    """Collect `file:line` of every place in the block where the host waited for the device.

    What threads do that Python had started before is theirs. A backward in Python runs in one of
    torch's own threads, and counts. What watches a trial reads inside its steps, and does not.
    """
    import torch

    found: list[str] = []
    mine = threading.get_ident()
    others = {
        thread.ident
        for thread in threading.enumerate()
        if thread.ident != mine and not isinstance(thread, threading._DummyThread)
    }
    before, caught = torch.cuda.get_sync_debug_mode(), list[Any]()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def note(*told: Any) -> None:
            if threading.get_ident() not in others:
                if not (_is_of_reads(told) and _is_by_a_watcher(told[2])):
                    caught.append(told)
            elif not _is_of_reads(told):
                show(*told)

        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for told in caught:
        message, category, file, line = told[:4]
        if not _is_of_reads(told):
            warnings.warn_explicit(message, category, file, line)
        # Torch says once of the mode itself that it is a prototype.
        elif "debug mode" not in str(message):
            found.append(f"{file}:{line}")


@contextlib.contextmanager
def noted_host_draws() -> Iterator[list[str]]:
    """Collect which of the host's global generators was drawn from in the block."""
    from hotlap import rng

    found: list[str] = []
    before = rng.global_random_states()
    yield found
    drawn = rng.generator_that_advanced(before)
    if drawn is not None:
        found.append(drawn)


def _is_of_reads(told: Any) -> bool:
    text = str(told[0])
    return "synchronizing CUDA operation" in text or "debug mode" in text


def _is_by_a_watcher(file: str) -> bool:
    """True if what watches a trial, not the step, has read in this file, or called torch to."""
    import torch

    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    torchs = os.path.join(Path(torch.__file__).parent, "")
    while frame is not None and frame.f_code.co_filename.startswith(torchs):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_WATCHERS)
