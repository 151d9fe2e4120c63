"""What torch and the system print when training dies, and what is said of it."""

import re

import pytest

from hotlap.cli import main
from hotlap.errors import UnknownName
from hotlap.failures import recognize, recognize_exception, recognize_output, registry
from hotlap.report.explaining import explain

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total "
    "capacity of 23.69 GiB of which {free} is free. {others}Including non-PyTorch memory, this "
    "process has {own} memory in use. Of the allocated memory {tensors} is allocated by PyTorch, "
    "and {cached} is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
FULL = OOM.format(
    asked="2.00 GiB", free="1.06 GiB", others="", own="22.60 GiB", tensors="21.10 GiB",
    cached="900.00 MiB",
)  # fmt: skip
SHARED = OOM.format(
    asked="512.00 MiB", free="100.00 MiB", others="Process 4711 has 20.00 GiB memory in use. ",
    own="3.59 GiB", tensors="3.10 GiB", cached="90.00 MiB",
)  # fmt: skip
IN_PIECES = OOM.format(
    asked="1.00 GiB", free="512.00 MiB", others="", own="23.10 GiB", tensors="15.00 GiB",
    cached="7.60 GiB",
)  # fmt: skip

ON_GPUS: list[tuple[str, str, str]] = [
    (FULL, "cuda_out_of_memory", "Live tensors hold 21.10 GiB: at least 23.10 GiB would"),
    (SHARED, "cuda_out_of_memory", "Other processes hold about 20.00 GiB"),
    (IN_PIECES, "cuda_out_of_memory", "7.60 GiB are reserved and not in use"),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total "
        "capacity; 7.30 GiB already allocated; 12.00 MiB free; 7.40 GiB reserved in total by "
        "PyTorch)",
        "cuda_out_of_memory",
        "20.00 MiB were asked for in one piece; 12.00 MiB of 7.93 GiB were free.",
    ),
    ("RuntimeError: CUDA error: out of memory", "cuda_out_of_memory", ""),
    (
        "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be "
        "asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "index_out_of_range",
        "CUDA_LAUNCH_BLOCKING=1",
    ),
    (
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: "
        "[0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        "index_out_of_range",
        "A label is negative, or not smaller",
    ),
    (
        "Indexing.cu:1289: indexSelectLargeIndex: block: [12,0,0], thread: [64,0,0] Assertion "
        "`srcIndex < srcSelectDimSize` failed.",
        "index_out_of_range",
        "rows of an embedding",
    ),
    (
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "library_not_initialized",
        "",
    ),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "library_not_initialized",
        "no memory for itself",
    ),
    (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu! (when checking argument for argument mat1 in method "
        "wrapper_CUDA_addmm)",
        "device_mismatch",
        "One is on cuda:0, the other on cpu.",
    ),
    (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) "
        "should be the same",
        "device_mismatch",
        "",
    ),
    (
        "RuntimeError: Input type (c10::Half) and bias type (float) should be the same",
        "dtype_mismatch",
        "One is float16, the other float32.",
    ),
    (
        "[rank1]:[E1103 10:11:12.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, "
        "Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        "collective_timeout",
        "The collective was ALLREDUCE; the time-out is 600 s.",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled "
        "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5",
        "rank_lost",
        "",
    ),
    ("AssertionError: Torch not compiled with CUDA enabled", "driver_mismatch", "for the CPU"),
    (
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA "
        "GPU and installed a driver from http://www.nvidia.com/Download/index.aspx",
        "driver_mismatch",
        "no driver here",
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please "
        "update your GPU driver",
        "driver_mismatch",
        "serves CUDA up to 11.4.",
    ),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "driver_mismatch",
        "no kernels for this generation",
    ),
    (
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
        "PyTorch installation.",
        "driver_mismatch",
        "no kernels for this generation",
    ),
]
ON_GPUS += [
    (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel "
        "errors might be asynchronously reported at some other API call, so the stacktrace below "
        "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "kernel_failed",
        "hotlap run --synchronous SCRIPT",
    ),
    ("RuntimeError: CUDA error: misaligned address", "kernel_failed", "CUDA_LAUNCH_BLOCKING=1"),
    (
        "RuntimeError: CUDA error: unspecified launch failure",
        "kernel_failed",
        "CUDA_LAUNCH_BLOCKING=1",
    ),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
        "kernel_failed",
        "CUDA_LAUNCH_BLOCKING=1",
    ),
]
ON_GPUS += [
    (
        "../aten/src/ATen/native/cuda/Loss.cu:92: operator(): block: [0,0,0], thread: [3,0,0] "
        "Assertion `input_val >= zero && input_val <= one` failed.",
        "not_a_probability",
        "An output of the model is below 0, above 1, or NaN.",
    ),
    (
        "../aten/src/ATen/native/cuda/Loss.cu:95: operator(): block: [0,0,0], thread: [3,0,0] "
        "Assertion `target_val >= zero && target_val <= one` failed.",
        "not_a_probability",
        "A target is below 0",
    ),
    (
        'RuntimeError: "nll_loss_forward_reduce_cuda_kernel_2d_index" not implemented for '
        "'Float'",
        "dtype_not_supported",
        "numbers of classes must be int64",
    ),
    (
        "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open shared "
        "object file: No such file or directory",
        "library_not_found",
        "libcuda.so is the driver's own",
    ),
    (
        "Unable to load any of {libcudnn_cnn.so.9.1.0, libcudnn_cnn.so.9.1, libcudnn_cnn.so.9, "
        "libcudnn_cnn.so}\nInvalid handle. Cannot load symbol cudnnCreateConvolutionDescriptor",
        "library_not_found",
        "libcudnn_cnn.so.9.1.0 was not found",
    ),
    (
        "ImportError: /env/nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: "
        "__nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        "library_not_found",
        "A function is missing in libnvJitLink.so.12",
    ),
    (
        "ImportError: /env/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister",
        "library_not_found",
        "libtorch_cuda.so needs a function that is missing",
    ),
]
ELSEWHERE = [
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot "
        "allocate memory)",
        "host_out_of_memory",
        "3.64 TiB were asked for in one piece.",
    ),
    ("Killed", "ended_by_signal", "memory ran out"),
    ("Segmentation fault (core dumped)", "ended_by_signal", "Native code used memory"),
    ("Fatal Python error: Aborted", "ended_by_signal", "Native code ended itself"),
    ("Bus error (core dumped)", "ended_by_signal", "/dev/shm is full"),
    ("Illegal instruction (core dumped)", "ended_by_signal", "an instruction that a library"),
    ("traceback : Signal 9 (SIGKILL) received by PID 12", "ended_by_signal", "memory ran out"),
    ("exitcode  : -11 (pid: 4711)", "ended_by_signal", "Native code used memory"),
    ("Job ended with exit code 137", "ended_by_signal", "memory ran out"),
    ("The container exited with code 137", "ended_by_signal", "memory ran out"),
    ("Killed: 9", "ended_by_signal", "memory ran out"),
    (
        "./run.sh: line 3: 12345 Killed                  python train.py",
        "ended_by_signal",
        "memory ran out",
    ),
    ("[1]  + 4711 killed     python train.py", "ended_by_signal", "memory ran out"),
    ("zsh: segmentation fault  python train.py", "ended_by_signal", "Native code used memory"),
    (
        "Out of memory: Killed process 4711 (python) total-vm:32876540kB, anon-rss:31990104kB",
        "ended_by_signal",
        "The system's out-of-memory killer ended it",
    ),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.batch.",
        "ended_by_signal",
        "The system's out-of-memory killer ended it",
    ),
    ("  Reason:       OOMKilled", "ended_by_signal", "The system's out-of-memory killer ended it"),
    (
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit "
        "status 137.",
        "ended_by_signal",
        "memory ran out",
    ),
    (
        "E1103 api.py:869] failed (exitcode: -11) local_rank: 0 (pid: 12) of binary: /bin/python",
        "ended_by_signal",
        "Native code used memory",
    ),
    ("RuntimeError: Address already in use", "port_in_use", ""),
    ("EADDRINUSE", "port_in_use", ""),
    (
        "RuntimeError: Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "0.weight", "0.bias". \n'
        '\tUnexpected key(s) in state_dict: "_orig_mod.0.weight", "_orig_mod.0.bias". ',
        "state_dict_mismatch",
        "The file's names begin with `_orig_mod.`",
    ),
    (
        "size mismatch for head.weight: copying a param with shape torch.Size([1000, 512]) from "
        "checkpoint, the shape in current model is torch.Size([10, 512]).",
        "state_dict_mismatch",
        "`head.weight` has shape [1000, 512] in the file, and [10, 512] in the model.",
    ),
    (
        "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address "
        "already in use",
        "port_in_use",
        "The port is 8000.",
    ),
    (
        "RuntimeError: The server socket has failed to listen on any local network address. The "
        "server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "rendezvous_failed",
        "Port 29500 is taken",
    ),
    (
        "RuntimeError: unable to write to file </torch_12_34>: No space left on device (28)",
        "shared_memory_full",
        "",
    ),
    (
        "OSError: [Errno 28] No space left on device: 'checkpoint.pt'",
        "disk_full",
        "It happened to 'checkpoint.pt'.",
    ),
    (
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 128 vs 22",
        "disk_full",
        "could not write a file to its end",
    ),
    ("OSError: [Errno 122] Disk quota exceeded: 'runs/a'", "disk_full", "this user's quota"),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with "
        "shape (1000000, 1000000) and data type float64",
        "host_out_of_memory",
        "7.28 TiB were asked for in one piece, an array of shape (1000000, 1000000).",
    ),
    ("MemoryError", "host_out_of_memory", ""),
    ("OSError: [Errno 12] Cannot allocate memory", "host_out_of_memory", ""),
    (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        "shared memory (shm).",
        "shared_memory_full",
        "",
    ),
    (
        "RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory.",
        "shared_memory_full",
        "",
    ),
    (
        "RuntimeError: unable to mmap 1073741824 bytes from file </torch_12_3_4>: Cannot allocate "
        "memory (12)",
        "shared_memory_full",
        "",
    ),
    ("RuntimeError: received 0 items of ancdata", "too_many_open_files", "could not be received"),
    ("OSError: [Errno 24] Too many open files: 'a.png'", "too_many_open_files", ""),
    (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
        "worker_died",
        "most often because memory ran out",
    ),
    (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault. ",
        "worker_died",
        "has crashed",
    ),
    ("RuntimeError: DataLoader worker (pid(s) 1, 22) exited unexpectedly", "worker_died", ""),
    ("RuntimeError: DataLoader timed out after 5 seconds", "worker_died", "for 5 s"),
    (
        '  File "dataloader.py", line 1291, in _try_get_data\n    data = self._data_queue.get()\n'
        '  File "reductions.py", line 538, in rebuild_storage_fd\n    fd = df.detach()\n'
        '  File "connection.py", line 395, in _recv\n    chunk = read(handle, remaining)\n'
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "worker_died",
        "was read from its memory",
    ),
    (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed "
        "out waiting 20000ms for recv operation to complete",
        "collective_timeout",
        "The time-out is 20 s.",
    ),
    (
        "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer "
        "[127.0.0.1]:40123",
        "rank_lost",
        "127.0.0.1, port 40123",
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
        "rendezvous_failed",
        "Port 29500 is taken",
    ),
    (
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 "
        "clients joined.",
        "rendezvous_failed",
        "1 of 2 ranks came.",
    ),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one. This error indicates that your module has parameters that were not used in "
        "producing loss. You can enable unused parameter detection by passing the keyword "
        "argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`\n"
        "Parameter indices which did not receive grad for rank 1: 2 3\n In addition, you can set "
        "the environment variable TORCH_DISTRIBUTED_DEBUG",
        "parameters_unused",
        "Parameters 2, 3 of `model.parameters()` have no gradient on this rank.",
    ),
    (
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "backend_missing",
        "This torch was built without NCCL",
    ),
    (
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "backend_missing",
        "NCCL needs GPUs, and torch finds none",
    ),
    (
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float",
        "dtype_mismatch",
        "One is float64, the other float32.",
    ),
    (
        "RuntimeError: expected scalar type Long but found Float",
        "dtype_mismatch",
        "One is int64, the other float32.",
    ),
    (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x784 and 780x10)",
        "shape_mismatch",
        "784 features, and the layer was built for 780",
    ),
    (
        "RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected input[4, 1, 28, 28] "
        "to have 3 channels, but got 1 channels instead",
        "shape_mismatch",
        "1 channels, and the layer was built for 3",
    ),
    (
        "ValueError: Expected input batch_size (64) to match target batch_size (32).",
        "shape_mismatch",
        "64 predictions and 32 labels",
    ),
    (
        "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0 and [4] "
        "at entry 2",
        "shape_mismatch",
        "has shape [3], sample 2 has [4]",
    ),
    (
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at "
        "non-singleton dimension 1",
        "shape_mismatch",
        "Dimension 1 has size 3 in one and 4 in the other.",
    ),
    ("IndexError: Target 10 is out of bounds.", "index_out_of_range", "A label is 10"),
    ("IndexError: index out of range in self", "index_out_of_range", "rows of an embedding"),
    (
        "IndexError: index 7 is out of bounds for dimension 0 with size 5",
        "index_out_of_range",
        "The index is 7, and dimension 0 has 5 entries.",
    ),
    (
        "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in "
        "torch._inductor.config.cpp.cxx: (None, 'g++')",
        "no_compiler",
        "",
    ),
]


