"""Environment variables of a process under a plan: trackers off, hash seed, what techniques set."""

import json
from collections.abc import Mapping

from hotlap.plan import Plan
from hotlap.plan.before_start import AT_PROCESS_SEAM
from hotlap.trial.protocol import Config

TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    # mlflow 3.17 raises without it; its database takes seconds to be made, for each trial.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
}
"""Environment of a trial: nobody's dashboard should show runs that were only measurements. What a
script says itself (`wandb.init(mode="online")`) counts more for most of them."""

TRACKERS_FOLDERS = {
    "MLFLOW_TRACKING_URI": "file:{}/hotlap-mlflow",
    "TRACKIO_DIR": "{}/hotlap-trackio",
}
"""Where trackers that cannot be switched off write in a trial; `{}` is the temporary folder, which
goes away with it."""

TRACKERS_REMOVED = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Not in a trial's environment: they name where trackio would publish it."""


def trackers_in(temporary: str) -> dict[str, str]:
    """Return the environment that lets trackers write below a temporary folder."""
    return {name: text.format(temporary) for name, text in TRACKERS_FOLDERS.items()}


def surroundings(
    config: Config, base: Mapping[str, str], *, trial: bool, seed: int | None = None
) -> dict[str, str]:
    """Return the environment of a process that a plan is applied in, however hotlap gets there."""
    result = dict(base)
    if trial:
        import tempfile

        result |= TRACKERS_OFF | trackers_in(base.get("TMPDIR") or tempfile.gettempdir())
        for name in TRACKERS_REMOVED:
            result.pop(name, None)
    if seed is not None:
        result["PYTHONHASHSEED"] = str(seed)
    _process_seam(config, result)
    return result


def _process_seam(config: Config, environment: dict[str, str]) -> None:
    if not config.techniques and not AT_PROCESS_SEAM & config.plan.keys():
        return
    from hotlap.techniques import ProcessTarget, techniques_of

    target = ProcessTarget(environment)
    for technique, options in techniques_of(Plan(config.plan), config.techniques):
        if technique.seam_of(options) == "process":
            technique.apply(target, options)


def plan_data(plan: Plan) -> dict[str, dict[str, object]]:
    """Return a plan as the plain data that a `Config` carries."""
    return json.loads(json.dumps({k: dict(v) for k, v in plan.techniques.items()}))
