"""One of several ranks: trains, and prints the threads of gloo that are left."""

import glob
from pathlib import Path

import hotlap
from tests.distributed.cases import exact


def gloo_threads() -> list[str]:
    """Return the names of this process's threads that are gloo's."""
    names = [Path(each).read_text().strip() for each in glob.glob("/proc/self/task/*/comm")]
    return sorted(name for name in names if "gloo" in name)


if __name__ == "__main__":
    seen: set[str] = set()
    hotlap.train(exact(epochs=1), device="cpu", progress=lambda _: seen.update(gloo_threads()))
    print("while it trained:", len(seen) > 0, "left:", gloo_threads())
