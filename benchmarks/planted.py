"""Does `hotlap diagnose` find what is planted in scripts, and nothing in clean ones?

    python -m benchmarks planted [--part slow|mistakes|clean] [--only NAME] [--budget 30s]
        [--pairs N] [--steps N] [--out FILE.jsonl] [--resume]

planted/scripts holds training scripts as people write them: each of them slow for one reason, or
with one mistake of learning, or clean; planted/index.toml says which. They are older than the rules
that are to find it, and do not name it. Each is diagnosed as it is.

A finding names what is planted if its rule is one of those that the index lists, or if it points at
a line of the cause. What it promises is compared with what the corrected version in
planted/corrected saves: both train in turns, in fresh processes, and a clock in the process takes
the time between two steps of the optimizer, after the first 20 and a whole number of periods (such
as epochs) apart. Start-up counts in neither.

A mistake must be reported of the script, and not of its corrected version.
"""

import argparse
import importlib.metadata
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.__main__ import Result
from benchmarks.gpu_rows import Rows, read
from benchmarks.planted_index import Planted, read_index
from hotlap.cli.durations import parse_duration
from hotlap.errors import UsageError, unknown_name
from hotlap.host.facts import Host
from hotlap.lab.statistics import paired_ratio

PARTS = {"slow": "slow", "mistakes": "mistake", "clean": "clean"}
"""Part -> kind of its scripts."""
LARGE = 0.1
"""Share of a step from which on a finding on a clean script counts against hotlap."""
_WARM = 20
_PACE = Path(__file__).with_name("planted_pace.py")
_PACE_LIMIT_S = 600.0
_BEYOND_BUDGET_S = 300.0
"""A start, or a step that has begun, is not interrupted by the budget."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; for options see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks planted")
    parser.add_argument("--part", action="append", choices=list(PARTS))
    parser.add_argument("--only", action="append", metavar="NAME", help="a script")
    parser.add_argument("--budget", default="30s", help="of each diagnosis")
    parser.add_argument("--pairs", type=int, default=1 if quick else 3, help="of timed processes")
    parser.add_argument("--steps", type=int, default=50 if quick else 200, help="timed, at least")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--resume", action="store_true", help="leave out what --out holds already")
    args = parser.parse_args(argv)
    try:
        chosen = _chosen(args.part, args.only)
        args.budget = parse_duration(args.budget, "--budget")
        known = _known(args.out, args.resume, chosen)
    except (UsageError, ValueError) as error:
        parser.error(str(error))
    if args.pairs < 1 or args.steps < 1:
        parser.error("--pairs and --steps: 0 or less is not allowed. Allowed: 1 or more.")
    records = []
    for name, planted in chosen.items():
        record = known.get(name)
        if record is None:
            print(f"{name}: {planted.problem or 'clean'}", file=sys.stderr, flush=True)
            record = _measured(planted, args, host)
            if args.out is not None:
                Rows(args.out, planted.kind).add(**record)
        records.append((planted, record))
    return _summed_up(records)


def _chosen(parts: Sequence[str] | None, only: Sequence[str] | None) -> dict[str, Planted]:
    every = read_index()
    for name in only or ():
        if name not in every:
            raise UsageError(unknown_name(name, every, "script"))
    kinds = {PARTS[part] for part in parts or PARTS}
    names = [name for name in only or every if every[name].kind in kinds]
    return {name: every[name] for name in names}


def _known(out: Path | None, resume: bool, chosen: dict[str, Planted]) -> dict[str, dict[str, Any]]:
    """Return what was measured of the same texts, and ended well."""
    if out is None:
        if resume:
            raise UsageError("--resume cannot be used without --out. Add --out FILE.jsonl.")
        return {}
    if out.exists() and not resume:
        raise UsageError(f"{out} is there already. Add --resume, or name another file.")
    return {
        row["name"]: row
        for row in read(out)
        if row.get("name") in chosen
        and row["digest"] == chosen[row["name"]].digest
        and not row["errors"]
    }


def _measured(planted: Planted, args: argparse.Namespace, host: Host) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": planted.name,
        "digest": planted.digest,
        "host": f"{host.cpu}, {host.cores} cores, torch {host.torch}",
        "hotlap": importlib.metadata.version("hotlap"),
        "date": time.strftime("%Y-%m-%d"),
        "budget_s": args.budget,
        "errors": [],
    }
    try:
        record["report"] = _diagnosed(planted.script, args.budget)
        if planted.kind == "mistake":
            record["corrected_report"] = _diagnosed(planted.corrected, args.budget)
        if planted.kind == "slow":
            record["pairs"] = _raced(planted, args.pairs, args.steps)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        # One script that cannot be measured does not take the others with it: the exit code is 1.
        record["errors"].append(str(error))
        print(f"{planted.name}: {error}", file=sys.stderr, flush=True)
    return record


def _diagnosed(script: Path, budget_s: float) -> dict[str, Any]:
    """Return what of the report of `hotlap diagnose` is counted."""
    command = [sys.executable, "-m", "hotlap", "diagnose", "--json"]
    command += ["--budget", f"{budget_s:g}s", script.name]
    began = time.monotonic()
    output = _output(command, script.parent, 2 * budget_s + _BEYOND_BUDGET_S)
    report = json.loads(output)
    mean_ms = report["step_ms"]["mean"]
    return {
        "seconds": round(time.monotonic() - began, 1),
        "step_ms": mean_ms,
        "findings": [
            _short(one) | {"share": one["cost_ms"] / mean_ms} for one in report["findings"]
        ],
        "suspects": [_short(one) for one in report["suspects"]],
        "mistakes": [_short(one) for one in report["mistakes"]],
        "ruled_out": report["ruled_out"],
        "noise_floor": report["noise_floor"],
        "notes": report["notes"],
    }


def _short(one: dict[str, Any]) -> dict[str, Any]:
    return {key: one[key] for key in ("rule", "where", "evidence", "remedy")}


def _output(command: list[str], folder: Path, limit_s: float) -> str:
    """Return what a process printed.

    Raises:
        RuntimeError: it failed.
        subprocess.TimeoutExpired: it took too long; it was ended.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            # hotlap ends its trials when it is told to end.
            process.terminate()
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if process.returncode != 0:
        last = errors.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"`{' '.join(command[1:])}` ended with {process.returncode}: {last[0]}")
    return output


