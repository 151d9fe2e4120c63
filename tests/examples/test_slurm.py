"""The Slurm example starts one rank for each task, which train one model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.runs import saved_steps, weights

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "examples" / "slurm.sbatch"

SRUN = """#!/bin/bash
# Two tasks on one node, as Slurm would start them.
while [[ $1 == -* ]]; do shift; done
export SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS_PER_NODE=2
pids=()
for task in 0 1; do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
"""
SCONTROL = """#!/bin/bash
if [ "$2" = hostnames ]; then echo 127.0.0.1; else echo "$@" >> "$ASKED"; fi
"""


def test_it_is_a_valid_shell_script() -> None:
    done = subprocess.run(["bash", "-n", str(SBATCH)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a job whose `srun` starts two tasks."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "here",
        "SLURM_CPUS_PER_TASK": "1",
        "RUN_DIR": str(tmp_path / "run"),
        "ASKED": str(tmp_path / "asked"),
    }


@pytest.mark.slow
def test_its_tasks_are_the_ranks_of_one_run(job: dict[str, str], tmp_path: Path) -> None:
    command = ["bash", str(SBATCH), "tests/distributed/recipe.py"]
    done = subprocess.run(command, cwd=ROOT, env=job, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch 1 of 3") == 1
    assert not (tmp_path / "asked").exists()
    alone = tmp_path / "alone"
    command = [sys.executable, "-m", "hotlap", "train", command[-1], "--run-dir", str(alone)]
    assert subprocess.run(command, cwd=ROOT, env=job, capture_output=True).returncode == 0
    assert weights(tmp_path / "run") == weights(alone)


def test_a_job_that_was_saved_before_its_limit_is_queued_again(
    job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "srun").write_text("#!/bin/bash\nexit 143\n")
    done = subprocess.run(["bash", str(SBATCH), "recipe.py"], cwd=ROOT, env=job)
    assert done.returncode == 143
    assert (tmp_path / "asked").read_text() == f"requeue {job['SLURM_JOB_ID']}\n"
    assert not saved_steps(tmp_path / "run")
