"""Scripts that die: their own traceback first, then what it means, and their own exit code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., subprocess.CompletedProcess[str]]

HEAD = """
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self, read):
        self.read = read
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return self.read(index)

def train(read=lambda index: (torch.ones(4), index % 3), features=4, outputs=3, **options):
    model = nn.Linear(features, outputs)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(Data(read), 8, **options):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

"""
KINDS = {
    "shape_mismatch": ("train(features=5)", "4 features, and the layer was built for 5."),
    "index_out_of_range": ("train(outputs=2)", "A label is 2:"),
    "worker_died": (
        "train(lambda index: os.kill(os.getpid(), signal.SIGKILL), num_workers=1)",
        "The system has killed it",
    ),
    "dtype_mismatch": (
        "train(lambda index: (torch.ones(4).double(), 0))",
        "One is float64, the other float32.",
    ),
    "host_out_of_memory": (
        "class Large(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x.clone()\n"
        "    @staticmethod\n"
        "    def backward(ctx, gradient):\n"
        "        return torch.empty(10**13)\n"
        "def run():\n"
        "    model, large = nn.Linear(4, 3), torch.ones(2**18, 4, requires_grad=True)\n"
        "    loader = DataLoader(Data(lambda index: large[index]), 8)\n"
        "    Large.apply(model(large)).sum().backward()\n"
        "run()",
        "36.38 TiB were asked for in one piece.",
    ),
    "device_mismatch": (
        "nn.Linear(4, 3)(torch.ones(2, 4, device='meta'))",
        "One is on cpu, the other on meta.",
    ),
    "driver_mismatch": ("torch.ones(1).cuda()", ""),
    "too_many_open_files": (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "kept = [open(__file__) for _ in range(40)]",
        "",
    ),
    "rendezvous_failed": (
        "import socket\n"
        "taken = socket.create_server(('127.0.0.1', 0))\n"
        "import torch.distributed as dist\n"
        "dist.TCPStore('127.0.0.1', taken.getsockname()[1], 1, True)",
        "",
    ),
    "backend_missing": (
        "import torch.distributed as dist\n"
        "place = os.path.abspath('met')\n"
        "dist.init_process_group('nccl', f'file://{place}', rank=0, world_size=1)",
        "gloo works on CPUs",
    ),
    "parameters_unused": (
        "import torch.distributed as dist\n"
        "place = os.path.abspath('met')\n"
        "dist.init_process_group('gloo', f'file://{place}', rank=0, world_size=1)\n"
        "layers = nn.ModuleDict({'used': nn.Linear(4, 3), 'idle': nn.Linear(4, 3)})\n"
        "layers.forward = lambda x: layers['used'](x)\n"
        "model = nn.parallel.DistributedDataParallel(layers)\n"
        "for _ in range(2):\n"
        "    model(torch.ones(2, 4)).sum().backward()",
        "Parameters 2, 3 of `model.parameters()` have no gradient on this rank.",
    ),
    "collective_timeout": (
        "import datetime, torch.distributed as dist, torch.multiprocessing as mp\n"
        "wait = datetime.timedelta(seconds=3)\n"
        "def rank(number, file):\n"
        "    dist.init_process_group('gloo', f'file://{file}', rank=number, world_size=2,\n"
        "                            timeout=wait)\n"
        "    if number == 1:\n"
        "        time.sleep(10)\n"
        "        os._exit(0)\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "if __name__ == '__main__':\n"
        "    pid = os.fork()\n"
        "    rank(0 if pid else 1, os.path.abspath('met'))",
        "The time-out is 3 s.",
    ),
}
"""Failure -> how a script dies of it, and what is said of it."""
ADDED = {
    "host_out_of_memory": (
        "`return torch.empty(10**13)`, in the backward pass.",
        "The largest tensors that the lines of the traceback hold: `large` [262144, 4] float32, "
        "4.00 MiB,",
        "The DataLoader's batch_size is 8: with 4, activations take about half",
    ),
    "index_out_of_range": (
        "Labels go from 0 to 2; the model has 2 outputs, for labels from 0 to 1.",
    ),
}
"""Failure -> what the place where the script died adds."""
QUICK = ("shape_mismatch", "worker_died")


@pytest.mark.parametrize(
    "name",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in KINDS],
)
def test_a_script_that_dies_is_explained_below_its_own_traceback(
    name: str, hotlap: Call, tmp_path: Path
) -> None:
    body, said = KINDS[name]
    (tmp_path / "train.py").write_text(f"{HEAD}\n{body}\n")
    ended = hotlap("run", "train.py")
    assert ended.returncode == 1
    assert ended.stdout == ""
    before, found, after = ended.stderr.partition(f"hotlap: {name}: ")
    assert found, ended.stderr
    assert "Traceback (most recent call last)" in before
    assert "Traceback" not in after and "hotlap: " not in after.replace("hotlap: the", "")
    for each in (said, *ADDED.get(name, ())):
        assert each in after
    assert f"`hotlap explain {name}`" in after


@pytest.mark.slow
def test_a_child_that_ends_meanwhile_does_not_end_the_explanation(
    hotlap: Call, tmp_path: Path
) -> None:
    # A handler that raises, as torch's does for a worker, and a child's end at the worst time.
    body = (
        "def handler(number, frame):\n"
        "    raise RuntimeError('a child has ended')\n"
        "class Killed(RuntimeError):\n"
        "    def __str__(self):\n"
        "        os.kill(os.getpid(), signal.SIGCHLD)\n"
        "        return 'DataLoader worker (pid 1) is killed by signal: Killed. '\n"
        "signal.signal(signal.SIGCHLD, handler)\n"
        "raise Killed"
    )
    (tmp_path / "train.py").write_text(f"{HEAD}\nimport os, signal\n{body}\n")
    ended = hotlap("run", "train.py")
    assert ended.returncode == 1
    assert "hotlap: worker_died: " in ended.stderr


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("train(lambda index: {}['label'])", 1),
        ("try:\n    train(features=5)\nexcept RuntimeError:\n    pass", 0),
        ("try:\n    train(features=5)\nexcept RuntimeError:\n    sys.exit(3)", 3),
        ("raise KeyboardInterrupt", 130),
    ],
    ids=["not known", "caught", "own exit code", "ended by Ctrl-C"],
)
@pytest.mark.slow
def test_nothing_is_said_of_what_is_not_known_or_was_caught(
    body: str, code: int, hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}\n{body}\n")
    ended = hotlap("run", "train.py")
    assert ended.returncode == code
    assert "hotlap explain" not in ended.stderr


@pytest.mark.slow
def test_a_script_that_dies_while_it_is_tuned_is_explained(hotlap: Call, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}\ntrain(features=5)\n")
    ended = hotlap("tune", "--budget", "20s", "train.py")
    assert ended.returncode == 1
    assert "Traceback (most recent call last)" in ended.stderr
    assert ended.stderr.count("shape_mismatch: ") == 1


def test_a_recipe_that_dies_is_explained_below_its_own_traceback(
    hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "recipe.py").write_text(
        "import torch, hotlap\n"
        "from torch import nn\n"
        "def loss(model, batch):\n"
        "    return nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
        "def task():\n"
        "    data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.zeros(64).long())\n"
        "    return hotlap.Task(model=lambda: nn.Linear(5, 3), loss=loss, data=data,\n"
        "        optimizer=lambda model: torch.optim.SGD(model.parameters()),\n"
        "        batch_size=8, epochs=1)\n"
    )
    ended = hotlap("train", "recipe.py")
    assert ended.returncode == 1
    assert ended.stderr.partition("Traceback")[2].count("hotlap train: shape_mismatch: ") == 1
    assert ended.stderr.count("shape_mismatch: ") == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV, signal 11. Native code used memory"),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGBUS)",
            "/dev/shm has",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, signal 9.", marks=pytest.mark.slow
        ),
        pytest.param("os.abort()", "SIGABRT, signal 6.", marks=pytest.mark.slow),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGILL)", "SIGILL, signal 4.", marks=pytest.mark.slow
        ),
        # SIGTERM is sent on purpose, and an exit code is no signal.
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", None, marks=pytest.mark.slow),
        pytest.param("sys.exit(139)", None, marks=pytest.mark.slow),
    ],
)
def test_a_script_that_a_signal_ends_is_explained_and_keeps_its_exit_code(
    body: str, said: str | None, hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import os, signal, sys\nimport torch\n{body}\n")
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=False).returncode
    ended = hotlap("run", "train.py")
    assert ended.returncode == (plain if plain >= 0 else 128 - plain)
    assert ended.stderr.count("ended_by_signal: ") == (0 if said is None else 1)
    assert (said or "") in ended.stderr


@pytest.mark.slow
def test_a_script_that_a_signal_ends_while_it_is_tuned_is_explained(
    hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}\ntrain()\nos.kill(os.getpid(), signal.SIGSEGV)")
    ended = hotlap("tune", "--budget", "20s", "train.py")
    assert ended.returncode == 1
    assert "was ended by signal 11 (Segmentation fault)" in ended.stderr
    assert ended.stderr.count("ended_by_signal: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f"{HEAD}\nimport threading\nthread = threading.Thread(target=train, args=[], "
         "kwargs={'features': 5})\nthread.start()\nthread.join()", 0),
        ("raise RuntimeError('mat1 and mat2 shapes cannot be multiplied (2x4 and 5x3)')", 1),
    ],
    ids=["in a thread", "before torch is imported"],
)  # fmt: skip
def test_an_exception_in_a_thread_or_before_torch_is_explained(
    body: str, code: int, hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(body)
    ended = hotlap("run", "train.py")
    assert ended.returncode == code
    before, found, _ = ended.stderr.partition("hotlap: shape_mismatch: ")
    assert found and "Traceback (most recent call last)" in before
    assert ended.stderr.count("shape_mismatch: ") == 1


@pytest.mark.slow
def test_launches_are_synchronous_where_that_is_asked_for(hotlap: Call, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch\nprint(os.environ.get('CUDA_LAUNCH_BLOCKING'))\n"
    )
    assert hotlap("run", "--synchronous", "train.py").stdout == "1\n"
    assert hotlap("run", "train.py").stdout == "None\n"
    dry = hotlap("run", "--synchronous", "--dry", "train.py")
    assert "would run: CUDA_LAUNCH_BLOCKING=1 " in dry.stderr + dry.stdout


RECIPE = """
import torch, hotlap
from torch import nn
def loss(model, batch):
    {before}
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
def task():
    data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.arange(64) % {labels})
    return hotlap.Task(model=lambda: nn.Linear(4, 3), loss=loss, data=data,
        optimizer={optimizer}, batch_size=8, epochs=1)