@pytest.mark.parametrize(
    ("message", "name", "said"),
    ON_GPUS + ELSEWHERE,
    ids=[f"{name}-{number}" for number, (_, name, _) in enumerate(ON_GPUS + ELSEWHERE)],
)
def test_a_message_is_recognised_as_one_failure_with_its_own_numbers(
    message: str, name: str, said: str
) -> None:
    assert [each.name for each in registry().values() if each.find(message)] == [name]
    recognized = recognize(f"Traceback (most recent call last):\n  a line\n{message}\n")
    assert recognized is not None
    assert said in " ".join(recognized.sentences)
    assert bool(said) == bool(recognized.sentences)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'labels'",
        "srun: error: exit code 1",
        "Signal 15 (SIGTERM) received by PID 12",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "    except MemoryError:\nKeyError: 1",
        "ValueError: batch_size should be a positive integer value, but got batch_size=0",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
        "TypeError: forward() missing 1 required positional argument: 'mask'",
        "RuntimeError: my own words on running out of memory",
        "IndexError: list index out of range",
        "ModuleNotFoundError: No module named 'torchvision'",
        "12 killed  processes of the simulation",
        "process 1 terminated with signal SIGTERM",
        "process 0 terminated with exit code 1",
        "OSError: [Errno 99] Cannot assign requested address",
        "The address is already in use by another customer",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
        "ImportError: /env/own.so: undefined symbol: my_function",
        'NotImplementedError: "resize" not implemented',
        "KeyError: 'state_dict'",
        "ValueError: Missing keys in the configuration: lr",
        "OSError: [Errno 30] Read-only file system: 'checkpoint.pt'",
        "ValueError: target size must be positive",
        "AssertionError: all elements of the list should be between 0 and 1",
        "Unable to allocate a worker for job 12",
    ],
)
def test_other_messages_are_not_recognised(text: str) -> None:
    assert recognize(text) is None


