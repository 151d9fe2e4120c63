"""Ray as an executor of searches, and hotlap as a trainable of Ray Tune: on a cluster made here."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import hotlap.ray
from hotlap import cli
from hotlap.errors import UsageError
from hotlap.search.executors import parse_resources
from hotlap.search.job_order import Order
from hotlap.search.journal import read
from hotlap.search.on_ray import RayWorkers, check_resources, connect
from hotlap.search.state import Job, Outcome
from hotlap.search.study import JOURNAL, read_study

RECIPE = Path(__file__).with_name("searched_recipe.py")


@pytest.mark.parametrize("text", ["cpu", "cpu=x", "tpu=1", "cpu=-1", "cpu=nan"])
def test_wrong_resources_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["search", str(RECIPE), "--engine", "ray", "--resources", text]
    assert cli.main(argv) == 2
    assert "Expected: cpu=NUMBER,gpu=NUMBER" in capsys.readouterr().err
    assert parse_resources("cpu=2, gpu=0.5") == {"cpu": 2.0, "gpu": 0.5}
    assert cli.main(["search", str(RECIPE), "--resources", "cpu=2"]) == 2
    assert "works only with --engine ray" in capsys.readouterr().err


def test_without_ray_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert cli.main(["search", str(RECIPE), "--engine", "ray", "--run-dir", "s"]) == 2
    assert "pip install 'ray[tune]'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


class Connected:
    """A Ray that finds no cluster, or one of some machines."""

    def __init__(self, *machines: tuple[float, float], error: Exception | None = None) -> None:
        self.machines, self.error, self.ended = machines, error, 0

    def init(self, **_: Any) -> None:
        if self.error is not None:
            raise self.error

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"Alive": False, "Resources": {"CPU": 1000.0, "GPU": 8.0}}
        given = [{"CPU": c, **({"GPU": g} if g else {})} for c, g in self.machines]
        return [gone, *({"Alive": True, "Resources": each} for each in given)]

    def shutdown(self) -> None:
        self.ended += 1


@pytest.fixture
def a_port() -> Iterator[int]:
    """Give a port at which something listens that is no Ray."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:PORT", "ray://127.0.0.1:PORT"])
def test_without_a_cluster_only_a_message_is_printed(
    address: str,
    a_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = address.replace("PORT", str(a_port))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "7")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", Connected(error=ConnectionError("no instance")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    argv = ["search", str(RECIPE), "--engine", "ray", "--address", address, "--run-dir", "s"]
    assert cli.main(argv) == 2
    printed = capsys.readouterr().err
    assert f"no Ray cluster was found at --address {address}. Start one" in printed
    assert "Traceback" not in printed and "no instance" not in printed
    assert os.environ["RAY_NUM_REDIS_GET_RETRIES"] == "7"
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("address", "tries"), [("auto", "2"), ("local", None)])
def test_ray_does_not_try_for_ever(
    address: str, tries: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"RAY_USAGE_STATS_ENABLED": "0"})
    monkeypatch.setitem(sys.modules, "ray", Connected((2, 0)))
    connect(address)
    assert os.environ.get("RAY_NUM_REDIS_GET_RETRIES") == tries


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:PORT", "cannot be reached: .*Expected: HOST:PORT of a Ray cluster"),
        ("ray://[::1]:PORT", "cannot be reached: "),
        ("nohost", "is not valid. Expected: HOST:PORT, `auto` or `local`"),
        ("nohost:x", "is not valid"),
        ("nohost:99999", "is not valid"),
    ],
)
def test_an_address_where_nothing_listens_is_refused_before_ray_tries(
    address: str, words: str, variable: bool, a_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    address = address.replace("PORT", str(port))
    monkeypatch.setitem(sys.modules, "ray", Connected((2, 0)))
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "7")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = f"--address {address}"
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", address)
        given = f"--address auto with RAY_ADDRESS={address}"
    with pytest.raises(UsageError, match=words) as raised:
        connect("auto" if variable else address)
    assert str(raised.value).startswith(given)
    # A variable does not count where an address was given.
    assert connect(f"127.0.0.1:{a_port}") is sys.modules["ray"]


