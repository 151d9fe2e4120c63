"""The process of a rank, and its log."""

import os
import sys
from pathlib import Path

from hotlap.distributed.processes import start


def test_a_log_keeps_what_an_earlier_run_has_said(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    log.write_text("why it crashed\n")
    rank = start([sys.executable, "-c", "print('this folder is in use')"], 1, os.environ, log)
    assert rank.process.wait(30) == 0
    assert rank.last_lines == "this folder is in use"
    assert log.read_text() == "why it crashed\nthis folder is in use\n"
