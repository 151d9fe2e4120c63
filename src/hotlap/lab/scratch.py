import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Protection:
    kind: str = "none"
    unprotected: tuple = ()
    reason: str | None = None


class Scratch:
    def __init__(self, cwd, *, passthrough=(), hide=(), protection=None):
        self.cwd = cwd
        self.protection = Protection()

    def __enter__(self):
        return self

    def __exit__(self, *a):
        pass

    def popen(self, argv, *, env, stdout, stderr, pass_fds=()):
        return subprocess.Popen(
            argv,
            env=env,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            cwd=self.cwd,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