def test_a_message_is_recognised_where_a_terminal_has_broken_its_line() -> None:
    said = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x9 and 8x3)"
    known = recognize(said)
    assert known is not None
    for broken in (said.replace("be ", "be\n"), said.replace("be ", "be  ")):
        assert recognize(broken) == known


def test_a_traceback_ends_with_its_reason() -> None:
    first, second = ELSEWHERE[0][0], ELSEWHERE[-1][0]
    between = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    for text, name in (
        (first + between + second, "no_compiler"),
        (second + between + first, "host_out_of_memory"),
    ):
        recognized = recognize(text)
        assert recognized is not None and recognized.failure.name == name


def test_what_is_raised_after_every_assertion_hides_no_assertion() -> None:
    raised = "\nRuntimeError: CUDA error: device-side assert triggered"
    for assertion, name in (
        ("Assertion `input_val >= zero && input_val <= one` failed.", "not_a_probability"),
        ("Assertion `t >= 0 && t < n_classes` failed.", "index_out_of_range"),
        # Of one that nothing is known of, what is raised says at least how to find the line.
        ("Assertion `my_own` failed.", "index_out_of_range"),
    ):
        recognized = recognize(assertion + raised)
        assert recognized is not None and recognized.failure.name == name
    # An assertion of the run before, in one log, is not this one's.
    recognized = recognize(f"Assertion `input_val >= zero && input_val <= one` failed.\n{FULL}")
    assert recognized is not None and recognized.failure.name == "cuda_out_of_memory"