@pytest.mark.parametrize(
    ("machines", "resources", "fits"),
    [
        (((2, 0),), "cpu=2", True),
        (((2, 0),), "cpu=99", False),
        (((2, 0),), "gpu=1", False),
        (((0, 0), (8, 4)), "cpu=8,gpu=0.5", True),
        # One has the cores, and the other one the accelerator.
        (((64, 0), (8, 4)), "cpu=16,gpu=1", False),
    ],
)
def test_resources_that_no_machine_has_are_refused_or_waited_for_with_a_word(
    machines: Any, resources: str, fits: bool
) -> None:
    said: list[str] = []
    ray, wanted = Connected(*machines), parse_resources(resources)
    check_resources(ray, wanted, "auto", said.append)
    assert len(said) == (not fits) and not ray.ended
    with nullcontext() if fits else pytest.raises(UsageError, match="no trial could start"):
        check_resources(ray, wanted, "local", said.append)
    assert ray.ended == (not fits)
    if resources == "cpu=99":
        assert said[0].startswith("trials wait: no machine of the Ray cluster has --resources cpu=")
        assert "(the largest: cpu=2,gpu=0)" in said[0]


def test_a_search_that_no_machine_can_do_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", Connected((2, 0)))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    argv = ["search", str(RECIPE), "--engine", "ray", "--address", "local", "--run-dir", "s"]
    assert cli.main([*argv, "--resources", "cpu=99"]) == 2
    assert "--resources cpu=99,gpu=0 is more than this machine" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


class Lost(Exception):
    """What Ray raises of a task whose machine was lost."""


class Scripted:
    """Ray's functions that are used, with a script of which tasks are lost."""

    exceptions = SimpleNamespace(RayError=Lost)

    def __init__(self, lost: int) -> None:
        self.lost, self.cancelled = lost, 0
        self.submitted: list[tuple[Job, Order]] = []

    def remote(self, **_: Any) -> Any:
        return lambda _: SimpleNamespace(remote=self._submit)

    def _submit(self, job: Job, order: Order) -> int:
        assert not (Path(order.folder) / "ckpt" / "LOCK").exists()
        self.submitted.append((job, order))
        return len(self.submitted)

    def wait(self, references: list[Any], **_: Any) -> Any:
        return references[:1], references[1:]

    def get(self, number: int) -> dict[str, Any]:
        job, order = self.submitted[number - 1]
        # The process on the lost machine had the trial's folder.
        root = Path(order.folder) / "ckpt"
        root.mkdir(parents=True, exist_ok=True)
        (root / "LOCK").touch()
        if number <= self.lost:
            raise Lost("the node died")
        return Outcome(job, "done", step=order.until, value=1.0).to_json()

    def cancel(self, _: Any, *, force: bool) -> None:
        self.cancelled += force

    def shutdown(self) -> None: ...


