"""Which of the files that a process has imported are the user's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit, json
import helper, os
from hotlap.usercode import files_to_report, keep_script
{keeps}
os.chdir("elsewhere")
atexit.register(lambda: print(json.dumps(files_to_report())))
"""


@pytest.mark.parametrize(
    ("keeps", "found"),
    [("keep_script()", ["helper.py", "train.py"]), ("", ["helper.py"])],
)
def test_a_script_that_has_ended_is_known_if_it_was_kept(
    keeps: str, found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "train.py").write_text(SCRIPT.format(keeps=keeps))
    command = [sys.executable, "train.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == found