def test_no_process_has_died_of_a_warning() -> None:
    warning = (
        "/env/loss.py:616: UserWarning: Using a target size (torch.Size([4])) that is different to "
        "the input size (torch.Size([4, 1])). This will likely lead to incorrect results due to "
        "broadcasting. Please ensure they have the same size."
    )
    recognized = recognize(warning)
    assert recognized is not None and recognized.failure.name == "shape_mismatch"
    assert "what is learned is wrong" in recognized.line
    assert recognize_output(f"{warning}\nTraceback ...\nKeyError: 'label'") is None
    died = recognize_output(f"{warning}\nTraceback ...\nMemoryError")
    assert died is not None and died.failure.name == "host_out_of_memory"


def test_every_kind_has_messages_and_a_page_that_says_what_to_do() -> None:
    assert {name for _, name, _ in ON_GPUS + ELSEWHERE} == set(registry())
    for name, failure in registry().items():
        for heading in ("What happened  ", "What to do     "):
            assert heading in failure.page
        page = explain(name)
        assert page.kind == "failure" and failure.page in page.text
        assert name in explain(None).text
        # What a page refers to has a page of its own.
        for other in re.findall(r"see `(\w+)`", failure.page):
            explain(other)


def test_a_pasted_message_is_explained_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a line\n" * 100 + FULL]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("cuda_out_of_memory (failure)")
    assert "at least 23.10 GiB would have been needed" in printed
    assert "What to do" in printed
    # One word, too: no name of hotlap's is meant.
    for word, name in (("Killed", "ended_by_signal"), ("MemoryError", "host_out_of_memory")):
        assert main(["explain", word]) == 0
        assert capsys.readouterr().out.startswith(f"{name} (failure)")
    with pytest.raises(
        UnknownName, match="'it does not work' is not an error message that hotlap knows"
    ):
        explain("it does not work")


def test_what_an_exception_was_raised_from_is_read_too() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 12) exited unexpectedly")
    known = recognize_exception(error)
    assert known is not None and known.sentences == []
    error.__cause__ = RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. ")
    known = recognize_exception(error)
    assert known is not None and "memory ran out" in known.line
    error.__cause__ = error
    assert recognize_exception(error) is not None
    assert recognize_exception(KeyError("label")) is None