"""
SGD = "lambda model: torch.optim.SGD(model.parameters())"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "labels", "optimizer", "code", "first", "dies", "said"),
    [
        (
            "torch.empty(10**13)", 3, SGD, 1, "step 1 does not fit", True,
            [
                "step 1 does not fit into the memory of cpu",
                "by the estimate, a step as planned needs about 36.38 TiB of",
                "recipe.py:5, `torch.empty(10**13)`, in the loss function.",
            ],
        ),
        (
            "pass", 10, SGD, 2, "", True,
            ["index_out_of_range: ", "; the model has 3 outputs, for labels from 0 to 2."],
        ),
        (
            "1 / 0", 3, SGD, 1, "raised by your code, at ", True, ["ZeroDivisionError"],
        ),
        (
            "pass", 3, "torch.optim.SGD", 2, "", False,
            ["optimizer is SGD, which raised TypeError when it was called with the model: "],
        ),
    ],
    ids=["out of memory", "label", "another error", "optimizer"],
)  # fmt: skip
def test_a_recipe_that_dies_is_told_where_and_what_it_needs(
    before: str, labels: int, optimizer: str, code: int, first: str, dies: bool,
    said: list[str], hotlap: Call, tmp_path: Path,
) -> None:  # fmt: skip
    text = RECIPE.format(before=before, labels=labels, optimizer=optimizer)
    (tmp_path / "recipe.py").write_text(text)
    ended = hotlap("train", "recipe.py")
    assert ended.returncode == code
    for each in said:
        assert each in ended.stderr, ended.stderr
    assert "bug in hotlap" not in ended.stderr
    traced, found, after = ended.stderr.partition(f"\nhotlap train: {first}")
    assert found, ended.stderr
    if dies:
        assert "recipe.py" in traced.partition("Traceback (most recent call last)")[2]
    assert "Traceback" not in after


@pytest.mark.slow
def test_a_recipe_that_dies_while_it_is_tuned_is_explained_below_its_traceback(
    hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "recipe.py").write_text(
        RECIPE.format(before="pass", labels=3, optimizer=SGD).replace("(4, 3)", "(5, 3)")
    )
    ended = hotlap("tune", "--budget", "20s", "recipe.py")
    assert ended.returncode == 1
    traced, found, after = ended.stderr.partition("\nhotlap tune: `recipe.py`")
    assert found and "Traceback (most recent call last)" in traced, ended.stderr
    assert after.count("hotlap tune: shape_mismatch: ") == 1
    assert ended.stderr.count("shape_mismatch: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", [("train",), ("tune", "--budget", "20s")], ids=" ".join)
def test_a_recipe_that_does_not_fit_gets_one_advice(
    command: tuple[str, ...], hotlap: Call, tmp_path: Path
) -> None:
    text = RECIPE.format(before="torch.empty(10**13)", labels=3, optimizer=SGD)
    # What a loader in a recipe's frame is told of batch sizes contradicts what was tried.
    text = text.replace("def loss(model, batch):", "def loss(model, batch, loader=LOADER):")
    text = text.replace("def loss", "LOADER = torch.utils.data.DataLoader([1, 2], 2)\ndef loss", 1)
    (tmp_path / "recipe.py").write_text(text)
    ended = hotlap(*command, "recipe.py")
    assert ended.returncode == 1
    traced, found, after = ended.stderr.partition(f"\nhotlap {command[0]}: ")
    assert found and "Traceback (most recent call last)" in traced, ended.stderr
    assert "DefaultCPUAllocator" in traced
    assert after.count(f"\nhotlap {command[0]}: host_out_of_memory: ") == 1
    for contradicting in ("batch_size is 2: with 1", "micro_batch(size="):
        assert contradicting not in ended.stderr
    if command[0] == "train":
        assert "Sizes of micro-batches that were tried: 8, 4, 2, 1." in found + after
        assert "neither smaller micro-batches, recompute nor a lower precision" in after
        # The general remedy would name what was just said not to help.
        assert "Use a smaller model, shorter samples" not in ended.stderr
