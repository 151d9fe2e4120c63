"""What importing hotlap costs, and that it changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_TORCH = (
    "hotlap",
    "hotlap.errors",
    "hotlap.plan",
    "hotlap.task",
    "hotlap.host",
    "hotlap.host.ceilings",
    "hotlap.compat",
    "hotlap.trace.schema",
    "hotlap.trial.protocol",
    "hotlap.trial.channel",
    "hotlap.trial.hub",
    "hotlap.trace.store",
    "hotlap.host.monitor",
    "hotlap.track.losses",
    "hotlap.track.recording",
    "hotlap.track.feeding",
    "hotlap.track.comparing",
    "hotlap.attach.hook",
    "hotlap.attach.entry",
    "hotlap.attach.runner",
    "hotlap.lab",
    "hotlap.lab.trial",
    "hotlap.lab.process_race",
    "hotlap.lab.proving",
    "hotlap.rules",
    "hotlap.techniques",
    "hotlap.search.space",
    "hotlap.search.asking",
    "hotlap.search.local",
    "hotlap.search.study",
    "hotlap.report",
    "hotlap.cli",
)

STATE = """
import logging, os, signal, sys, threading, warnings

def state():
    return {
        "environment": dict(os.environ),
        "path": list(sys.path),
        "meta path": list(map(repr, sys.meta_path)),
        "warnings": list(warnings.filters),
        "signals": [repr(signal.getsignal(number)) for number in signal.valid_signals()],
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, sys.unraisablehook),
        "threads": [thread.name for thread in threading.enumerate()],
        "log handlers": list(logging.root.handlers),
        "streams": (sys.stdout, sys.stderr, sys.stdout.errors),
    }

before = state()
import hotlap
after = state()
print([name for name in before if before[name] != after[name]])
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("package", ["", "techniques", "rules", "cli"])
def test_declarations_import_without_torch(source: Path, package: str) -> None:
    names = list(WITHOUT_TORCH)
    if package:
        files = sorted((source / package).glob("*.py"))
        names = [f"hotlap.{package}.{path.stem}" for path in files if path.stem != "__init__"]
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    if "torch" in sys.modules:
        print(name)
        break
"""
    assert python(code) == "", "importing this module imports torch"


def test_importing_hotlap_changes_nothing_in_the_process() -> None:
    assert python(STATE) == "[]"
