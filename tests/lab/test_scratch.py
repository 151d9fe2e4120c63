"""Whatever a trial writes, the files that a script really has stay as they are."""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hotlap.errors import ScratchError
from hotlap.lab.scratch import Protection, Scratch, probe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="views of the files need Linux")

SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")
NOBODY = 65534

STDLIB_WRITERS = """
import os, pathlib, sqlite3, sys
here, home, away = (pathlib.Path(p) for p in sys.argv[1:4])
for folder in (here, home, away):
    (folder / "data.txt").open("a").write("more")
    with (folder / "data.bin").open("r+b") as stream:
        stream.truncate(1)
    connection = sqlite3.connect(folder / "runs.db")
    connection.execute("create table if not exists t (x)")
    connection.execute("insert into t values (1)")
    connection.commit()
    (folder / "new").mkdir()
    (folder / "new" / "file").write_text("x")
    os.rename(folder / "old.txt", folder / "renamed.txt")
    os.chmod(folder / "data.txt", 0o600)
    os.symlink("data.txt", folder / "link")
    (folder / "gone.txt").unlink()
open("data.txt", "w").write("relative")
"""

TORCH_WRITERS = """
import numpy, torch
from safetensors.torch import save_file
torch.save({"a": torch.ones(3)}, "data.bin")
save_file({"a": torch.ones(3)}, "weights.safetensors")
numpy.save("array.npy", numpy.ones(3))
"""


def fill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data.txt", "data.bin", "old.txt", "gone.txt", "runs.db"):
        (folder / name).write_bytes(b"" if name == "runs.db" else b"original")


