"""Which parts of a session are called, and in which order."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.attach.apply import PlanInProcess
from hotlap.attach.learning.watch import WatchLearning
from hotlap.attach.roles.session import Part, Session
from hotlap.plan import Plan
from hotlap.trace.clock import OPTIMIZER, OTHER, PhaseClock
from hotlap.trace.events import Events
from hotlap.trial.protocol import Config


class Hearing(Part):
    """Notes its name; hears of batches once an iterator was made."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self.name, self.heard, self.has_loader = name, heard, False

    def hears(self, name: str) -> bool:
        return super().hears(name) and (name != "batch_ends" or self.has_loader)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        self.has_loader = True

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        self.heard.append(self.name)
        return batch + self.name

    def backward_begins(self, loss: Any) -> None:
        self.heard.append(self.name)

    def backward_ends(self) -> None:
        self.heard.append(self.name)


def session_of(*parts: Part) -> Session:
    channel: Any = SimpleNamespace()
    session = Session(Config("observe"), channel, PlanInProcess(Plan()))
    session.play(*parts)
    return session


def go_backward(session: Session, loss: Any = None) -> None:
    for hear in session.at_backward:
        hear(loss)
    for hear in session.after_backward:
        hear()


def test_what_begins_is_heard_in_order_and_what_ends_backwards() -> None:
    heard: list[str] = []
    session = session_of(Hearing("a", heard), Part(), Hearing("b", heard))
    go_backward(session)
    assert heard == ["a", "b", "b", "a"]
    # Of nobody, and of one alone.
    go_backward(session_of(Part()))
    go_backward(session_of(Hearing("c", heard)))
    assert heard[4:] == ["c", "c"]


def test_a_part_is_heard_again_once_there_is_something_for_it() -> None:
    heard: list[str] = []
    session = session_of(Hearing("a", heard), Hearing("b", heard))
    assert session.batch_ends(None, "") == "" and not heard
    session.iterator_made(SimpleNamespace(dataset=(), collate_fn=None), None)
    assert session.batch_ends(None, "") == "ab"
    assert heard == ["a", "b"]


def test_zeroed_gradients_are_heard_of_once_something_was_evaluated() -> None:
    session = session_of()
    learning = WatchLearning(session, Events())
    session.play(learning)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()).eval()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        output = model(torch.ones(1, 2))
        session.evaluation_forward_ends(model, (torch.ones(1, 2),), {}, output)
        go_backward(session, output.sum())
        for hear in session.at_zeroing:
            hear()
    for hear in session.at_step:
        hear(optimizer)
    (found,) = learning.facts().losses
    assert (found.backwards, found.in_evaluation_mode) == (2, 0)


def test_a_plan_without_work_in_a_step_is_not_told_of_steps() -> None:
    assert not PlanInProcess(Plan()).follows_steps
    assert PlanInProcess(Plan({"optimizer": {"implementation": "foreach"}})).follows_steps
    plan = PlanInProcess(Plan({"garbage_collector": {}}))
    plan.start()
    assert plan.follows_steps


def test_what_a_plan_does_after_an_update_is_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases = PhaseClock()

    class Clocked(Part):
        clock = phases

    plan = PlanInProcess(Plan({"optimizer": {"implementation": "foreach"}}))
    session = Session(Config("observe"), SimpleNamespace(send=lambda *_, **__: None), plan)  # pyright: ignore[reportArgumentType]
    session.play(Clocked())
    found: list[int] = []
    monkeypatch.setattr(plan, "step_ends", lambda: found.append(phases.current))
    phases.enter(OPTIMIZER)
    session.step_ends(None)
    assert found == [OTHER]


def test_an_event_has_the_line_that_asked_for_it() -> None:
    events = Events()

    def heard(step: int) -> None:
        events.step = step
        (lambda: events.note("backward", 3))()

    heard(0)
    heard(
        1,
    )
    first, second = (int(event.where.rpartition(":")[2]) for event in events.as_tuple())
    line = test_an_event_has_the_line_that_asked_for_it.__code__.co_firstlineno
    assert (first - line, second - line) == (7, 8)
    assert events.newest[0] is test_an_event_has_the_line_that_asked_for_it.__code__


def test_only_so_many_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.trace.events._MOST", 3)
    events = Events()
    for step in range(5):
        events.step = step
        events.note("backward")
    assert [event.step for event in events.as_tuple()] == [0, 1, 2]


def test_an_event_without_a_line_of_the_users() -> None:
    events = Events()
    events.note("backward", None)
    assert [event.where for event in events.as_tuple()] == [""]


LATE = """
from types import SimpleNamespace
import torch
from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.roles.session import Part, Session
from hotlap.plan import Plan
from hotlap.trial.protocol import Config

class Ear(Part):
    wants_phases = True

    def root_found(self, module):
        found.append(type(module).__name__)

class Maker(torch.nn.Linear):
    pass

class Judge(torch.nn.Linear):
    pass

def is_looking():
    return torch.nn.Module in seams.State.patched_classes

found, channel = [], SimpleNamespace(send=lambda *_, **__: None)
session = Session(Config("observe"), channel, PlanInProcess(Plan()))
session.play(Ear())
seams.install(session)
maker, judge = Maker(2, 2), Judge(2, 1)
of_maker, of_judge = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (maker, judge))
of_nobody = torch.optim.SGD(judge.parameters(), lr=0.1) if WRAPS else None
for step in range(1, 13):
    with torch.no_grad():
        fake = maker(torch.ones(1, 2))
    judge(fake).sum().backward()
    of_judge.step()
    assert is_looking() == (step == 1 or WRAPS and step <= 10), step
    judge(maker(torch.ones(1, 2))).sum().backward()
    of_maker.step()
    assert is_looking() == (WRAPS and step < 10), step
assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
print(*found)
"""


@pytest.mark.parametrize("wraps", [True, False])
def test_a_model_that_is_trained_after_another_ones_step_is_found(wraps: bool) -> None:
    script = f"WRAPS = {wraps}\n{LATE}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["Judge", "Maker"], ran.stderr
