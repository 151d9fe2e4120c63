"""Whatever a trial writes, the files that a script really has stay as they are."""

import hashlib
import importlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotlap.attach.entry import Script
from hotlap.errors import ScratchError
from hotlap.lab import copying, family
from hotlap.lab.copying import Source, end_leftovers, new_name
from hotlap.lab.scratch import Protection, Scratch, probe
from hotlap.lab.trial import Lab
from hotlap.trial.hub import Hub

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="views of the files need Linux")

NOBODY = 65534
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")
"""For another user, who may be unable to read this venv."""
COPY = Protection("copy", (), "forced")
LAUNCHER = Path(copying.__file__).parent / "launcher"

STDLIB_WRITERS = """
import os, pathlib, shutil, sqlite3, sys
os.environ["HOME"] = sys.argv[2]
for name in (".", "~", sys.argv[3], sys.argv[4]):
    folder = pathlib.Path(name).expanduser()
    (folder / "data.txt").open("a").write("more")
    with (folder / "data.bin").open("r+b") as stream:
        stream.truncate(1)
    connection = sqlite3.connect(folder / "runs.db")
    connection.execute("create table if not exists t (x)")
    connection.execute("insert into t values (1)")
    connection.commit()
    connection.close()
    (folder / "new").mkdir()
    (folder / "new" / "file").write_text("x")
    (folder / "new").rename(folder / "newer")
    os.rename(folder / "old.txt", folder / "renamed.txt")
    os.chmod(folder / "data.txt", 0o600)
    os.symlink("data.txt", folder / "link")
    (folder / "gone.txt").unlink()
    shutil.rmtree(folder / "deep")
    (folder / "deep").mkdir()
    assert not os.listdir(folder / "deep")
open("data.txt", "w").write("relative")
"""

TORCH_WRITERS = """
import numpy, torch
from safetensors.torch import save_file
torch.save({"a": torch.ones(3)}, "data.bin")
save_file({"a": torch.ones(3)}, "data.txt")
numpy.save("old.npy", numpy.ones(3))
numpy.lib.format.open_memmap("map.npy", mode="r+")[:] = 7
loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4, num_workers=1)
assert [len(batch) for batch in loader] == [4, 4]
"""


