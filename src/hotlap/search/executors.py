"""Where the jobs of a search are done: `--engine`, `--address` and `--resources`. No torch."""

import os
from collections.abc import Callable

from hotlap.errors import UnknownName, UsageError, unknown_name
from hotlap.search.local import Executor, LocalWorkers

ENGINES = ("local", "ray")


def executor_of(
    engine: str,
    workers: int,
    address: str,
    resources: str | None,
    say: Callable[[str], None],
) -> Executor:
    """Return what does the jobs.

    Args:
        engine: `local` or `ray`.
        workers: jobs at a time.
        address: of a Ray cluster, see `hotlap.search.on_ray.connect`.
        resources: of each job there, as in `cpu=2,gpu=0.5`.
        say: prints a line.

    Raises:
        UsageError: Ray is not installed, or no cluster was found, or it cannot do any job.
    """
    if engine == "local":
        return LocalWorkers(workers)
    from hotlap.search.on_ray import RayWorkers, check_resources, connect

    wanted = parse_resources(resources)
    ray = connect(address)
    check_resources(ray, wanted, address, say)
    return RayWorkers(ray, workers, wanted, os.getcwd())


def check_device(engine: str, device: str | None) -> None:
    """Refuse a device on which every trial would fail; those of a cluster are not known here.

    Raises:
        UsageError: there is none of that name.
    """
    if engine == "local" and device is not None:
        from hotlap.device.accelerator import device_of

        device_of(device)


def threads_of(engine: str, resources: str | None) -> int | None:
    """Return the threads of each trial, None for the cores divided by the workers.

    Raises:
        UnknownName: there is no such engine.
        UsageError: the resources are none, or were given without `--engine ray`.
    """
    if engine not in ENGINES:
        raise UnknownName(unknown_name(engine, ENGINES, "--engine"))
    if engine == "ray":
        return max(1, int(parse_resources(resources)["cpu"]))
    if resources is not None:
        raise UsageError(
            f"--resources {resources} works only with --engine ray. Add --engine ray, or remove "
            "--resources."
        )
    return None


def parse_resources(text: str | None) -> dict[str, float]:
    """Return what `cpu=2,gpu=0.5` says.

    Raises:
        UsageError: it says something else.
    """
    found = {"cpu": 1.0, "gpu": 0.0}
    for part in [] if text is None else text.split(","):
        name, _, number = part.strip().partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if name not in found or not 0 <= value < 1e6:
            raise UsageError(
                f"--resources '{text}' is not valid. Expected: cpu=NUMBER,gpu=NUMBER, each number "
                "0 or more, as in --resources cpu=2,gpu=0.5."
            )
        found[name] = value
    return found
