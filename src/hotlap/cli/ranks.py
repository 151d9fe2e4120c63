"""`--devices`, `--restarts`, `--rank-timeout` of `hotlap train`: checked, and ranks launched."""

import os
from dataclasses import dataclass
from pathlib import Path

from hotlap.errors import UsageError


def is_first_rank() -> bool:
    """True in the process that speaks for the run: the first of several ranks, or the only one."""
    from hotlap.distributed.ranks import detect_ranks

    return detect_ranks(os.environ).rank == 0


def is_one_of_several() -> bool:
    """True in a rank of a run that has others."""
    from hotlap.distributed.ranks import detect_ranks

    return detect_ranks(os.environ).world > 1


@dataclass(frozen=True)
class RankRequest:
    """What the command line asks for.

    Raises:
        UsageError: the options do not go together, or have values that are not allowed.
    """

    devices: int | None
    device: str | None
    run_dir: str | None
    resume: str | None
    restarts: int
    timeout: str
    """As a duration is written."""

    def __post_init__(self) -> None:
        from hotlap.cli.durations import parse_duration
        from hotlap.distributed.ranks import STORE, detect_ranks

        parse_duration(self.timeout, "--rank-timeout")
        if self.restarts < 0:
            raise UsageError(f"--restarts {self.restarts} is not valid. Expected: 0 or more.")
        if not self.restarts or STORE in os.environ:
            return
        given = f"--restarts {self.restarts}"
        if detect_ranks(os.environ).world > 1:
            raise UsageError(
                f"{given} cannot be used here: another launcher (torchrun or Slurm) started the "
                "ranks, and hotlap cannot restart them. Use `torchrun --max-restarts N` or "
                "Slurm's `sbatch --requeue` instead, and add --resume auto to this command."
            )
        if self.run_dir is None:
            raise UsageError(
                f"{given} needs checkpoints to restart from, and --run-dir was not given. Pass "
                "--run-dir FOLDER, or remove --restarts."
            )
        if self.resume not in (None, "auto"):
            raise UsageError(
                f"{given} restarts from the newest checkpoint in --run-dir. It works only with "
                f"--resume auto, not with --resume '{self.resume}'. Use --resume auto, or remove "
                "--restarts."
            )

    @property
    def timeout_s(self) -> float:
        """Seconds after which a rank that waits for another one gives up."""
        from hotlap.cli.durations import parse_duration

        return parse_duration(self.timeout, "--rank-timeout")

    @property
    def resumes_from(self) -> str | None:
        """Where this process resumes from: `auto` once its ranks were restarted."""
        from hotlap.distributed.ranks import RESTARTS

        is_restarted = os.environ.get(RESTARTS, "0") != "0" and self.restarts > 0
        return "auto" if is_restarted else self.resume

    def launch(self, tokens: tuple[str, ...]) -> int | None:
        """Run this command once for each device; return its exit code, None if this is all of it.

        Args:
            tokens: of the command line, behind `hotlap train`.

        Raises:
            UsageError: there are not as many devices, or none were asked for.
            RunError: a rank died.
        """
        from hotlap.cli.starting import say
        from hotlap.distributed import stacks
        from hotlap.distributed.launch import check_devices, launch
        from hotlap.distributed.ranks import STORE, check_mpi, detect_ranks
        from hotlap.lab.subject import start_module
        from hotlap.report.jsonout import reserved_descriptor

        stacks.write_on_request(os.environ)
        if STORE in os.environ or detect_ranks(os.environ).world > 1:
            return None
        check_mpi(os.environ)
        if self.devices is not None:
            check_devices(self.devices, self.device)
        count = self.devices or 1
        if count == 1 and not self.restarts:
            return None
        return launch(
            [*start_module("hotlap", Path.cwd()), "train", *tokens],
            count,
            logs=None if self.run_dir is None else _folder_of_logs(self.run_dir),
            timeout_s=self.timeout_s,
            restarts=self.restarts,
            notice=say,
            stdout=reserved_descriptor(),
        )


def _folder_of_logs(run_dir: str) -> Path:
    """Make, and return, the folder of the ranks' logs.

    Raises:
        UsageError: it cannot be made.
    """
    from hotlap.checkpoint.files import why_unwritable
    from hotlap.engine.state.finding import run_folder

    run_folder(run_dir)
    logs = Path(run_dir) / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the logs of the ranks cannot be written in '{run_dir}': "
            f"{why_unwritable(error, logs)}. Use --run-dir with a folder that can be created and "
            "written to."
        ) from error
    return logs
