"""What a turn reports: the median of its steps, and their mean."""

import gc
import time
from typing import Any

import pytest
import torch

from hotlap.attach.apply import PlanInProcess
from hotlap.attach.roles import loop_ends
from hotlap.attach.roles.race import TakeTurns
from hotlap.attach.roles.session import Session
from hotlap.device import process_settings
from hotlap.plan import Plan
from hotlap.task import TaskFacts
from hotlap.trial.protocol import Config
from hotlap.trial.turns import Turns

GB = 10**9


class Line:
    """A channel on which turns are asked for and reported."""

    def __init__(self, *lengths: tuple[int, int]) -> None:
        self.asked = [{"kind": "turn", "steps": s, "skip": k} for s, k in lengths]
        self.said: list[dict[str, Any]] = []

    def receive(self) -> dict[str, Any] | None:
        return self.asked.pop(0) if self.asked else None

    def send(self, kind: str, **values: Any) -> None:
        self.said.append({"kind": kind, **values})

    @property
    def reported(self) -> list[dict[str, Any]]:
        return [message for message in self.said if message["kind"] == "turn"]


def made(line: Line) -> Turns:
    return Turns(line, 0.0, list, lambda: None)  # pyright: ignore[reportArgumentType]


def take(steps: int, made: Turns, stall: int | None = None) -> None:
    for step in range(steps):
        time.sleep(0.2 if step == stall else 0.001)
        made.step_done()


def test_one_long_step_moves_the_mean_and_not_the_median() -> None:
    line = Line((12, 2), (12, 2))
    turn = made(line)
    turn.gate()
    take(12, turn, stall=6)
    take(12, turn)
    stalled, calm = line.reported
    assert stalled["steps"] == calm["steps"] == 10
    assert stalled["ms"] / stalled["steps"] > 20
    assert stalled["median_ms"] < 20
    assert 0.9 < calm["median_ms"] < 20
    assert stalled["whole_ms"] > stalled["ms"] > 200


def test_on_a_device_that_steps_are_queued_on_a_turn_is_timed_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(process_settings, "devices_in_use", lambda: [0, 2])
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda number: 10 + number)
    line = Line((12, 2))
    turn = made(line)
    turn.gate()
    take(12, turn, stall=6)
    (report,) = line.reported
    assert report["median_ms"] == pytest.approx(report["ms"] / report["steps"])
    # At the count's beginning and at the end, and in no step; for every device of the process.
    assert waits == [0, 2, 0, 2]
    assert report["peak_bytes"] == 22


def test_a_turn_asks_nothing_of_cuda_before_the_script_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("CUDA was begun before the script chose its device")

    for name in ("is_available", "device_count", "current_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, asked)
    line = Line((12, 2))
    turn = made(line)
    turn.gate()
    take(12, turn)
    assert line.reported[0]["steps"] == 10


def test_only_devices_that_the_process_has_opened_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr("hotlap.compat.find_optional", lambda name: lambda number: number != 1)
    assert process_settings.devices_in_use() == [0, 2]


def role() -> TakeTurns:
    config = Config("race", plan={}, options={"started": 0.0})
    return TakeTurns(Session(config, Line(), PlanInProcess(Plan())))  # pyright: ignore[reportArgumentType]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_with_two_optimizers_a_step_is_one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    playing, first, second = role(), optimizer(), optimizer()
    ended = [playing._ends.ends(one) for _ in range(4) for one in (first, second)]
    assert ended == [True, False] * 4
    playing = role()
    playing._turns.is_open = True
    monkeypatch.setattr(Turns, "step_done", lambda _: None)
    for each in [first, second] * 3:
        playing.step_done(each)
    assert playing.report() == {"steps": 3}


def test_a_new_optimizer_takes_the_place_of_one_that_is_gone_or_used_no_more() -> None:
    playing, first = role(), optimizer()
    assert playing._ends.ends(first)
    del first
    gc.collect()
    kept = optimizer()
    assert playing._ends.ends(kept)
    later = optimizer()
    ended = [playing._ends.ends(later) for _ in range(30)]
    assert not ended[0]
    assert all(ended[loop_ends._REPLACED_AFTER :])


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([], (0, 0)),
        # 10 GB held at most, of 80 GB; 2 GB beside the allocator are counted as 1 GiB.
        ([(72, 80, 6, 10)], (10 * GB + 2**30, int(0.95 * (78 * GB + 2**30)))),
        # The fuller of two, which somebody else uses as well.
        ([(79, 80, 0, 0), (20, 80, 9, 9)], (9 * GB + 2**30, int(0.95 * (29 * GB + 2**30)))),
    ],
)
def test_a_process_knows_what_it_takes_of_its_device(
    devices: list[tuple[int, ...]], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(place: int) -> Any:
        return lambda number: devices[number][place] * GB

    monkeypatch.setattr(process_settings, "devices_in_use", lambda: list(range(len(devices))))
    for name, read in {
        "mem_get_info": lambda number: (of(0)(number), of(1)(number)),
        "memory_reserved": of(2),
        "max_memory_reserved": of(3),
    }.items():
        monkeypatch.setattr(torch.cuda, name, read)
    needed, room = process_settings.memory_of_process()
    assert (needed, room) == expected
    facts = TaskFacts(device_bytes=needed, device_room=room)
    assert facts.processes_at_once == (room // needed if needed else None)
    assert TaskFacts.from_json(facts.to_json()) == facts
