"""Weights & Biases. `WANDB_MODE=offline` keeps the run in its folder, for `wandb sync`."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.track.tracker import TrackedRun, Tracker

_ID = "run-id"


class WeightsAndBiases(Tracker):
    """Logs to a run of wandb; its environment variables apply (`WANDB_PROJECT`, `WANDB_MODE`).

    Args:
        run: what is tracked. A resumed one goes on under the same id.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._tracked = run
        self._id_file: Path = run.files / _ID
        self._run: Any = None

    def begin(self, config: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        known = self._id_file.read_text().strip() if self._id_file.exists() else None
        resumes = self._tracked.resumed_step is not None and known is not None
        try:
            self._run = self._init(wandb, config, known if resumes else None, None)
        except wandb.errors.UsageError as error:
            # Nobody is logged in, which is no reason to lose the run.
            print(f"hotlap: {error} The run is kept offline: send it with `wandb sync`.")  # noqa: T201
            self._run = self._init(wandb, config, known if resumes else None, "offline")
        self._id_file.write_text(self._run.id)

    def _init(self, wandb: Any, config: Mapping[str, Any], known: str | None, mode: Any) -> Any:
        return wandb.init(
            name=self._tracked.name,
            dir=str(self._tracked.files),
            config=dict(config),
            id=known,
            resume=None if known is None else "allow",
            mode=mode,
            settings=wandb.Settings(
                # The sampler's figures are those of the training's process; these would be those of
                # this one.
                x_disable_stats=True,
                console="off",
                disable_git=True,
                save_code=False,
            ),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, state: str) -> None:
        self._run.summary["state"] = state
        self._run.finish(exit_code=0 if state in ("finished", "stopped") else 1)


ADAPTER = WeightsAndBiases
