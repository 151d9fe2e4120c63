"""The tests marked gpu: how many ran, which failed, and which fail only because a warning is an
error there."""

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu_turns import Sizes

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"mark\.gpu\b")


def files() -> list[str]:
    """Return the files that hold tests marked gpu."""
    return sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if _MARK.search(path.read_text())
    )


def suite(sizes: Sizes) -> None:
    """Run them, and once more, with warnings that are only warnings, those that failed.

    Without a CUDA device the fake device's tests run in their place, to see that it works.

    Raises:
        RuntimeError: no test ran.
    """
    chosen = ["-m", "gpu"] if sizes.is_cuda else ["-k", "fake and (rows or graph)"]
    ran = _pass("junit", chosen, sizes)
    if ran["failed"] and sizes.left_s() > 20:
        _pass("junit-warnings", [*ran["failed"], "-W", "default"], sizes)
    if not ran["ran"]:
        raise RuntimeError("no test ran")


def _pass(name: str, chosen: list[str], sizes: Sizes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = (sizes.out or Path(folder)) / f"{name}.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
        argv += [f"--junitxml={path}", "-o", "junit_family=xunit1"]
        # Where it is installed it warns of xdist, and a warning is an error here.
        argv += ["-p", "no:benchmark", "-p", "no:randomly"]
        if importlib.util.find_spec("xdist") is not None:
            argv += ["-n", "4" if sizes.is_cuda else "0"]
        # Names of tests hold their file.
        argv += chosen if any("::" in text for text in chosen) else [*files(), *chosen]
        try:
            subprocess.run(
                argv, cwd=ROOT, stdout=sys.stderr, timeout=min(3600, max(10, sizes.left_s() - 5))
            )
        except subprocess.TimeoutExpired:
            sizes.rows.add(which=name, stopped="the tests took longer than there was time")
            return {"ran": 0, "failed": []}
        return _counted(path, name, sizes)


def _counted(path: Path, name: str, sizes: Sizes) -> dict[str, Any]:
    ran, skipped, failed, broken = 0, 0, [], []
    cases = ElementTree.parse(path).iter("testcase") if path.is_file() else ()
    for case in cases:
        told = {child.tag: child for child in case}
        file = case.get("file") or f"{(case.get('classname') or '').replace('.', '/')}.py"
        where = f"{file}::{case.get('name')}"
        if "skipped" in told:
            skipped += 1
            continue
        problem = told.get("failure", told.get("error"))
        if problem is None:
            ran += 1
            continue
        said = (problem.get("message") or "").splitlines()
        is_broken = "error" in told and not case.get("classname", "").strip()
        broken.append(where) if is_broken else failed.append(where)
        ran += not is_broken
        sizes.rows.add(which=name, test=where, failed=said[0] if said else "")
    sizes.rows.add(
        which=name, ran=ran, skipped=skipped, failures=len(failed), not_collected=len(broken)
    )
    return {"ran": ran, "failed": failed}


PARTS = {"tests": suite}
