"""One document of each kind, as its command prints it, and what its page must show of it."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.cli.page import signed
from hotlap.diagnosis.findings import Diagnosis, Mistake
from hotlap.diagnosis.memory import MemoryDiagnosis
from hotlap.host.facts import Host
from hotlap.lab.check import Check
from hotlap.lab.coverage import Limit
from hotlap.lab.curves import loss_curves
from hotlap.plan import Plan
from hotlap.report import jsonout
from hotlap.report.page.sources import document_of
from hotlap.tuning.checking import PlanComparison
from tests.report.test_diagnosis import FOUND as DIAGNOSIS
from tests.report.test_memory_page import TRACE as MEMORY
from tests.report.test_training import DONE as TRAINING
from tests.report.test_tuning import FOUND as TUNING
from tests.report.test_tuning import VERDICT, without_gain

HOST = Host(cpu="a CPU", cores=2, memory_bytes=8 * 2**30, torch="2.13.0", python="3.11.2")
MISTAKE = Mistake("unscaled_input", "train.py:7", "pixels reach 255", "divide by 255")
PROVEN = replace(
    VERDICT,
    checks=(
        Check("batches", "passed", "343 batches have equal digests"),
        Check("evaluation", "partial", "no evaluation within the horizon"),
    ),
    covers={"steps": 343, "evaluations": 0, "schedule": False},
    limits=(Limit("one update", 3.4e-4, "of its norm"), Limit("batches", 0.0, "")),
    not_checked=("everything after step 343",),
    curves=loss_curves([2.5 / (1 + k) for k in range(64)], [2.6 / (1 + k) for k in range(64)]),
)


def read(kind: str, data: dict[str, Any], command: str) -> dict[str, Any]:
    """Return a document as it is read from the file that a command wrote."""
    tokens = ["train.py", "--epochs", "10"]
    return json.loads(jsonout.document(signed(kind, data, HOST, tokens, command)))


def diagnosis(found: Diagnosis = DIAGNOSIS) -> dict[str, Any]:
    return read("diagnosis", replace(found, mistakes=(MISTAKE,)).to_json(), "diagnose")


def tuning() -> dict[str, Any]:
    phases = {"data": 0.111, "forward": 0.7, "backward": 0.6, "optimizer": 0.3, "other": 0.0}
    found = replace(TUNING, verdict=PROVEN, live=replace(TUNING.speedup, median=2.36))
    found = replace(
        found, fresh=TUNING.speedup, best_phases=phases, not_tried=("threads(count=2)",)
    )
    more = {"use": "hotlap run --plan auto train.py", "plan_file": "train.plan.toml"}
    return read("tuning", {**found.to_json(), **more}, "tune")


def tuning_without_gain() -> dict[str, Any]:
    return read("tuning", without_gain("could_not_tell").to_json(), "tune")


def training() -> dict[str, Any]:
    return read("training", {"script": "recipe.py --lr 0.1", **TRAINING.to_json()}, "train")


def memory() -> dict[str, Any]:
    return read("memory", MemoryDiagnosis("train.py", replace(MEMORY), ()).to_json(), "diagnose")


def verdict() -> dict[str, Any]:
    plans = (Plan(), Plan({"autocast": {"dtype": "bf16"}}))
    applied = [{"name": "autocast", "state": "applied", "why": "in 3 regions"}]
    return read("verdict", PlanComparison("train.py", plans, PROVEN, applied).to_json(), "verify")


def story() -> dict[str, Any]:
    runs = [{"name": "plain", "seconds": 20.25, "last_line": ["epoch 3: loss 0.321"]}]
    return read("demo", {"diagnosis": diagnosis(), "tuning": tuning(), "runs": runs}, "demo")


def search(verdict: str = "better") -> dict[str, Any]:
    """Return what `hotlap search --json` prints: four of sixteen trials continue, one fails."""
    trials = [trial(number) for number in range(16)]
    trials[5] |= {"state": "nan", "value": None, "rungs": {}, "error": "the loss is not finite"}
    best = trials[11] | {"seeds": [0.21, 0.22, 0.23]}
    trials[11] = best
    gain = {"better": (0.11, 0.31), "same": (-0.04, 0.46), "worse": (-0.4, -0.02)}[verdict]
    comparison = {"verdict": verdict, "gain": 0.205, "low": gain[0], "high": gain[1], "seeds": 3}
    data = {
        "search": {
            "recipe": "recipe.py",
            "args": ["--epochs", "3"],
            "space": {
                "lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
                "width": {"kind": "choice", "values": [64, 128]},
            },
            "defaults": {"lr": 0.001, "width": 64},
            "rungs": [100, 300],
            "method": "asha",
            "reduction": 3,
            "objective": "min:loss",
            "seed": 0,
            "plan": {"resident": {}},
        },
        "trials": trials,
        "best": best,
        "command": "hotlap train recipe.py --epochs 3 --lr 0.0131 --width 128",
        "repeated": [0, 11],
        "comparison": comparison,
        "steps": 2400,
        "full_steps": 4800,
        "repeat_steps": 1800,
        "stopped_early": 11,
        "failures": {"nan": 1},
    }
    return read("search", data, "search")


def search_with_front() -> dict[str, Any]:
    """Return what a search with two objectives prints: two trials are on the front."""
    document = search()
    document["search"]["more"] = ["min:seconds"]
    for each in document["trials"]:
        each["seconds"] += 5.0 * (each["number"] == 11)
        each["values"] = {"loss": each["value"], "seconds": each["seconds"]}
    same = {"verdict": "same", "gain": -1.0, "low": -3.0, "high": 1.0, "seeds": 3}
    document["front"] = [
        {
            "number": number,
            "values": document["trials"][number]["values"],
            "command": f"hotlap train recipe.py --lr 0.0{number}",
            "comparisons": {"loss": same if number == 11 else None, "seconds": None},
        }
        for number in (11, 3)
    ]
    return document


def trial(number: int) -> dict[str, Any]:
    """Return a trial whose loss has its smallest value at the learning rate 10^-1.9."""
    lr = 10 ** (-4 + 3 * (7 * number % 16) / 16)
    loss = 0.2 + (math.log10(lr) + 1.9) ** 2 / 4
    rungs = {"100": loss + 0.1} | ({"300": loss} if number % 4 == 3 else {})
    return {
        "number": number,
        "parameters": {"lr": lr, "width": 64 if number % 2 else 128},
        "state": "done",
        "step": 300 if len(rungs) > 1 else 100,
        "value": list(rungs.values())[-1],
        "measures": {"loss": loss},
        "seconds": 12.5,
        "memory_bytes": 300 * 2**20,
        "error": "",
        "rungs": rungs,
        "seeds": [],
    }


def write_run(folder: Path, lr: float, *, count: int = 40, **info: Any) -> Path:
    """Write a run's folder as `hotlap train --run-dir` leaves it."""
    folder.mkdir(parents=True)
    about = {
        "schema": 1,
        "task": {"recipe": "recipe.py", "lr": lr},
        "plan": {"resident": {}},
        "host": {"cpu": "a CPU"},
        "versions": {"torch": "2.13.0"},
        "code": {"commit": "0123abcd", "dirty": True},
        "command": ["hotlap", "train", "recipe.py", "--lr", str(lr)],
        "state": "finished",
        "began": "2026-11-25T21:04:09+00:00",
        **info,
    }
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "metrics.jsonl").write_text("".join(lines(lr, count)))
    return folder


