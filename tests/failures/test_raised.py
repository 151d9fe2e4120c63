"""Messages as this version of torch, Python and the system really say them."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import rebuild_storage_fd

from hotlap.failures import recognize, recognize_exception

OUTPUT = torch.zeros(4, 3)
SAVED = nn.Linear(3, 2).state_dict()


def _load(saved: dict[str, Any]) -> None:
    nn.Linear(3, 2).load_state_dict(saved)


def _load_optimizer() -> None:
    saved = torch.optim.Adam(nn.Linear(3, 2).parameters()).state_dict()
    torch.optim.Adam([nn.Parameter(torch.zeros(1))]).load_state_dict(saved)


def _listen_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        socket.create_server(first.getsockname())


def _write(write: Callable[[Any], object]) -> None:
    with Path("/dev/full").open("wb", buffering=0) as file:
        write(file)


RAISED: dict[str, tuple[Callable[[], object], str, str]] = {
    "labels of float": (
        lambda: F.cross_entropy(OUTPUT, torch.zeros(4)),
        "dtype_mismatch",
        "numbers of classes must be int64",
    ),
    "labels of int32": (
        lambda: F.cross_entropy(OUTPUT, torch.zeros(4, dtype=torch.int32)),
        "dtype_mismatch",
        "numbers of classes must be int64",
    ),
    "integers as probabilities": (
        lambda: F.cross_entropy(OUTPUT, torch.zeros(4, 3).long()),
        "dtype_mismatch",
        "taken for probabilities, and is int64",
    ),
    "bce with labels of int64": (
        lambda: F.binary_cross_entropy(OUTPUT, torch.zeros(4, 3).long()),
        "dtype_mismatch",
        "One is int64, the other float32.",
    ),
    "convolution of int64": (
        lambda: nn.Conv1d(3, 2, 1)(torch.ones(4, 3, 3).long()),
        "dtype_mismatch",
        "One is int64, the other float32.",
    ),
    "ids of float": (
        lambda: F.embedding(torch.zeros(3), OUTPUT),
        "dtype_mismatch",
        "Ids are float32",
    ),
    "labels with a column": (
        lambda: F.cross_entropy(OUTPUT, torch.zeros(4, 1).long()),
        "shape_mismatch",
        "`y.squeeze(1)`",
    ),
    "bce of another size": (
        lambda: F.binary_cross_entropy(OUTPUT[:, :1], torch.zeros(4)),
        "shape_mismatch",
        "The target has shape [4], and the output [4, 1].",
    ),
    "bce of logits of another size": (
        lambda: F.binary_cross_entropy_with_logits(OUTPUT[:, :1], torch.zeros(4)),
        "shape_mismatch",
        "The target has shape [4], and the output [4, 1].",
    ),
    "mat1 and mat2": (
        lambda: nn.Linear(5, 2)(OUTPUT),
        "shape_mismatch",
        "3 features, and the layer was built for 5",
    ),
    "no probabilities": (
        lambda: F.binary_cross_entropy(OUTPUT + 2, torch.zeros(4, 3)),
        "not_a_probability",
        "Outputs go from 2 to 2. Targets go from 0 to 0.",
    ),
    "NaN as a probability": (
        lambda: F.binary_cross_entropy(OUTPUT / 0, torch.zeros(4, 3)),
        "not_a_probability",
        "Outputs go from nan to nan.",
    ),
    "no targets of probabilities": (
        lambda: F.binary_cross_entropy(OUTPUT, torch.full((4, 3), 255.0)),
        "not_a_probability",
        "A target is below 0, above 1, or NaN.",
    ),
    "an id too many": (
        lambda: F.embedding(torch.tensor([7]), OUTPUT),
        "index_out_of_range",
        "rows of an embedding",
    ),
    "softmax of integers": (
        lambda: torch.softmax(torch.ones(4, 3, dtype=torch.int32), 1),
        "dtype_not_supported",
        "no kernel for integers (Int)",
    ),
    "product of booleans": (
        lambda: torch.ones(3, 3).bool() @ torch.ones(3, 3).bool(),
        "dtype_not_supported",
        "no kernel for booleans (Bool)",
    ),
    "float16 on a CPU": (
        lambda: torch.linalg.qr(torch.eye(3).half()),
        "dtype_not_supported",
        "no kernel for float16 on this device",
    ),
    "mean of integers": (
        lambda: torch.ones(3).long().mean(),
        "dtype_not_supported",
        "`mean` has no kernel for integers",
    ),
    "bits of floats": (
        lambda: torch.ones(3) & torch.ones(3),
        "dtype_not_supported",
        "one for integers or booleans",
    ),
    "missing and unexpected keys": (
        lambda: _load({"weight": SAVED["weight"], "gain": SAVED["bias"]}),
        "state_dict_mismatch",
        "The file lacks `bias`. The model has no `gain`.",
    ),
    "DataParallel": (
        lambda: _load({f"module.{name}": each for name, each in SAVED.items()}),
        "state_dict_mismatch",
        "The file's names begin with `module.`",
    ),
    "into a wrapped model": (
        lambda: nn.Sequential(nn.Linear(3, 2)).load_state_dict(SAVED),
        "state_dict_mismatch",
        "The model's names begin with `0.`",
    ),
    "other sizes": (
        lambda: _load({**SAVED, "weight": torch.zeros(5, 3)}),
        "state_dict_mismatch",
        "`weight` has shape [5, 3] in the file, and [2, 3] in the model.",
    ),
    "an optimizer of others": (_load_optimizer, "state_dict_mismatch", "other parameters"),
    "MemoryError": (lambda: bytearray(10**15), "host_out_of_memory", ""),
    "NumPy's MemoryError": (
        lambda: np.ones((10**6, 10**6)),
        "host_out_of_memory",
        "7.28 TiB were asked for in one piece",
    ),
    "no library": (
        lambda: ctypes.CDLL("libcudnn_of_no_machine.so.9"),
        "library_not_found",
        "libcudnn_of_no_machine.so.9 was not found",
    ),
    "two at one port": (_listen_twice, "port_in_use", "The port is "),
    "a process that crashes": (
        lambda: subprocess.run(["sh", "-c", "kill -SEGV $$"], check=True),
        "ended_by_signal",
        "Native code used memory",
    ),
}
"""What was done -> how, the failure, and what is said of it."""
_NEEDS_FULL = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no /dev/full"
)


@pytest.mark.parametrize("what", RAISED)
def test_what_is_raised_is_recognised(what: str) -> None:
    action, name, said = RAISED[what]
    with pytest.raises(Exception) as raised:
        action()
    known = recognize_exception(raised.value)
    assert known is not None and known.failure.name == name
    assert said in known.line
    # People paste it without the name of the exception, too. A MemoryError has nothing else.
    message = str(raised.value)
    pasted = recognize(message) if message else known
    assert pasted is not None and pasted.failure.name == name


@_NEEDS_FULL
@pytest.mark.parametrize(
    "action",
    [
        lambda: _write(lambda file: file.write(b"x")),
        lambda: _write(lambda file: np.save(file, np.ones(9))),
        lambda: torch.save({"a": torch.ones(9)}, "/dev/full"),
    ],
    ids=["Python", "NumPy", "torch"],
)
def test_a_full_disk_is_recognised(action: Callable[[], object]) -> None:
    with pytest.raises((OSError, RuntimeError)) as raised:
        action()
    known = recognize_exception(raised.value)
    assert known is not None and known.failure.name == "disk_full"


def test_a_loss_that_warns_of_shapes_is_recognised() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        F.mse_loss(OUTPUT[:, :1], torch.zeros(4))
    known = recognize(str(seen[0].message))
    assert known is not None and known.failure.name == "shape_mismatch"
    assert "what is learned is wrong" in known.line


def test_what_a_shell_says_of_a_killed_process_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("sh -c 'kill -KILL $$'\n:\n")
    ended = subprocess.run(
        ["bash", "run.sh"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    known = recognize(ended.stderr)
    assert known is not None and known.failure.name == "ended_by_signal"
    assert "memory ran out" in known.line


@pytest.mark.slow
def test_a_rank_that_crashes_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, torch.multiprocessing as mp\n"
        "def rank(number):\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(rank, nprocs=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "terminated with signal SIGSEGV" in ended.stderr
    known = recognize(ended.stderr)
    assert known is not None and known.failure.name == "ended_by_signal"
    assert "Native code used memory" in known.line


class _Ends(torch.utils.data.Dataset[int]):
    """A data set whose worker ends, once it is told to."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.end, self.told = end, torch.multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.told.wait()
        self.end()
        return index


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "The system has killed it"),
        (lambda: os.kill(os.getpid(), signal.SIGFPE), "It was ended by a signal: Floating point"),
        (lambda: os._exit(3), "It exited with code 3."),
    ],
    ids=["killed", "another signal", "exit"],
)
def test_a_worker_that_the_loader_finds_ended_is_explained_by_its_exit_code(
    end: Callable[[], object], said: str
) -> None:
    data = _Ends(end)
    batches = iter(torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="fork"))
    # The loader asks for the exit codes where the signal came too early or too late to be handled.
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        data.told.set()
        with pytest.raises(RuntimeError, match=r"pid\(s\) .* exited unexpectedly") as raised:
            while not batches._try_get_data(0.1)[0]:
                pass
    finally:
        signal.signal(signal.SIGCHLD, handler)
    known = recognize_exception(raised.value)
    assert known is not None
    assert known.failure.name == "worker_died"
    assert said in known.line


