"""A process beside a measurement that keeps one core busy for 30 % of the time, in bursts."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WORK = """
import random, time
while True:
    end = time.perf_counter() + random.expovariate(1 / 0.15)
    while time.perf_counter() < end:
        pass
    time.sleep(random.expovariate(1 / 0.35))
"""


@contextmanager
def busy_neighbor() -> Iterator[None]:
    """Let it run while the block does."""
    process = subprocess.Popen([sys.executable, "-c", _WORK])
    try:
        yield
    finally:
        process.kill()
        process.wait()
