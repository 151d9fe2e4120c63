"""`diagnose --memory` of scripts that train on a GPU; and its refusal of a snapshot without one."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

import hotlap
from hotlap.cli import main
from hotlap.errors import UsageError
from hotlap.host.facts import Host
from tests.diagnosis.test_memory import HEAD, LOOP, SMALL, TAIL, diagnosed

ON_GPU = SMALL + 'model = model.to("cuda")\n' + TAIL
MOVED = LOOP.replace(
    "    outputs =", '    inputs, targets = inputs.to("cuda"), targets.to("cuda")\n    outputs ='
)


def test_a_snapshot_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["diagnose", "train.py", "--memory", "--snapshot", "a.pickle"]) == 2
    shown = capsys.readouterr()
    assert "no CUDA GPU was found on this host" in shown.err and "--svg" in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_call_from_python_refuses_a_snapshot_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("open('started', 'w').close()\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    for path, words in (
        (tmp_path / "a.pickle", r"snapshot='.*a.pickle': no CUDA GPU .* Remove snapshot\."),
        (tmp_path / "no" / "a.pickle", "the folder .* was not found"),
        (script, "exists and was not written by this option"),
    ):
        with pytest.raises(UsageError, match=words):
            hotlap.diagnose_memory(script, snapshot=path)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_a_call_from_python_asks_for_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(HEAD + SMALL + TAIL + LOOP)
    found = Host.detect()
    monkeypatch.setattr(Host, "detect", lambda: replace(found, gpus=("a GPU",)))
    to = tmp_path / "a.pickle"
    diagnosis = hotlap.diagnose_memory(tmp_path / "train.py", snapshot=to, budget=20)
    assert any("no snapshot was written: the model is not on" in n for n in diagnosis.trace.notes)
    assert not diagnosis.trace.has_snapshot and not to.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--snapshot", "a.pickle"], "cannot be used without --memory"),
        (["--memory", "--snapshot", "no/such/a.pickle"], "the folder 'no/such' was not found"),
        (["--memory", "--svg", "train.py"], "exists and was not written by this option"),
        (["--memory", "--svg", "."], "exists and was not written by this option"),
    ],
)
def test_a_snapshot_that_cannot_be_written_is_refused(
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", "train.py", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.slow
def test_the_snapshot_is_what_pytorchs_viewer_opens(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, ON_GPU + MOVED, "--snapshot", "a.pickle")
    snapshot = pickle.loads((tmp_path / "a.pickle").read_bytes())
    assert {"segments", "device_traces"} <= snapshot.keys()
    events = [event for trace in snapshot["device_traces"] for event in trace]
    assert any(event["action"] == "alloc" for event in events)
    frames = [frame for event in events for frame in event.get("frames", [])]
    assert any(frame["filename"].endswith("train.py") for frame in frames)
    assert found["findings"] == []


@pytest.mark.gpu
@pytest.mark.slow
def test_the_peak_of_the_tensors_is_part_of_the_allocators(tmp_path: Path) -> None:
    memory = diagnosed(tmp_path, ON_GPU + MOVED)["memory"]
    peak = memory["device_peak"]
    assert memory["device"] == "cuda"
    assert 0 < memory["peak_bytes"] <= peak["allocated_bytes"] <= peak["reserved_bytes"]


@pytest.mark.gpu
@pytest.mark.slow
def test_a_cache_that_is_emptied_in_every_step_is_found(tmp_path: Path) -> None:
    call = "    torch.cuda.empty_cache()\n"
    text = ON_GPU + MOVED + call
    found = diagnosed(tmp_path, text)["findings"]
    (finding,) = [each for each in found if each["rule"] == "allocator_churn"]
    number = (tmp_path / "train.py").read_text().splitlines().index(call.rstrip()) + 1
    assert finding["where"] == f"train.py:{number}"
    assert diagnosed(tmp_path, ON_GPU + MOVED)["findings"] == []
