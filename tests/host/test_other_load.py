"""How busy the machine is with what is not ours."""

import os
import subprocess
import sys
import time

import pytest

from hotlap.host import probes
from hotlap.host.probes import OtherLoad


@pytest.mark.parametrize(("own_s", "others"), [(0.0, 1.5), (4.0, 1.1), (20.0, 0.0)])
def test_what_this_process_and_its_children_took_is_no_others(
    own_s: float, others: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_s = os.sysconf("SC_CLK_TCK")
    ticks, seconds, now = (
        iter([(0, 0), (15 * per_s, per_s)]),
        iter([7.0, 7.0 + own_s]),
        iter([0, 10]),
    )
    monkeypatch.setattr(probes, "_busy_ticks", lambda: next(ticks))
    monkeypatch.setattr(probes, "_own_seconds", lambda: next(seconds))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    busy, stolen = OtherLoad().so_far()
    assert busy == pytest.approx(others) and stolen == pytest.approx(0.1)


def test_a_child_that_was_waited_for_counts_as_our_own() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    before = probes._own_seconds()
    subprocess.run([sys.executable, "-c", spin], check=True)
    assert probes._own_seconds() - before > 0.2
