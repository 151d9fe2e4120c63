"""The parent's side: the command and the environment that get hotlap into a script."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotlap.plan import Plan
from hotlap.techniques import ProcessTarget, registry
from hotlap.trial.protocol import Config

SITE = Path(__file__).parent / "site"


def is_off() -> bool:
    """True if HOTLAP_OFF is set, to something else than 0: everything is run plain."""
    return os.environ.get("HOTLAP_OFF", "0") not in ("", "0")


TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    # mlflow 3.17 raises without it; its database takes seconds to be made, for each trial.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment of a trial: nobody's dashboard should show runs that were only measurements."""

TRACKERS_FOLDERS = {
    "MLFLOW_TRACKING_URI": "file:{}/hotlap-mlflow",
    "TRACKIO_DIR": "{}/hotlap-trackio",
}
"""Where trackers that cannot be switched off write in a trial; `{}` is the temporary folder, which
goes away with it."""

TRACKERS_REMOVED = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Not in a trial's environment: they name where trackio would publish it."""


@dataclass(frozen=True)
class Script:
    """A training script as the user starts it.

    Exactly one of `path` and `module` is given.
    """

    path: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    python: str = sys.executable
    cwd: str = ""
    """Working folder, the current one if empty."""

    def command(self) -> list[str]:
        """Return the command line, as if the user had typed it."""
        target = ["-m", self.module] if self.module else [str(self.path)]
        return [self.python, *target, *self.args]

    def environment(
        self, config: Config, base: Mapping[str, str], *, seed: int | None = None
    ) -> dict[str, str]:
        """Return the environment of a trial, see `environment`."""
        return environment(config, base, trial=True, seed=seed)

    @property
    def folder(self) -> Path:
        return Path(self.cwd or os.getcwd())

    def __str__(self) -> str:
        target = f"-m {self.module}" if self.module else str(self.path)
        return " ".join([target, *self.args])


def environment(
    config: Config,
    base: Mapping[str, str],
    *,
    trial: bool,
    seed: int | None = None,
) -> dict[str, str]:
    """Return the environment that attaches to a script started in it.

    Args:
        config: what the attached process is told.
        base: the environment that the user would start the script in.
        trial: True for a measurement: trackers are off.
        seed: fixes Python's hash order where the script itself is not repeatable.
    """
    result = surroundings(config, base, trial=trial, seed=seed)
    if "PYTHONPATH" in base:
        result["HOTLAP_PYTHONPATH"] = base["PYTHONPATH"]
    result["PYTHONPATH"] = os.pathsep.join(
        [str(SITE), *([base["PYTHONPATH"]] if base.get("PYTHONPATH") else [])]
    )
    result["HOTLAP_ATTACH"] = config.to_text()
    result.pop("HOTLAP_INSIDE", None)
    return result


def trackers_in(temporary: str) -> dict[str, str]:
    """Return the environment that lets trackers write below a temporary folder."""
    return {name: text.format(temporary) for name, text in TRACKERS_FOLDERS.items()}


def surroundings(
    config: Config, base: Mapping[str, str], *, trial: bool, seed: int | None = None
) -> dict[str, str]:
    """Return the environment of a process that a plan is applied in, however hotlap gets there."""
    result = dict(base)
    if trial:
        result |= TRACKERS_OFF | trackers_in(base.get("TMPDIR") or tempfile.gettempdir())
        for name in TRACKERS_REMOVED:
            result.pop(name, None)
    if seed is not None:
        result["PYTHONHASHSEED"] = str(seed)
    _process_seam(config, result)
    return result


def _process_seam(config: Config, environment: dict[str, str]) -> None:
    plan = Plan(config.plan)
    target = ProcessTarget(environment)
    for name, technique in registry(config.techniques).items():
        if name in plan.techniques and technique.seam == "process":
            technique.apply(target, technique.options(plan.techniques[name]))


def plan_data(plan: Plan) -> dict[str, dict[str, object]]:
    """Return a plan as the plain data that a `Config` carries."""
    return json.loads(json.dumps({k: dict(v) for k, v in plan.techniques.items()}))
