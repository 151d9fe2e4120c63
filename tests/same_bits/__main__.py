"""python -m tests.same_bits write FILE | compare FILE: does a refactoring change any bit?

`write` runs every example, as script and as recipe, under every technique, twice, and notes the
digest of what was learned where both agree. `compare`, in another commit's checkout on the same
host, runs them once and ends with 1 if a digest, the state of a technique or a key of a JSON report
differs. Both want about half an hour; `--only WORD` takes the cases with that word in their name.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import safe_open

from hotlap.host.facts import Host
from hotlap.plan.file import MeasuredOn, PlanFile, PlanVerdict, Speedup
from tests.same_bits.cases import ROOT, Case, cases

_HERE = Path(__file__).parent
_TIMEOUT_S = 600
_HOST = Host.detect()
_NOT_REPEATED = "does not repeat itself"
_STATE = re.compile(r"^hotlap: .*$", re.MULTILINE)
_REPORTS = {
    "env": ("env", "--json"),
    "diagnose": ("diagnose", "--json", "--budget", "20s", "plain.py"),
    "diagnose recipe": ("diagnose", "--json", "--budget", "20s", "recipe.py"),
    "tune": ("tune", "--json", "--budget", "30s", "plain.py"),
    "tune recipe": ("tune", "--json", "--budget", "30s", "recipe.py"),
    "train": ("train", "--json", "recipe.py"),
    "estimate": ("train", "--json", "--estimate", "recipe.py"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.same_bits")
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    wanted = [case for case in cases() if args.only in str(case)]
    reports = [name for name in _REPORTS if args.only in f"json/{name}"]
    if not wanted and not reports:
        parser.error(f"no case has '{args.only}' in its name")
    # The data are then what scikit-learn and Python's own library bring along, on every host.
    os.environ.pop("HOTLAP_DATA", None)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        return _write_or_compare(args, wanted, reports)


def _write_or_compare(args: argparse.Namespace, wanted: list[Case], reports: list[str]) -> int:
    found = dict(_all(wanted, reports, args.jobs))
    if args.what == "write":
        again = dict(_all(wanted, reports, args.jobs))
        for name, result in again.items():
            if found[name] != result:
                print(f"{name}: {_NOT_REPEATED}: {found[name]} {result}", file=sys.stderr)
                found[name] = _NOT_REPEATED
        args.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(_counted(found))
        return 0
    before = json.loads(args.file.read_text())
    differ = [name for name in found if before.get(name) not in (found[name], _NOT_REPEATED)]
    for name in differ:
        print(f"{name}\n  before: {before.get(name)}\n  now:    {found[name]}")
    missing = [] if args.only else sorted(set(before) - set(found))
    print(_counted(found), f"{len(differ)} differ, {len(missing)} missing {missing or ''}")
    return 1 if differ or missing else 0


def _counted(found: dict[str, Any]) -> str:
    digests = sum(1 for result in found.values() if isinstance(result, dict) and result["digest"])
    alike = sum(1 for result in found.values() if result == _NOT_REPEATED)
    return f"{len(found)} cases, {digests} with a digest, {alike} that do not repeat themselves."


def _all(wanted: list[Case], reports: list[str], jobs: int) -> Iterator[tuple[str, Any]]:
    with ThreadPoolExecutor(jobs) as pool:
        begun = [(str(case), pool.submit(_run, case)) for case in wanted]
        begun += [(f"json/{name}", pool.submit(_keys, name)) for name in reports]
        for number, (name, result) in enumerate(begun, 1):
            begin = time.monotonic()
            value = result.result()
            words = f"[{number} of {len(begun)}] {name}: waited {time.monotonic() - begin:.0f} s"
            print(words, file=sys.stderr, flush=True)
            yield name, value


def _run(case: Case) -> dict[str, Any]:
    """Return what a run learned, and what is said of its techniques."""
    folder = Path(tempfile.mkdtemp(prefix="same-bits-"))
    try:
        given, plan = case.plan(), ()
        if given is not None:
            # As if it had been tuned here: of another host's plan only a part is used.
            on = MeasuredOn(_HOST.cpu, _HOST.torch or "")
            PlanFile(given, on, PlanVerdict("rounding", "", 0), Speedup(1, 1, 1)).write(
                folder / "plan.toml"
            )
            plan = ("--plan", str(folder / "plan.toml"))
        return _script(case, folder, plan) if case.kind == "script" else _recipe(case, folder, plan)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _script(case: Case, folder: Path, plan: Sequence[str]) -> dict[str, Any]:
    out = folder / "digest"
    inside = [str(case.steps), str(out), str(case.folder / "plain.py"), *case.arguments]
    # In a folder of its own: what one run saves there, the next one would resume from.
    done = _hotlap(["run", *plan, str(_HERE / "script.py"), *inside], folder)
    said = _STATE.findall(done.stderr)
    digest = out.read_text() if out.exists() else None
    return {"code": done.returncode, "digest": digest, "said": [_masked(one) for one in said]}


def _recipe(case: Case, folder: Path, plan: Sequence[str]) -> dict[str, Any]:
    also = case.kind if case.kind != "recipe" else ""
    inside = {"STEPS": str(case.steps), "FOLDER": str(case.folder), "ALSO": also}
    saves = ["--keep", "5", "--save-every", f"{case.steps // 2}steps"]
    words = ["train", "--json", *plan, str(_HERE / "recipe.py"), *saves, *case.arguments]
    done = _hotlap([*words, "--run-dir", str(folder / "run")], case.folder, inside)
    if done.returncode == 0 and also == "resumed":
        for last in (folder / "run" / "ckpt").glob(f"step-*{case.steps}"):
            shutil.rmtree(last)
        words += ["--run-dir", str(folder / "run"), "--resume", "auto"]
        done = _hotlap(words, case.folder, inside)
    if done.returncode != 0:
        return {"code": done.returncode, "digest": None, "said": done.stderr.splitlines()[:1]}
    told = json.loads(done.stdout)
    said = [f"{row['name']} {row['state']}" for row in told["techniques"]]
    losses = [(epoch["loss"], epoch["held_out"]) for epoch in told["epochs"]]
    digest = hashlib.sha256(json.dumps(losses).encode())
    newest = max((folder / "run" / "ckpt").glob("step-*"))
    for path in sorted(newest.glob("*.safetensors")):
        with safe_open(path, framework="np") as tensors:
            for name in sorted(tensors.keys()):
                part = tensors.get_slice(name)
                digest.update(repr((path.name, name, part.get_shape(), part.get_dtype())).encode())
        digest.update(_content(path))
    return {"code": 0, "digest": digest.hexdigest(), "said": said, "at": newest.name}


def _content(path: Path) -> bytes:
    """Return the bytes of the tensors of a file, which lie behind its header."""
    raw = path.read_bytes()
    return raw[8 + int.from_bytes(raw[:8], "little") :]


def _keys(name: str) -> dict[str, Any]:
    """Return the keys of a report, nested ones with their path; values differ from run to run."""
    done = _hotlap(_REPORTS[name], ROOT / "examples" / "two_class")
    keys = sorted(set(_paths(json.loads(done.stdout)))) if done.returncode == 0 else done.stderr
    return {"code": done.returncode, "digest": None, "keys": keys}


def _paths(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inside in value.items():
            yield f"{above}/{key}"
            yield from _paths(inside, f"{above}/{key}")
    elif isinstance(value, list):
        for inside in value:
            yield from _paths(inside, f"{above}[]")


def _masked(text: str) -> str:
    """Return a line without paths and figures: times and sizes differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "N", re.sub(r"plan \w+|/\S+", "", text))


def _hotlap(
    words: Sequence[str | Path], folder: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **fixed, **(more or {})}
    return subprocess.run(
        [sys.executable, "-m", "hotlap", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )


if __name__ == "__main__":
    raise SystemExit(main())
