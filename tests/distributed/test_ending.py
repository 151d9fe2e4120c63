"""A process ends well though threads of a process group still hold a tensor."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from hotlap.distributed.ending import let_tensors_go

dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
# From here on no other thread gets the interpreter, unless this one waits for something.
sys.setswitchinterval(1000)
for _ in range(3):
    dist.all_reduce(torch.zeros(2), async_op=True)
if sys.argv[2] == "wait":
    # In a run that has trained, the threads have had their names for long.
    threads = Path("/proc/self/task")
    while not any("gloo_runloop" in (each / "comm").read_text() for each in threads.glob("*")):
        pass
    let_tensors_go()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
def test_threads_let_go_of_their_tensors_before_the_interpreter_ends(tmp_path: Path) -> None:
    def end(how: str, number: int = 0) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", SCRIPT, str(tmp_path / f"{how}-{number}"), how]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=60)

    ends = (end("at once", number).stderr for number in range(8))
    assert any("terminate called without an active exception" in each for each in ends)
    assert end("wait").returncode == 0