def fill(folder: Path) -> None:
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("original")
    for name in ("data.txt", "data.bin", "old.txt", "gone.txt"):
        (folder / name).write_text("original")
    (folder / "runs.db").touch()
    # The header of an .npy file for three int64, made here so that numpy is not needed.
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }".ljust(117) + b"\n"
    (folder / "map.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header + bytes(24))


def digest(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        state = (info.st_mode, info.st_uid, info.st_mtime_ns, hashlib.sha256(content).hexdigest())
        found[str(path)] = repr(state)
    return found


def start(scratch: Scratch, argv: list[str], **options: Any) -> "subprocess.Popen[bytes]":
    options = {"env": os.environ, "stdout": None, "stderr": None, **options}
    return scratch.popen(argv, **options)


def shell(scratch: Scratch, script: str, **options: Any) -> tuple[int, str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = start(scratch, ["/bin/sh", "-c", script], **streams, **options)
    said = process.communicate(timeout=30)[0]
    return process.returncode, said.decode()


def family_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def wait_for(look: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 10
    while not enough(found := look()):
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.02)
    return found


def marked(marker: str) -> list[psutil.Process]:
    """Return the living processes whose command line holds a text."""
    return [
        process
        for process in psutil.process_iter()
        if alive(process) and any(marker in part for part in _command(process))
    ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("here", "home", "away"):
        fill(tmp_path / name)
    return tmp_path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder directly below /tmp, which anybody may enter."""
    folder = Path("/tmp") / f"hotlap-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    fill(folder / "tmp")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def view(tmp_path: Path) -> None:
    found = probe(tmp_path)
    if found.kind != "overlay":
        pytest.skip(f"no view of the files can be had here: {found.reason}")


def test_trials_are_refused_on_another_system_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(Script(path="train.py", cwd=str(tmp_path)))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ScratchError, match="trials need Linux, and this is darwin"), lab:
        pass
    assert not [*tmp_path.iterdir()]


def writers(tree: Path, temporary: Path, python: str = sys.executable) -> list[str]:
    folders = [str(tree / name) for name in ("here", "home", "away")]
    return [python, "-c", STDLIB_WRITERS, *folders, str(temporary / "tmp")]


@pytest.mark.usefixtures("view")
def test_no_writer_of_any_kind_reaches_the_real_files(tree: Path, temporary: Path) -> None:
    before = digest(tree) | digest(temporary)
    with Scratch(tree / "here") as scratch:
        assert start(scratch, writers(tree, temporary)).wait(timeout=30) == 0
        assert start(scratch, [sys.executable, "-c", TORCH_WRITERS]).wait(timeout=60) == 0
    assert digest(tree) | digest(temporary) == before


def test_the_same_writers_change_every_folder_without_a_view(tree: Path, temporary: Path) -> None:
    before = digest(tree) | digest(temporary)
    subprocess.run(writers(tree, temporary), cwd=tree / "here", check=True)
    after = digest(tree) | digest(temporary)
    for folder in (tree / "here", tree / "home", tree / "away", temporary / "tmp"):
        for name in ("data.txt", "data.bin", "runs.db"):
            assert after[str(folder / name)] != before[str(folder / name)]
        assert str(folder / "gone.txt") not in after


@pytest.mark.usefixtures("view")
def test_what_a_trial_writes_it_can_read_and_the_next_one_cannot(tmp_path: Path) -> None:
    other = Path("/dev/shm") / f"hotlap-test-{os.getpid()}"
    script = f"test ! -e out -a ! -e {other} && echo 1 | tee out {other}; cat {other}"
    with Scratch(tmp_path) as scratch:
        assert [shell(scratch, script) for _ in range(2)] == [(0, "1\n1\n")] * 2
    assert not other.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="refused with EXDEV in a user namespace")
@pytest.mark.usefixtures("view")
def test_root_may_rename_a_folder_that_was_there_before(tree: Path) -> None:
    before = digest(tree)
    script = "import os; os.rename('deep', 'moved'); print(open('moved/file').read(), end='')"
    with Scratch(tree / "here") as scratch:
        process = start(scratch, [sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.communicate(timeout=10)[0] == b"original"
    assert digest(tree) == before


AS_ANOTHER_USER = """
import json, os, sys
from pathlib import Path
from hotlap.lab.scratch import Protection, Scratch, probe
cwd, protection, argv = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
os.chdir(cwd)
found = Protection(*protection) if protection else probe(cwd)
print(found.kind, found.reason, flush=True)
with Scratch(cwd, protection=found) as scratch:
    process = scratch.popen(argv, env=os.environ, stdout=None, stderr=None)
    sys.exit(process.wait())
"""


@pytest.fixture
def elsewhere(source: Path) -> Iterator[Path]:
    """A tree of another user below folders that are not theirs, and the package beside it."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    if SYSTEM_PYTHON is None:
        pytest.skip("another user needs a Python outside this venv")
    base = Path("/var/tmp") / f"hotlap-test-{os.getpid()}"
    for name in ("here", "home", "away", "tmp"):
        fill(base / name)
        for path in [base / name, *(base / name).rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    for name in (
        "errors.py",
        *(f"lab/{name}.py" for name in ("scratch", "copying", "folders", "launch")),
        *(f"lab/launcher/{name}.py" for name in ("__main__", "kernel", "views")),
    ):
        target = base / "package" / "hotlap" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target)
    yield base
    shutil.rmtree(base)


def as_nobody(
    base: Path,
    argv: list[str],
    *,
    before: tuple[str, ...] = (),
    protection: Protection | None = None,
) -> "subprocess.Popen[str]":
    given = [protection.kind, protection.unprotected, protection.reason] if protection else None
    change = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    program = [str(SYSTEM_PYTHON), "-c", AS_ANOTHER_USER, str(base / "here"), json.dumps(given)]
    return subprocess.Popen(
        [*before, *change, *program, *argv],
        env={
            "HOME": str(base / "home"),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(base / "package"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_another_user_is_protected_as_well(elsewhere: Path) -> None:
    before = digest(elsewhere)
    check = f"import os; assert os.getuid() == os.geteuid() == {NOBODY}\n" + STDLIB_WRITERS
    argv = writers(elsewhere, elsewhere, str(SYSTEM_PYTHON))
    process = as_nobody(elsewhere, [argv[0], "-c", check, *argv[3:]])
    said = process.communicate(timeout=30)[0]
    if said.startswith("copy"):
        pytest.skip(f"another user gets no view here: {said}")
    assert process.returncode == 0, said
    assert digest(elsewhere) == before


def test_the_same_writers_change_another_users_files_without_a_view(elsewhere: Path) -> None:
    before = digest(elsewhere)
    argv = writers(elsewhere, elsewhere, str(SYSTEM_PYTHON))
    subprocess.run(argv, cwd=elsewhere / "here", user=NOBODY, group=NOBODY, check=True)
    assert digest(elsewhere) != before


def test_where_namespaces_are_refused_the_folder_is_copied(elsewhere: Path) -> None:
    # Linux makes no user namespace for a process in a chroot (user_namespaces(7)).
    chroot = 'mkdir root && mount --rbind / root && exec chroot root "$@"'
    outside = ("unshare", "--mount", "sh", "-c", f"cd {elsewhere} && {chroot}", "sh")
    try:
        before = digest(elsewhere / "here")
        process = as_nobody(elsewhere, ["/bin/sh", "-c", "pwd; echo 1 > data.txt"], before=outside)
        said = process.communicate(timeout=30)[0]
    finally:
        (elsewhere / "root").rmdir()
    assert process.returncode == 0, said
    assert said.startswith("copy [Errno 1] unshare: Operation not permitted"), said
    assert "hotlap-copy-" in said.splitlines()[1]
    assert digest(elsewhere / "here") == before


NESTED_MOUNTS = """
set -e
mkdir -p work file
mount -t tmpfs none work && mkdir work/data && mount -t tmpfs none work/data
mkdir work/data/constant && mount -t tmpfs none work/data/constant
echo real | tee work/data/constant/f > work/f && cp work/f work/data/f
mount -o remount,ro work/data/constant
echo hidden > file/f && cp work/f source && mount --bind source file/f
"$@"
tail -n +1 work/f work/data/f work/data/constant/f source
ls work file
"""
AS_TRIAL = """
import os, sys
from pathlib import Path
from hotlap.lab.scratch import Scratch
with Scratch(Path.cwd() / sys.argv[1]) as scratch:
    names = "f new data/f data/new data/constant/f"
    script = f"cat f data/f data/constant/f; for f in {names}; do echo 1 > $f; done; cat new"
    assert scratch.protection.kind == "overlay", scratch.protection
    scratch.popen(["/bin/sh", "-c", script], env=os.environ, stdout=None, stderr=None).wait()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.usefixtures("view")
@pytest.mark.parametrize(
    ("folder", "seen"), [("work", "real\nreal\nreal\n"), ("file", "real\n")], ids=str
)
def test_mounts_below_the_folder_are_seen_and_protected(
    tmp_path: Path, folder: str, seen: str
) -> None:
    trial = [sys.executable, "-c", AS_TRIAL, folder]
    command = ["unshare", "--mount", "sh", "-c", NESTED_MOUNTS, "sh", *trial]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(seen + "1\n"), done.stderr
    assert done.stdout.count("<==\nreal\n") == 4
    assert done.stdout.endswith("file:\nf\n\nwork:\ndata\nf\n")


def test_exit_codes_signals_and_output_pass_through(tmp_path: Path) -> None:
    for protection in (None, COPY):
        with Scratch(tmp_path, protection=protection) as scratch:
            assert shell(scratch, "echo out; echo err >&2; exit 7") == (7, "out\nerr\n")
            assert shell(scratch, "kill -TERM $$")[0] == 128 + signal.SIGTERM
            assert shell(scratch, "id -u; pwd -P")[1].splitlines()[0] == str(os.getuid())
            assert shell(scratch, "cat", stdin=subprocess.DEVNULL) == (0, "")
            ignored = int(shell(scratch, "grep SigIgn /proc/self/status")[1].split()[1], 16)
            assert not ignored & 1 << (signal.SIGPIPE - 1)


def test_sigterm_reaches_the_command_once(tmp_path: Path) -> None:
    script = """
import signal, sys, time
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
print("ready", flush=True)
while not caught: time.sleep(0.01)
time.sleep(0.2)
sys.exit(40 + len(caught))
"""
    with Scratch(tmp_path) as scratch:
        for send in (os.kill, os.killpg):
            process = start(scratch, [sys.executable, "-c", script], stdout=subprocess.PIPE)
            assert process.stdout is not None
            with process.stdout:
                process.stdout.readline()
                send(process.pid, signal.SIGTERM)
                assert process.wait(timeout=10) == 41


@pytest.mark.parametrize(
    ("protection", "own_network"),
    [(None, False), (None, True), (COPY, False)],
    ids=["view", "network", "copy"],
)
def test_a_socket_is_found_by_its_path_and_closes_when_the_trial_closes_it(
    tmp_path: Path, protection: Protection | None, own_network: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with (
        Scratch(tmp_path, protection=protection, passthrough=(outside,)) as scratch,
        closing(Hub(outside)) as hub,
    ):
        if own_network and scratch.why_no_network() is not None:
            pytest.skip("no networks of a trial's own here")
        script = f"import os, socket, time; os.chdir({str(outside)!r})"
        script += f"; s = socket.socket(socket.AF_UNIX); s.connect({Path(hub.address).name!r})"
        script += "; s.sendall(b'1\\n'); s.close(); time.sleep(65)"
        argv = [sys.executable, "-S", "-c", script]
        process = start(scratch, argv, own_network=own_network)

        def alive() -> bool:
            return process.poll() is None

        assert hub.receive(10, alive) == (0, 1)
        assert hub.receive(10, alive) is None
        assert alive()


@pytest.mark.parametrize("protection", [None, COPY], ids=["view", "copy"])
def test_what_cannot_be_started_is_an_error(tmp_path: Path, protection: Protection | None) -> None:
    message = "/no/such/python: No such file"
    with (
        Scratch(tmp_path, protection=protection) as scratch,
        pytest.raises(ScratchError, match=message),
    ):
        start(scratch, ["/no/such/python"], stdout=subprocess.PIPE)


@pytest.mark.usefixtures("view")
def test_a_view_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, passthrough=(tmp_path / "missing",))
    with scratch, pytest.raises(ScratchError, match="missing"):
        start(scratch, ["/bin/true"])
    scratch = Scratch(Path("/proc"), protection=Protection("overlay"))
    with scratch, pytest.raises(ScratchError, match="folder /proc could not be overlaid"):
        start(scratch, ["/bin/true"])


@pytest.mark.usefixtures("view")
def test_what_is_shared_is_real_even_where_it_is_hidden(tmp_path: Path) -> None:
    shared = tmp_path / "deep" / "shared"
    shared.mkdir(parents=True)
    for folder in (tmp_path, shared):
        (folder / "model.pth").write_text("state")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "log").touch()
    script = "test ! -e runs && ls . deep/shared; touch deep/shared/out deep/lost model.pth"
    hide = ("**/*.pth", "runs/")
    before = digest(tmp_path)
    with Scratch(tmp_path, passthrough=(shared,), hide=hide) as scratch:
        code, said = shell(scratch, script)
    assert (code, said.split()) == (0, [".:", "deep", "deep/shared:", "model.pth"])
    after = digest(tmp_path)
    assert after.pop(str(shared / "out"))
    before.pop(str(shared)), after.pop(str(shared))
    assert after == before


@pytest.mark.parametrize("protection", [None, COPY], ids=["view", "copy"])
def test_every_process_stops_and_dies_with_the_group(
    tmp_path: Path, protection: Protection | None
) -> None:
    marker = f"stop-{tmp_path.name}"
    script = (
        f"sh -c 'sleep 60 & wait' {marker} & sh -c 'sleep 60 & wait' {marker} & wait # {marker}"
    )
    with Scratch(tmp_path, protection=protection) as scratch:
        process = start(scratch, ["/bin/sh", "-c", script])
        trial = wait_for(
            lambda: [p for each in marked(marker) for p in family_of(each.pid)],
            lambda found: len({p.pid for p in found if "sleep" in p.name()}) == 2,
        )
        os.killpg(process.pid, signal.SIGSTOP)
        stopped = {psutil.STATUS_STOPPED}
        wait_for(lambda: {each.status() for each in trial}, lambda found: found == stopped)
        os.killpg(process.pid, signal.SIGCONT)
        wait_for(
            lambda: {each.status() for each in trial},
            lambda found: psutil.STATUS_STOPPED not in found,
        )
        os.killpg(process.pid, signal.SIGSTOP)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=5)
        wait_for(lambda: [m for m in trial if alive(m)], lambda found: not found)


@pytest.mark.parametrize("protection", [None, COPY], ids=["view", "copy"])
def test_what_a_command_leaves_running_ends_with_it(
    tmp_path: Path, protection: Protection | None
) -> None:
    marker = f"daemon-{tmp_path.name}"
    script = f"setsid sh -c 'sleep 62 # {marker}' & sleep 0.1"
    with Scratch(tmp_path, protection=protection) as scratch:
        assert start(scratch, ["/bin/sh", "-c", script]).wait(timeout=10) == 0
        wait_for(lambda: marked(f"sleep 62 # {marker}"), lambda found: not found)


CONTROLLER = """
import os, sys
from pathlib import Path
from hotlap.lab import family
from hotlap.lab.copying import Source, end_leftovers, new_name
from hotlap.lab.scratch import Protection, Scratch
protection = Protection("copy", (), "forced") if sys.argv[2] == "copy" else None
with Scratch(Path(sys.argv[1]), protection=protection) as scratch:
    script = f"setsid sleep 61 & sleep 61 & wait # {sys.argv[3]}"
    process = scratch.popen(["/bin/sh", "-c", script], env=os.environ, stdout=None, stderr=None)
    print(process.pid, flush=True)
    process.wait()
"""


def processes_below(pid: int) -> list[psutil.Process]:
    return wait_for(
        lambda: family_of(pid),
        lambda found: len([p for p in found if alive(p) and p.name() == "sleep"]) == 2,
    )


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("kind", ["view", "copy"])
@pytest.mark.parametrize("victim", ["controller", "launcher", "keeper"])
def test_nothing_is_left_after_kill_9(
    tmp_path: Path, kind: str, victim: str, stopped: bool
) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path), kind, f"left-{tmp_path.name}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as controller:
        assert controller.stdout is not None
        launcher = int(controller.stdout.readline())
        family = processes_below(launcher)
        assert kind == "view" or list(temporary.iterdir())
        if stopped:
            os.killpg(launcher, signal.SIGSTOP)
        keeper = psutil.Process(launcher).children()[0].pid
        os.kill(
            {"launcher": launcher, "keeper": keeper}.get(victim, controller.pid), signal.SIGKILL
        )
        if stopped and victim == "keeper":
            os.killpg(launcher, signal.SIGCONT)
        wait_for(lambda: [m for m in family if alive(m)], lambda found: not found)
    wait_for(lambda: list(temporary.iterdir()), lambda found: not found)
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.parametrize("kind", ["view", "copy"])
def test_nothing_is_left_when_all_that_could_clean_up_is_killed_at_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path), kind, f"all-{tmp_path.name}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as controller:
        assert controller.stdout is not None
        launcher = int(controller.stdout.readline())
        everyone = processes_below(launcher)
        keeper = psutil.Process(launcher).children()[0].pid
        family.stop(launcher, keeper_too=kind == "view")
        # Stopped first, so that none of them sees another one go.
        for pid in (keeper, launcher, controller.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (keeper, launcher, controller.pid):
            os.kill(pid, signal.SIGKILL)
    sleeping = [each for each in everyone if each.pid not in (launcher, keeper)]
    if kind == "copy":
        # The trial itself is tied to its keeper; what it started is found by the next hotlap.
        wait_for(lambda: [m for m in sleeping if alive(m)], lambda found: len(found) < 3)
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        end_leftovers()
    wait_for(lambda: [m for m in sleeping if alive(m)], lambda found: not found)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("protection", [None, COPY], ids=["view", "copy"])
def test_nothing_is_left_of_another_user_after_kill_9(
    elsewhere: Path, protection: Protection | None
) -> None:
    # Entering a user namespace changes credentials, which may clear the parent-death signal.
    controller = as_nobody(
        elsewhere, ["/bin/sh", "-c", "sleep 63 & sleep 63 & wait"], protection=protection
    )
    assert controller.stdout is not None
    with controller, controller.stdout:
        if protection is None and controller.stdout.readline().startswith("copy"):
            pytest.skip("another user gets no view here")
        family = processes_below(controller.pid)
        controller.kill()
    wait_for(lambda: [m for m in family if alive(m)], lambda found: not found)
    wait_for(lambda: list(Path("/tmp").glob(f"hotlap-copy-{controller.pid}-*")), lambda f: not f)


def test_in_a_copy_home_temporary_folder_links_and_arguments_point_into_it(tree: Path) -> None:
    here = tree / "here"
    (tree / "alias").symlink_to(here)
    (here / "inner").symlink_to(here / "data.txt")
    (here / "outer").symlink_to("../away/data.txt")
    (here / ".venv" / "bin").mkdir(parents=True)
    (here / ".venv" / "pyvenv.cfg").touch()
    (here / ".venv" / "bin" / "sh").symlink_to("/bin/sh")
    (here / ".venv" / "large").write_bytes(bytes(10_000))
    before = digest(tree)
    script = """
for path in "$HOME" "$TMPDIR" "$PWD" .; do echo lost > "$path/note"; done
for path in "$@"; do echo lost > "${path#--out=}"; done
echo lost > inner; cat outer; test ! -e gone.txt
"""
    argv = [str(here / ".venv" / "bin" / "sh"), "-c", script, "sh"]
    argv += [str(tree / "alias" / "a"), str(here / "b"), f"--out={here / 'c'}"]
    limits = {"protection": COPY, "copy_limit_bytes": 9_000}
    with Scratch(tree / "alias", hide=("gone.*",), **limits) as scratch:
        real = {"HOME": str(tree / "home"), "TMPDIR": str(tree / "away")}
        process = start(scratch, argv, stdout=subprocess.PIPE, env={**os.environ, **real})
        assert process.communicate(timeout=10)[0] == b"original"
        assert process.returncode == 0
    assert digest(tree) == before


def test_a_copy_is_gone_when_its_trial_has_ended(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Scratch(tree / "here", protection=COPY) as scratch:
        start(scratch, ["/bin/true"]).wait(timeout=10)
        assert not list(tmp_path.glob("hotlap-copy-*"))
        start(scratch, ["/bin/sleep", "64"])
        assert list(tmp_path.glob("hotlap-copy-*"))
    assert not list(tmp_path.glob("hotlap-copy-*"))


def test_a_copy_of_a_folder_that_nobody_may_write_to_can_be_filled_and_removed(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "real" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for folder in (inner, inner.parent):
        folder.chmod(0o555)
    Source(str(inner.parent), frozenset(), frozenset()).copy(str(tmp_path / "copy"))
    for folder in (inner, inner.parent):
        folder.chmod(0o755)
    copies = [tmp_path / "copy", tmp_path / "copy" / "inner"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in copies] == [0o755] * 2
    assert (copies[1] / "file").exists()


def test_a_copy_of_another_machine_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine, ended = new_name(), subprocess.Popen(["/bin/true"])
    ended.wait()
    abandoned = mine.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    foreign = new_name().replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in (mine, abandoned, foreign):
        (tmp_path / name).mkdir()
    end_leftovers()
    assert {each.name for each in tmp_path.iterdir()} == {mine, foreign}


def test_a_folder_too_large_to_copy_is_refused_with_both_sizes(tree: Path) -> None:
    (tree / "large").write_bytes(bytes(3 * 2**20))
    message = r"holds 3\.0 MiB.*forced.*Expected: at most 1\.0 MiB.*Start hotlap in a folder"
    scratch = Scratch(tree, protection=COPY, copy_limit_bytes=2**20)
    with scratch, pytest.raises(ScratchError, match=message):
        start(scratch, ["/bin/true"])


def test_trials_at_the_same_time_do_not_see_each_other(tmp_path: Path) -> None:
    script = "echo $0 > mine; read wait; test $(cat mine) = $0 && ls"
    with Scratch(tmp_path) as scratch:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        trials = [start(scratch, ["/bin/sh", "-c", script, str(n)], **pipes) for n in range(4)]
        said = [trial.communicate(b"go\n", timeout=10)[0] for trial in trials]
        assert [trial.returncode for trial in trials] == [0] * 4
    assert said == [b"mine\n"] * 4
    assert not (tmp_path / "mine").exists()


@pytest.mark.usefixtures("view")
def test_a_trial_sees_its_own_processes_and_may_use_shared_memory(tmp_path: Path) -> None:
    script = """
import multiprocessing.shared_memory, os, sys
assert os.readlink("/proc/self") == str(os.getpid())
assert len([name for name in os.listdir("/proc") if name.isdigit()]) <= 4
memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
memory.buf[0] = 1
memory.close(); memory.unlink()
multiprocessing.Lock().acquire()
"""
    with Scratch(tmp_path) as scratch:
        assert start(scratch, [sys.executable, "-c", script]).wait(timeout=10) == 0


def test_a_data_set_in_shared_memory_is_seen(tmp_path: Path) -> None:
    folder = Path("/dev/shm") / tmp_path.name
    folder.mkdir()
    try:
        (folder / "data").write_text("real\n")
        with Scratch(folder) as scratch:
            assert shell(scratch, "cat data; echo lost > data; cat data") == (0, "real\nlost\n")
        assert (folder / "data").read_text() == "real\n"
    finally:
        shutil.rmtree(folder)


@pytest.mark.usefixtures("view")
def test_a_root_script_cannot_take_the_view_away(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        shell(scratch, "umount -l /tmp; mount -o remount,bind,rw /; echo lost > $PWD/note")
    assert list(tmp_path.iterdir()) == []


def test_a_trial_may_be_started_from_any_thread_that_lives(tmp_path: Path) -> None:
    codes: list[int] = []
    with Scratch(tmp_path) as scratch:
        thread = threading.Thread(target=lambda: codes.append(shell(scratch, "sleep 0.1")[0]))
        thread.start()
        thread.join(timeout=10)
    assert codes == [0]


def test_long_arguments_are_passed(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        assert shell(scratch, f"# {'x' * 120_000}\necho é")[1] == "é\n"


def test_a_start_takes_some_ten_milliseconds(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    spent_ms = []
    with Scratch(tmp_path) as scratch:
        for _ in range(9):
            begin = time.perf_counter()
            process = start(scratch, ["/bin/true"])
            spent_ms.append((time.perf_counter() - begin) * 1e3)
            process.wait(timeout=10)
        kind = scratch.protection.kind
    with capsys.disabled():
        print(f" [{kind}: popen takes {sorted(spent_ms)[4]:.0f} ms, median of 9]", end="")
    assert sorted(spent_ms)[4] < 2_000


def test_what_no_overlay_protects_is_never_deleted_to_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHER))
    views = importlib.import_module("views")
    (tmp_path / "runs").mkdir()
    real = tmp_path / "runs" / "best.pth"
    real.write_text("weights")
    for hidden in (real, tmp_path / "runs"):
        with pytest.raises(RuntimeError, match="no overlay protects the real file"):
            views.hide([str(hidden)], lambda _: False)
    # What lies on a disk of its own inside of a protected folder.
    with pytest.raises(RuntimeError, match="no overlay protects the real file"):
        views.hide([str(real.parent)], lambda folder: folder == str(tmp_path))
    assert real.read_text() == "weights"
    views.hide([str(real.parent)], lambda _: True)
    assert not real.parent.exists()
