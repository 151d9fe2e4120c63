"""`diagnose` and `tune` of a script that writes everywhere: its files stay as they are."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="views of the files need Linux")

NOBODY = 65534
TINY = Path(__file__).parents[1] / "tiny.py"

WRITES = """
import os, pathlib, sqlite3, sys
import numpy, torch
from safetensors.torch import save_file
sys.path.insert(0, {tests!r})
import tiny

def write(step):
    away = pathlib.Path(os.environ["AWAY"])
    for folder in (pathlib.Path("."), pathlib.Path.home(), away.absolute()):
        torch.save(dict(step=step), folder / "saved.pt")
        save_file(dict(step=torch.tensor([step])), folder / "saved.safetensors")
        numpy.save(folder / "saved.npy", numpy.full(3, step))
        with sqlite3.connect(folder / "saved.db") as connection:
            connection.execute("create table if not exists t (x)")
            connection.execute("insert into t values (?)", (step,))
        connection.close()
        with open(folder / "log.txt", "a") as stream:
            stream.write(str(step))
        (folder / f"new-{{step}}.txt").write_text("new")
        (folder / "kept.txt").unlink(missing_ok=True)

made = torch.optim.Adam.step
calls = [0]
def step(self, *args, **kwargs):
    calls[0] += 1
    if calls[0] % 8 == 1:
        write(calls[0])
    return made(self, *args, **kwargs)
torch.optim.Adam.step = step
write(0)
tiny.main()
write(-1)
"""


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def tree() -> Iterator[Path]:
    base = Path("/var/tmp") / f"hotlap-files-{os.getpid()}"
    for name in ("here", "home", "away"):
        folder = base / name
        folder.mkdir(parents=True)
        for file in ("saved.pt", "saved.safetensors", "saved.npy", "log.txt", "kept.txt"):
            (folder / file).write_text("original")
    (base / "here" / "script.py").write_text(WRITES.format(tests=str(base)))
    shutil.copy(TINY, base / "tiny.py")
    yield base
    shutil.rmtree(base)


def run(tree: Path, *argv: str, user: int | None) -> "subprocess.CompletedProcess[str]":
    own = {"AWAY": str(tree / "away"), "HOME": str(tree / "home"), "OMP_NUM_THREADS": "1"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HOTLAP_")}
    return subprocess.run(
        [sys.executable, "-B", *argv],
        cwd=tree / "here",
        env={**kept, **own, "PYTHONDONTWRITEBYTECODE": "1"},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        timeout=120,
    )


def can_start(tree: Path, user: int) -> bool:
    try:
        return run(tree, "-c", "import hotlap, torch", user=user).returncode == 0
    except PermissionError:
        return False


@pytest.mark.parametrize(
    "user",
    [
        pytest.param(None, id="this user"),
        pytest.param(NOBODY, id="another user", marks=pytest.mark.slow),
    ],
)
def test_diagnose_and_tune_change_no_file_and_a_plain_run_changes_all(
    tree: Path, user: int | None
) -> None:
    if user is not None:
        if os.getuid() != 0:
            pytest.skip("only root can become another user")
        for path in [tree, *tree.rglob("*")]:
            os.chown(path, user, user)
        if not can_start(tree, user):
            pytest.skip("another user cannot read this Python's packages")
    before = digest(tree)
    script = ("script.py", "--epochs", "40")
    done = run(tree, "-m", "hotlap", "diagnose", "--budget", "6s", *script, user=user)
    assert done.returncode == 0, done.stderr
    assert digest(tree) == before
    assert "not protected" not in done.stdout + done.stderr
    done = run(tree, "-m", "hotlap", "tune", "--budget", "15s", *script, user=user)
    assert done.returncode == 0, done.stderr
    after = digest(tree)
    # The plan is the one file that a user asked for.
    assert after.pop("here/script.plan.toml", None) is not None or "No plan" in done.stdout
    assert after == before
    assert run(tree, "script.py", "--epochs", "1", user=user).returncode == 0
    plain = digest(tree)
    assert {name for name in before if plain.get(name) != before[name]} == {
        f"{folder}/{file}"
        for folder in ("here", "home", "away")
        for file in ("saved.pt", "saved.safetensors", "saved.npy", "log.txt", "kept.txt")
    }