def lines(lr: float, count: int) -> Iterator[str]:
    for step in range(1, count + 1):
        yield line("step", step, loss=lr * 10 / step, gradient_norm=1.5)
        if step % 10 == 0:
            yield line("epoch", step, loss=lr * 10 / step)
            yield line("evaluation", step, accuracy=0.5 + step / 1000)
            yield line("system", step, cpu_percent=50.0 + step)


def line(kind: str, step: int, **values: Any) -> str:
    record = {"kind": kind, "step": step, "epoch": 1, "time_s": step / 10, "values": values}
    return json.dumps(record) + "\n"


def run(folder: Path) -> dict[str, Any]:
    return document_of(write_run(folder / "a", 0.1))


def run_with_findings(folder: Path) -> dict[str, Any]:
    return document_of(keep_all(write_run(folder / "d", 0.1)))


def keep_all(run: Path) -> Path:
    """Let a run's folder keep one document of each kind."""
    found = {"diagnosis": diagnosis, "memory": memory, "tuning": tuning, "verdict": verdict}
    for kind, make in found.items():
        (run / f"{kind}.json").write_text(json.dumps(make()))
    return run


def comparison(folder: Path) -> dict[str, Any]:
    first, second = write_run(folder / "b", 0.1), write_run(folder / "c", 0.3)
    return document_of(keep_all(first), second)


def all_documents(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a name -> a document, of each kind of which there is a page."""
    return {
        "diagnosis": diagnosis(),
        "tuning": tuning(),
        "tuning without a gain": tuning_without_gain(),
        "verdict": verdict(),
        "training": training(),
        "memory": memory(),
        "demo": story(),
        "search": search(),
        "search with a front": search_with_front(),
        "run": run(folder),
        "run with findings": run_with_findings(folder),
        "comparison": comparison(folder),
    }