def test_a_worker_that_ends_while_its_batch_is_read_is_explained() -> None:
    class Descriptor:
        def detach(self) -> int:
            raise ConnectionResetError(104, "Connection reset by peer")

    def _try_get_data() -> None:
        rebuild_storage_fd(torch.UntypedStorage, Descriptor(), 8)

    with pytest.raises(ConnectionResetError) as raised:
        _try_get_data()
    known = recognize_exception(raised.value)
    assert known is not None and known.failure.name == "worker_died"
    assert known.words == "ConnectionResetError: [Errno 104] Connection reset by peer"
    # A queue of the script's own, and the thread that pins memory while the script ends.
    with pytest.raises(ConnectionResetError) as raised:
        rebuild_storage_fd(torch.UntypedStorage, Descriptor(), 8)
    assert recognize_exception(raised.value) is None


def test_what_is_said_elsewhere_goes_before_a_connection_that_is_lost() -> None:
    lost = "  File 'dataloader.py', line 1, in _try_get_data\nConnectionResetError: [Errno 104]\n"
    cause = "ERROR: Unexpected bus error encountered in worker.\n"
    for text in (lost, cause + lost):
        known = recognize(text)
        assert known is not None
        assert known.failure.name == ("worker_died" if text == lost else "shared_memory_full")


def test_a_line_that_a_signal_came_between_has_no_number() -> None:
    frame = sys._getframe()
    error = RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed. ")
    error.__traceback__ = TracebackType(None, frame, 10**6, -1)
    assert error.__traceback__.tb_lineno is None
    assert recognize_exception(error) is not None