def digest(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        state.update(f"{path} {path.lstat().st_mode}".encode())
        if path.is_file():
            state.update(path.read_bytes())
    return state.hexdigest()


def run(scratch: Scratch, argv: list[str], **environment: str) -> int:
    process = scratch.popen(argv, env={**os.environ, **environment}, stdout=None, stderr=None)
    return process.wait(timeout=30)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    for name in ("here", "home", "away"):
        fill(tmp_path / name)
    yield tmp_path


def folders(tree: Path) -> list[str]:
    return [str(tree / name) for name in ("here", "home", "away")]


def needs_view(cwd: Path) -> None:
    found = probe(cwd)
    if found.kind != "overlay":
        pytest.skip(f"no view of the files can be had here: {found.reason}")


def test_no_writer_of_any_kind_reaches_the_real_files(tree: Path) -> None:
    needs_view(tree)
    before = digest(tree)
    with Scratch(tree / "here") as scratch:
        assert run(scratch, [sys.executable, "-c", STDLIB_WRITERS, *folders(tree)]) == 0
        assert run(scratch, [sys.executable, "-c", TORCH_WRITERS]) == 0
    assert digest(tree) == before


def test_the_same_writers_change_the_files_without_a_view(tree: Path) -> None:
    before = digest(tree)
    subprocess.run(
        [sys.executable, "-c", STDLIB_WRITERS, *folders(tree)], cwd=tree / "here", check=True
    )
    assert digest(tree) != before


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hotlap.lab.scratch import Scratch, probe
cwd = Path(sys.argv[2])
os.chdir(cwd)
found = probe(cwd)
if found.kind != "overlay":
    print("no view:", found.reason)
    sys.exit(77)
with Scratch(cwd) as scratch:
    process = scratch.popen(sys.argv[3:], env=os.environ, stdout=None, stderr=None)
    sys.exit(process.wait())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(SYSTEM_PYTHON is None, reason="another user needs a Python outside this venv")
def test_another_user_is_protected_as_well(source: Path) -> None:
    assert SYSTEM_PYTHON is not None
    base = Path("/var/tmp") / f"hotlap-test-{os.getpid()}"
    try:
        for name in ("here", "home", "away"):
            fill(base / name)
        shutil.copytree(source, base / "package" / "hotlap")
        for path in [base, *base.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        before = digest(base / "here") + digest(base / "home") + digest(base / "away")
        outer = [SYSTEM_PYTHON, "-c", AS_ANOTHER_USER, str(base / "package"), str(base / "here")]
        done = subprocess.run(
            [*outer, SYSTEM_PYTHON, "-c", STDLIB_WRITERS, *folders(base)],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"HOME": str(base / "home"), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        if done.returncode == 77:
            pytest.skip(done.stdout)
        assert done.returncode == 0, done.stderr
        after = digest(base / "here") + digest(base / "home") + digest(base / "away")
        assert after == before
    finally:
        shutil.rmtree(base)


def test_exit_codes_and_signals_pass_through(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        assert run(scratch, ["/bin/sh", "-c", "exit 7"]) == 7
        assert run(scratch, ["/bin/sh", "-c", "kill -TERM $$"]) == 128 + signal.SIGTERM


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch, pytest.raises(ScratchError, match="/no/such/python"):
        run(scratch, ["/no/such/python"])


def test_what_is_shared_is_real_and_what_is_hidden_is_not_seen(tmp_path: Path) -> None:
    needs_view(tmp_path)
    shared = tmp_path / "deep" / "shared"
    shared.mkdir(parents=True)
    (tmp_path / "checkpoint.pth").write_text("state")
    script = "test ! -e checkpoint.pth && touch deep/shared/out deep/lost && touch checkpoint.pth"
    with Scratch(tmp_path, passthrough=(shared,), hide=("*.pth",)) as scratch:
        assert run(scratch, ["/bin/sh", "-c", script]) == 0
    assert (shared / "out").exists()
    assert not (tmp_path / "deep" / "lost").exists()
    assert (tmp_path / "checkpoint.pth").read_text() == "state"


def test_every_process_stops_and_dies_with_the_group(tmp_path: Path) -> None:
    script = "sleep 60 & sleep 60 & wait"
    with Scratch(tmp_path) as scratch:
        process = scratch.popen(["/bin/sh", "-c", script], env=os.environ, stdout=None, stderr=None)
        family = wait_for(lambda: family_of(process.pid), lambda found: len(found) >= 4)
        os.killpg(process.pid, signal.SIGSTOP)
        wait_for(
            lambda: {member.status() for member in family}, lambda s: s == {psutil.STATUS_STOPPED}
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=5)
        wait_for(lambda: [m for m in family if alive(m)], lambda found: not found)


CONTROLLER = """
import os, sys
from pathlib import Path
from hotlap.lab.scratch import Protection, Scratch
protection = Protection("copy", (), "forced") if sys.argv[2] == "copy" else None
with Scratch(Path(sys.argv[1]), protection=protection) as scratch:
    process = scratch.popen(["/bin/sh", "-c", "sleep 61 & sleep 61"], env=os.environ, stdout=None,
                            stderr=None)
    print(process.pid, flush=True)
    process.wait()
"""


@pytest.mark.parametrize("kind", ["view", "copy"])
def test_nothing_is_left_when_the_controller_is_killed(tmp_path: Path, kind: str) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path), kind],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as controller:
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        family = wait_for(lambda: family_of(pid), lambda found: len(found) >= 3)
        controller.kill()
    wait_for(lambda: [m for m in family if alive(m)], lambda found: not found)
    wait_for(lambda: list(temporary.iterdir()), lambda found: not found)
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_without_a_view_the_folder_is_copied_and_the_rest_is_named(tree: Path) -> None:
    protection = Protection("copy", (f"every path outside {tree / 'here'}",), "forced")
    before = digest(tree / "here")
    with Scratch(tree / "here", hide=("gone.txt",), protection=protection) as scratch:
        script = "test -e data.txt && test ! -e gone.txt && echo changed > data.txt"
        assert run(scratch, ["/bin/sh", "-c", script]) == 0
    assert digest(tree / "here") == before
    assert str(tree / "here") in protection.unprotected[0]


def test_a_folder_too_large_to_copy_is_refused_with_both_sizes(tree: Path) -> None:
    protection = Protection("copy", (), "forced")
    refused = pytest.raises(ScratchError, match=r"holds 0 MiB.*Allowed: up to 0 MiB")
    with Scratch(tree, protection=protection, copy_limit_bytes=10) as scratch, refused:
        run(scratch, ["/bin/true"])


def family_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(look, enough):
    deadline = time.monotonic() + 10
    while not enough(found := look()):
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.02)
    return found


def test_the_user_is_the_same_inside(tmp_path: Path) -> None:
    name = pwd.getpwuid(os.getuid()).pw_name
    with Scratch(tmp_path) as scratch:
        assert run(scratch, ["/bin/sh", "-c", f'test "$(id -un)" = {name}']) == 0