@pytest.mark.parametrize(("lost", "state"), [(0, "done"), (2, "done"), (3, "crash")])
def test_a_lost_task_is_submitted_again_a_few_times(lost: int, state: str, tmp_path: Path) -> None:
    ray = Scripted(lost)
    workers = RayWorkers(ray, 1, {"cpu": 1, "gpu": 0}, str(tmp_path))
    folder = str(tmp_path / "0000")
    order = Order("recipe.py", (), folder, 10, 0, ("loss",), {}, None, 1)
    workers.start(Job(0, 0), order)
    assert workers.free == 0
    (outcome,) = workers.wait()
    assert outcome.state == state and len(ray.submitted) == min(lost + 1, 3)
    assert workers.free == 1 and workers.wait() == []
    workers.start(Job(1, 0), order)
    workers.close()
    assert ray.cancelled == 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    pytest.importorskip("ray", reason="needs ray")
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "include_dashboard": False,
            "object_store_memory": 80 * 2**20,
        },
    )
    try:
        yield made
    finally:
        made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lost_machine_costs_no_trial(cluster: Any, tmp_path: Path) -> None:
    lost = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    shutil.copy(RECIPE, tmp_path / "recipe.py")
    argv = ["recipe.py", "--engine", "ray", "--address", cluster.address, "--workers", "2"]
    argv += ["--trials", "4", "--method", "random", "--seeds", "0", "--wait-s", "0.05"]
    with open(tmp_path / "out", "w") as out, open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hotlap", "search", *argv, "--json"],
            cwd=tmp_path,
            stdout=out,
            stderr=log,
        )
    folder = tmp_path / "recipe.search"
    until = time.monotonic() + 200
    # Two trials run, one on each machine, and both have a checkpoint to continue from.
    while len(list(folder.glob("trials/*/ckpt/step-*/MANIFEST.json"))) < 2:
        assert time.monotonic() < until and process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    cluster.remove_node(lost, allow_graceful=False)
    assert process.wait(300) == 0, (tmp_path / "log").read_text()
    found = json.loads((tmp_path / "out").read_text())
    assert [trial["state"] for trial in found["trials"]] == ["done"] * 4
    assert [trial["step"] for trial in found["trials"]] == [24] * 4
    logs = [path.read_text() for path in sorted(folder.glob("trials/*/log.txt"))]
    assert sum("resuming from" in text for text in logs) == 1
    jobs = [record for record in read(folder / JOURNAL)[0] if record["kind"] == "job"]
    assert len(jobs) == 4 and not read_study(folder).open


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_recipe_is_a_trainable_of_ray_tune(cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "tuned.py"
    script.write_text(f"""
import json, sys
import ray
from ray import tune
import hotlap

ray.init(address={cluster.address!r}, log_to_driver=False)
tuner = tune.Tuner(
    hotlap.ray.trainable({str(RECIPE)!r}, arguments=["--epochs", "4"]),
    param_space={{"lr": tune.grid_search([0.5, 1e-4, 2e-4])}},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        scheduler=tune.schedulers.ASHAScheduler(grace_period=1, max_t=4, reduction_factor=2),
    ),
    run_config=tune.RunConfig(storage_path={str(tmp_path / "results")!r}, verbose=1),
)
found = tuner.fit()
best = found.get_best_result()
with best.checkpoint.as_directory() as folder:
    import os
    steps = sorted(os.listdir(os.path.join(folder, "ckpt")))
print(json.dumps({{"lr": best.config["lr"], "accuracy": best.metrics["accuracy"],
                  "epochs": [r.metrics["epoch"] for r in found], "steps": steps}}))
""")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["lr"] == 0.5 and found["accuracy"] > 0.8
    assert max(found["epochs"]) == 4
    # The checkpoint that is reported with an epoch holds that epoch.
    assert f"step-{4 * 8:012}" in found["steps"]


def test_a_trainable_reads_its_own_command_line_and_takes_up_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "trained.py"
    recipe.write_text(
        "import sys\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'seen')!r}).write_text(repr(sys.argv))\n" + RECIPE.read_text()
    )
    trial, kept = tmp_path / "trial", tmp_path / "kept"
    kept.mkdir()
    (kept / "note").write_text("whole")
    (kept / "LOCK").write_text("of another process")
    # What a process left that was killed while it copied.
    (trial / "run.partial").mkdir(parents=True)
    (trial / "run.partial" / "half").write_text("")
    reported: list[dict[str, Any]] = []
    given = SimpleNamespace(as_directory=lambda: nullcontext(str(kept)))
    tune: Any = ModuleType("ray.tune")
    tune.get_context = lambda: SimpleNamespace(get_trial_dir=lambda: str(trial))
    tune.get_checkpoint = lambda: given
    tune.Checkpoint = SimpleNamespace(from_directory=Path)
    tune.report = lambda measured, checkpoint: reported.append(measured)
    monkeypatch.setitem(sys.modules, "ray.tune", tune)
    monkeypatch.setattr(sys, "argv", ["default_worker.py", "--node-ip-address=1.2.3.4"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    hotlap.ray.trainable(recipe, arguments=["--epochs", "1"], device="cpu")({"lr": 0.5})
    words = [str(recipe), "--epochs", "1", "--lr", "0.5"]
    assert (tmp_path / "seen").read_text() == repr(words)
    assert [row["epoch"] for row in reported] == [1]
    assert sorted(path.name for path in trial.iterdir()) == ["run"]
    assert (trial / "run" / "note").read_text() == "whole"
    assert not (trial / "run" / "half").exists()


def test_arguments_are_words_and_no_string() -> None:
    with pytest.raises(UsageError, match="one string for each word"):
        hotlap.ray.trainable(RECIPE, arguments="--epochs 3")
