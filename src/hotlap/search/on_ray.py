"""`RayWorkers`: the jobs of a search as tasks of a Ray cluster, one task for each job. No torch.

Ray finds a free machine and says when one is lost; what is started, stopped and continued is
hotlap's decision, as with processes of this machine. The folder of the search must be on a file
system that all machines have.
"""

import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hotlap.checkpoint.lock import NAME as LOCK
from hotlap.errors import StorageError, UsageError
from hotlap.search.job_order import Order
from hotlap.search.local import LocalWorkers
from hotlap.search.state import Job, Outcome

_ATTEMPTS = 3
"""Times that a job is started whose machine was lost."""
_WAIT_S = 0.5
_CLOSE_S = 10.0
_ANSWER_S = 10.0
"""Within which a cluster must accept a connection."""
_TRIES = 2
"""Of Ray to get an answer there, of about 40 s each; its own limit is 20."""
_MOST_SHOWN = 3


def connect(address: str) -> Any:
    """Connect to a cluster, and return the package.

    Args:
        address: `HOST:PORT`, `auto` for the cluster of this machine, `local` to start one.

    Raises:
        UsageError: Ray is not installed, or there is no cluster that answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address != "local":
        # Read when Ray is imported.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(_TRIES))
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise UsageError(
            "--engine ray needs the package ray, which is not installed. Install it with `pip "
            "install 'ray[tune]'` (the extra `ray`), or use --engine local."
        ) from error
    _check_address(address)
    own = {k: v for k, v in os.environ.items() if k.startswith("HOTLAP_")}
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": own} if own else None,
        )
    except ConnectionError:
        # Without the cause: its traceback, which is Ray's own, says no more.
        raise UsageError(
            f"no Ray cluster was found at --address {address}. Start one with `ray start --head`, "
            "or use --address local."
        ) from None
    return ray


def _check_address(address: str) -> None:
    """Refuse an address where nothing listens: Ray tries for minutes, and says why in its logs."""
    given = f"--address {address}"
    if address == "auto" and os.environ.get("RAY_ADDRESS"):
        address = os.environ["RAY_ADDRESS"]
        given = f"--address auto with RAY_ADDRESS={address}"
    place = address.removeprefix("ray://")
    if place in ("auto", "local") or "://" in place:
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise UsageError(f"{given} is not valid. Expected: HOST:PORT, `auto` or `local`.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        raise UsageError(
            f"{given} cannot be reached: {error.strerror or error}. Expected: HOST:PORT of a Ray "
            "cluster that runs, as `ray start --head` prints it. Check the address, or use "
            "--address local."
        ) from None


def check_resources(
    ray: Any, resources: Mapping[str, float], address: str, say: Callable[[str], None]
) -> None:
    """Refuse what no machine has, or say so where another machine may still join.

    Args:
        ray: the package, connected.
        resources: of each task, `cpu` and `gpu`.
        address: that was connected to; a cluster of our own (`local`) gets no other machine.
        say: prints a line.

    Raises:
        UsageError: no task could ever start.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    machines = sorted({(node.get("GPU", 0.0), node.get("CPU", 0.0)) for node in nodes})
    if any(cpu >= resources["cpu"] and gpu >= resources["gpu"] for gpu, cpu in machines):
        return
    wanted = f"cpu={resources['cpu']:g},gpu={resources['gpu']:g}"
    have = " or ".join(f"cpu={cpu:g},gpu={gpu:g}" for gpu, cpu in machines[-_MOST_SHOWN:])
    if address == "local":
        ray.shutdown()
        raise UsageError(
            f"--resources {wanted} is more than this machine has, {have}, so no trial could start. "
            "Reduce --resources, or pass --address HOST:PORT of a Ray cluster with a machine that "
            "has as much."
        )
    say(
        f"trials wait: no machine of the Ray cluster has --resources {wanted} now (the largest: "
        f"{have}); they start once one with it joins"
    )


def do(job: Job, order: Order) -> dict[str, Any]:
    """Do a job in a process of its own, and return the outcome; called on some machine.

    That process ends with this one, as on one machine.
    """
    worker = LocalWorkers(1)
    try:
        worker.start(job, order)
        return worker.wait()[0].to_json()
    except UsageError as error:
        return {"usage": str(error)}
    except StorageError as error:
        return {"storage": str(error)}
    finally:
        worker.close()


class RayWorkers:
    """Tasks of a cluster.

    Args:
        ray: the package, connected.
        count: tasks at a time.
        resources: of each task, `cpu` and `gpu`.
        cwd: folder that relative paths of recipes begin in.
    """

    def __init__(self, ray: Any, count: int, resources: Mapping[str, float], cwd: str) -> None:
        self._ray, self._count, self._cwd = ray, count, cwd
        self._task = ray.remote(
            num_cpus=resources["cpu"], num_gpus=resources["gpu"], max_retries=0
        )(do)
        self._running: dict[Any, tuple[Job, Order, int]] = {}
        """Reference of a task -> its job, and the attempts so far."""

    @property
    def free(self) -> int:
        """How many jobs can be started now."""
        return self._count - len(self._running)

    def start(self, job: Job, order: Order) -> Mapping[str, Any]:
        """Submit a job; its lease names no process: Ray ends the tasks of a search that died."""
        order = replace(
            order,
            recipe=os.path.abspath(order.recipe),
            folder=os.path.abspath(order.folder),
            cwd=self._cwd,
        )
        self._submit(job, order, 1)
        return {"engine": "ray"}

    def _submit(self, job: Job, order: Order, attempt: int) -> None:
        # Of a task that was lost: other machines cannot see that its process has ended.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(order.folder, "ckpt", LOCK))
        self._running[self._task.remote(job, order)] = job, order, attempt

    def wait(self) -> list[Outcome]:
        """Wait until a job has ended, and return the outcomes; none if nothing is running.

        Raises:
            UsageError: the search asks for what the recipe does not give.
            StorageError: a trial could not be saved.
        """
        while self._running:
            ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_WAIT_S)
            found = [outcome for each in ended if (outcome := self._outcome(each)) is not None]
            if found:
                return found
        return []

    def _outcome(self, ended: Any) -> Outcome | None:
        """Return the outcome of a task; None if it was lost, and is submitted again."""
        job, order, attempt = self._running.pop(ended)
        try:
            told = self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            if attempt < _ATTEMPTS:
                # It continues from its checkpoint.
                self._submit(job, order, attempt + 1)
                return None
            last = (str(error).strip() or type(error).__name__).splitlines()[-1]
            return Outcome(job, "crash", error=f"lost {attempt} times on the cluster: {last}")
        if "usage" in told:
            raise UsageError(told["usage"])
        if "storage" in told:
            raise StorageError(told["storage"])
        return Outcome.from_json(told)

    def close(self) -> None:
        """End all tasks, and leave the cluster."""
        running = list(self._running)
        for each in running:
            self._ray.cancel(each, force=True)
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=_CLOSE_S)
        self._running.clear()
        self._ray.shutdown()
