"""One table, every technique: what it may never change, alone and in pairs."""

import contextlib
import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from hotlap.attach.entry import Script
from hotlap.attach.runner import run
from hotlap.host.facts import Host
from hotlap.plan import Plan
from hotlap.techniques import ORDER, Numerics, Technique, get, numerics_of, registry
from hotlap.techniques.record import Seam
from tests.techniques.rows import (
    IN_THE_ENGINE_ONLY,
    NEED_ATTENTION,
    NEED_CUDA,
    NOT_FOR_TINY,
    SETTINGS,
    refuses,
)
from tests.techniques.rows import ROWS as ALL

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = Path(__file__).parents[1] / "tiny.py"

ELSEWHERE = (*IN_THE_ENGINE_ONLY, *NEED_ATTENTION, *NOT_FOR_TINY)
ROWS = {row: options for row, options in ALL.items() if row.split()[0] not in ELSEWHERE}

DATA = ("resident", "workers")
EXACT = {"resident", "workers", "optimizer foreach"}
"""Of these each pair is compared to the bit in `make test`."""
TOGETHER = (
    ("resident", "optimizer fused", "threads", "channels_last"),
    ("workers", "optimizer foreach", "threads", "channels_last"),
)
"""All others at once in `make test`."""
GROUPS = (
    *((data, "optimizer foreach", "host_allocator", "garbage_collector") for data in DATA),
    *(
        (data, optimizer, "threads", "channels_last", *SETTINGS)
        for data in DATA
        for optimizer in ("optimizer foreach", "optimizer fused")
    ),
)
"""In which each two that bear each other meet; those of the first two compare to the bit."""
REFUSED = {frozenset({"resident", "workers"}), frozenset({"deterministic", "cudnn_benchmark"})}
"""Pairs of which one refuses the other."""


def plan(*rows: str) -> Plan:
    return Plan({row.split()[0]: ROWS[row] for row in rows})


def trained(folder: Path, chosen: Plan | None) -> tuple[str, dict[str, Any], list[dict[str, str]]]:
    """Train the tiny CNN; return what it printed, what it saved, and what took effect."""
    saved = folder / "saved.pt"
    args = ("--model", "cnn", "--epochs", "3", "--save", str(saved), "--device", DEVICE)
    script = Script(path=str(TINY), args=args, cwd=str(TINY.parent))
    techniques: list[dict[str, str]] = []
    if chosen is None:
        done = subprocess.run(script.command(), cwd=script.folder, capture_output=True, text=True)
        output = done.stdout
    else:
        with (folder / "out").open("w") as stream:
            outcome = run(script, chosen, stdout=stream.fileno())
        assert outcome.exit_code == 0
        output, techniques = (folder / "out").read_text(), outcome.techniques
    return output, torch.load(saved, weights_only=True), techniques


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Any]:
    return trained(tmp_path_factory.mktemp("plain"), None)


def check(plain: Any, folder: Path, chosen: Plan, refused: bool = False) -> None:
    output, saved, techniques = trained(folder, chosen)
    states = {row["name"]: row for row in techniques}
    assert set(states) == set(chosen.techniques)
    assert ("refused" in {row["state"] for row in techniques}) is refused, states
    assert "no_effect" not in {row["state"] for row in techniques}, states
    assert list(saved["model"]) == list(plain[1]["model"])
    for key, value in plain[1]["model"].items():
        assert saved["model"][key].dtype == value.dtype
    assert saved["optimizer"]["param_groups"] == plain[1]["optimizer"]["param_groups"]
    # On a GPU a convolution's gradient differs from run to run.
    if numerics_of(chosen) is Numerics.EXACT and DEVICE == "cpu":
        assert output == plain[0]
        for key, value in plain[1]["model"].items():
            assert torch.equal(saved["model"][key], value), key
    else:
        # Two honest trajectories part soon; what each step computes is the verdict's business.
        assert first_loss(output) == pytest.approx(first_loss(plain[0]), rel=0.02)


def first_loss(output: str) -> float:
    return float(output.split()[3].rstrip(","))


def marked(row: Any, *names: str) -> Any:
    """What does nothing here is left to `make test-all`."""
    is_slow = not {*NEED_CUDA, *SETTINGS}.isdisjoint(names)
    marks = [pytest.mark.slow] if is_slow else []
    if len(names) > 1 and not {*NEED_CUDA}.isdisjoint(names):
        # Without a device all of them are tried at once.
        marks.append(pytest.mark.gpu)
    return pytest.param(row, marks=marks, id=" + ".join(names))


@pytest.mark.parametrize("row", [marked(row, row) for row in ROWS])
def test_alone(row: str, plain: Any, tmp_path: Path) -> None:
    check(plain, tmp_path, plan(row), refused=refuses(REFUSED, row))