def _raced(planted: Planted, pairs: int, steps: int) -> list[tuple[float, float]]:
    """Return ms per step of the script and of its corrected version, in turns."""
    span = math.ceil(steps / planted.period) * planted.period
    found = []
    for number in range(pairs):
        ways = (planted.script, planted.corrected)
        times = {way: _pace_ms(way, span) for way in (ways if number % 2 == 0 else ways[::-1])}
        found.append((times[planted.script], times[planted.corrected]))
    return found


def _pace_ms(script: Path, span: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds"
        command = [sys.executable, str(_PACE), script.name, str(_WARM), str(_WARM + span)]
        _output([*command, str(file)], script.parent, _PACE_LIMIT_S)
        if not file.exists():
            raise RuntimeError(f"{script} ended before step {_WARM + span}")
        return float(file.read_text()) * 1000 / span


def _summed_up(records: list[tuple[Planted, dict[str, Any]]]) -> Result:
    result = Result()
    whole = [(planted, record) for planted, record in records if not record["errors"]]
    for kind, tell in (("slow", _tell_slow), ("mistake", _tell_mistakes), ("clean", _tell_clean)):
        of_kind = [(planted, record) for planted, record in whole if planted.kind == kind]
        if of_kind:
            tell(of_kind, result)
    failed = [planted.name for planted, record in records if record["errors"]]
    if failed:
        result.notes.append(f"not measured: {', '.join(failed)}")
        result.failed = True
    result.notes += [f"{name}: {value:.3g}" for name, value in result.figures.items()]
    return result


def _tell_slow(records: list[tuple[Planted, dict[str, Any]]], result: Result) -> None:
    first, found, wrong, off = 0, 0, 0, []
    for planted, record in records:
        findings = record["report"]["findings"]
        wrong += len(record["report"]["mistakes"])
        rank = planted.rank(findings)
        saving = _saving(record["pairs"])
        promised = findings[rank - 1]["share"] if rank is not None else None
        first, found = first + (rank == 1), found + (rank is not None)
        if promised is not None:
            off.append(abs(promised / saving - 1))
        result.rows.append(
            {
                "script": planted.name,
                "planted": planted.problem,
                "first finding": _named(findings),
                "its place": rank or _where_else(planted, record["report"]),
                "at its line": _at_line(planted, findings, rank),
                "promised": "" if promised is None else f"{promised:.0%}",
                "realized": f"{saving:.0%}",
                "pairs": len(record["pairs"]),
            }
        )
    result.figures |= {
        "slow scripts": len(records),
        "found first": first / len(records),
        "found at any place": found / len(records),
        "mistakes reported of slow scripts": wrong,
    }
    if off:
        result.figures["median of |promised / realized - 1|"] = median(off)


def _saving(pairs: list[Sequence[float]]) -> float:
    """Return the share of a step that the corrected version saves."""
    planted_ms, corrected_ms = zip(*pairs, strict=True)
    return 1 - 1 / paired_ratio(planted_ms, corrected_ms).median


def _named(found: list[dict[str, Any]]) -> str:
    return f"{found[0]['rule']} at {found[0]['where']}" if found else "none"


def _where_else(planted: Planted, report: dict[str, Any]) -> str:
    return "suspected" if planted.rank(report["suspects"]) is not None else "missed"


def _at_line(planted: Planted, findings: list[dict[str, Any]], rank: int | None) -> str:
    if rank is None:
        return ""
    return "yes" if planted.is_at_cause(findings[rank - 1]["where"]) else "no"


def _tell_mistakes(records: list[tuple[Planted, dict[str, Any]]], result: Result) -> None:
    found, wrong = 0, 0
    for planted, record in records:
        told = record["report"]["mistakes"]
        of_corrected = record["corrected_report"]["mistakes"]
        rank = planted.rank(told)
        found, wrong = found + (rank is not None), wrong + len(of_corrected)
        result.rows.append(
            {
                "script": planted.name,
                "mistake": planted.problem,
                "first report": _named(told),
                "its place": rank or "missed",
                "reported of the corrected one": _named(of_corrected),
            }
        )
    result.figures |= {
        "scripts with a mistake": len(records),
        "mistakes found": found,
        "mistakes reported of corrected scripts": wrong,
    }


def _tell_clean(records: list[tuple[Planted, dict[str, Any]]], result: Result) -> None:
    large, wrong = 0, 0
    for planted, record in records:
        report = record["report"]
        over = [one for one in report["findings"] if one["share"] > LARGE]
        large, wrong = large + len(over), wrong + len(report["mistakes"])
        result.rows.append(
            {
                "clean script": planted.name,
                "first finding": _named(report["findings"]),
                f"above {LARGE:.0%}": ", ".join(f"{x['rule']} {x['share']:.0%}" for x in over),
                "mistakes": _named(report["mistakes"]),
                "ms/step": f"{report['step_ms']:.2f}",
            }
        )
    result.figures |= {
        "clean scripts": len(records),
        f"findings above {LARGE:.0%} on clean scripts": large,
        "mistakes reported of clean scripts": wrong,
    }