@pytest.mark.skipif(torch.cuda.is_available(), reason="they serve on this device")
@pytest.mark.parametrize(
    "beside",
    [(), *(pytest.param((row,), marks=pytest.mark.slow, id=row) for row in sorted(EXACT))],
)
def test_what_needs_a_device_refuses_without_one_and_changes_nothing(
    beside: tuple[str, ...], plain: Any, tmp_path: Path
) -> None:
    names = [name for name in NEED_CUDA if name in ROWS]
    output, saved, techniques = trained(tmp_path, plan(*names, *beside))
    refused = [row for row in techniques if row["state"] == "refused"]
    assert {row["name"] for row in refused} == {*names}
    assert len(techniques) == len(names) + len(beside)
    assert all("cpu" in row["why"].lower() for row in refused)
    assert output == plain[0]
    for key, value in plain[1]["model"].items():
        assert torch.equal(saved["model"][key], value), key


@pytest.mark.parametrize("row", ["resident", "optimizer foreach"])
def test_all_settings_beside_another_technique(row: str, plain: Any, tmp_path: Path) -> None:
    check(plain, tmp_path, plan(*SETTINGS, row))


PAIRS = [
    pair for pair in itertools.combinations(ROWS, 2) if pair[0].split()[0] != pair[1].split()[0]
]
IN_GROUPS = {pair for group in GROUPS for pair in itertools.permutations(group, 2)}
ALONE = [pair for pair in PAIRS if pair not in IN_GROUPS or EXACT.issuperset(pair)]


@pytest.mark.parametrize("pair", [marked(pair, *pair) for pair in ALONE])
def test_in_pairs(pair: tuple[str, str], plain: Any, tmp_path: Path) -> None:
    check(plain, tmp_path, plan(*pair), refused=refuses(REFUSED, *pair))


@pytest.mark.parametrize(
    "rows",
    [
        *(pytest.param(rows, id=" + ".join(rows)) for rows in TOGETHER),
        *(pytest.param(rows, id=" + ".join(rows), marks=pytest.mark.slow) for rows in GROUPS),
    ],
)
def test_all_together(rows: tuple[str, ...], plain: Any, tmp_path: Path) -> None:
    check(plain, tmp_path, plan(*rows))


def test_each_technique_that_serves_here_is_tried_beside_others() -> None:
    serves = {*ROWS} - {*SETTINGS, *NEED_CUDA}
    assert {row for row in serves if numerics_of(plan(row)) is Numerics.EXACT} == EXACT
    assert EXACT.union(*TOGETHER) == serves


def test_every_technique_has_a_row_and_the_shape_of_one() -> None:
    assert {row.split()[0] for row in ALL} == set(ORDER)
    folder = Path(sys.modules["hotlap.techniques"].__file__ or "").parent
    declared = (p.stem for p in folder.glob("*.py") if "\nTECHNIQUE = " in p.read_text())
    assert set(declared) == set(ORDER)
    for name, technique in registry().items():
        assert isinstance(technique, Technique)
        assert technique.name == name
        values = next(values for row, values in ALL.items() if row.split()[0] == name)
        assert technique.seam_of(technique.options(values)) in get_args(Seam)
        assert technique.Options.__dataclass_params__.frozen


NAMES = ("none", "foreach", "fused")
TO_AND_FRO = [("none", "none"), *((name, "none") for name in NAMES[1:])]
TO_AND_FRO += [("none", name) for name in NAMES[1:]]


@pytest.mark.parametrize(
    "orders",
    [
        pytest.param(TO_AND_FRO, id="to and from the script's own"),
        pytest.param(
            [("none", "none"), *itertools.product(NAMES[1:], NAMES[1:])],
            id="to and from one another",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_resumed_run_continues_under_every_optimizer(
    orders: list[tuple[str, str]], tmp_path: Path
) -> None:
    """State that one implementation saved is taken up by the other."""
    script, state = tmp_path / "resume.py", tmp_path / "state.pt"
    script.write_text(RESUME)

    def go_on(name: str, saved: bytes | None) -> Any:
        state.unlink(missing_ok=True)
        if saved is not None:
            state.write_bytes(saved)
        if name == "none":
            with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()) as plain:
                exec(RESUME, {})
            return json.loads(plain.getvalue())
        chosen = Plan({"optimizer": {"implementation": name}})
        with (tmp_path / "out").open("w") as stream:
            done = run(Script(path=str(script), cwd=str(tmp_path)), chosen, stdout=stream.fileno())
        assert done.exit_code == 0
        return json.loads((tmp_path / "out").read_text())

    states = {}
    for name in dict(orders):
        go_on(name, None)
        states[name] = state.read_bytes()
    outputs = {(first, second): go_on(second, states[first]) for first, second in orders}
    reference = outputs["none", "none"]
    for order, value in outputs.items():
        assert "fused" in order or value == reference
        assert value == pytest.approx(reference, rel=1e-4)


RESUME = """
import json, os, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
if os.path.exists("state.pt"):
    saved = torch.load("state.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
print(json.dumps(model.weight.flatten().tolist()))
"""


def test_a_technique_that_cannot_serve_says_why() -> None:
    from hotlap.task import TaskFacts

    host = Host(cpu="x", cores=2)
    always = {"garbage_collector", "deterministic"}
    for row, values in ROWS.items():
        if row in always:
            continue
        technique = get(row.split()[0])
        reason = technique.why_not(TaskFacts(threads=1), host, technique.options(values))
        assert isinstance(reason, str), row
        assert len(reason) > 10, row
