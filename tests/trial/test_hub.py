"""Every process of a run connects to one socket, and nobody waits for one that never will."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from hotlap.trial import hub as hub_module
from hotlap.trial.channel import Channel
from hotlap.trial.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with closing(Hub(tmp_path)) as hub:
        yield hub


@pytest.fixture
def connect() -> Iterator["Connect"]:
    with ExitStack() as opened:
        yield lambda hub: opened.enter_context(closing(Channel.connect(hub.address)))


Connect = Callable[[Hub], Channel]


def alive() -> bool:
    return True


def dead() -> bool:
    return False


def test_messages_of_two_processes_say_which_they_are_from(hub: Hub, connect: Connect) -> None:
    first, second = connect(hub), connect(hub)
    first.send("attached", rank=0)
    assert hub.receive(5, alive) == (0, {"kind": "attached", "rank": 0})
    second.send("attached", rank=1)
    second.send("report", steps=3)
    assert hub.receive(5, alive) == (1, {"kind": "attached", "rank": 1})
    assert hub.receive(5, alive) == (1, {"kind": "report", "steps": 3})
    hub.send("turn", steps=20)
    assert first.receive(5) == second.receive(5) == {"kind": "turn", "steps": 20}


def test_one_that_has_ended_is_heard_to_its_last_word_and_the_other_goes_on(
    hub: Hub, connect: Connect
) -> None:
    first, second = connect(hub), connect(hub)
    first.send("attached")
    first.send("report")
    first.close()
    assert [hub.receive(5, alive) for _ in range(2)] == [
        (0, {"kind": "attached"}),
        (0, {"kind": "report"}),
    ]
    with pytest.raises(TimeoutError):
        hub.receive(0.01, dead)
    hub.send("go")
    assert second.receive(5) == {"kind": "go"}
    second.close()
    assert hub.receive(5, alive) is None


def test_what_is_sent_before_anybody_has_connected_waits_for_the_first(
    hub: Hub, connect: Connect
) -> None:
    hub.send("repeat", file="a")
    hub.send("repeat", file="b")
    first, second = connect(hub), connect(hub)
    first.send("attached")
    assert hub.receive(5, alive) == (0, {"kind": "attached"})
    assert [first.receive(5), first.receive(5)] == [
        {"kind": "repeat", "file": "a"},
        {"kind": "repeat", "file": "b"},
    ]
    with pytest.raises(TimeoutError):
        second.receive(0.01)


def test_a_process_that_dies_before_it_connects_is_not_waited_for(hub: Hub) -> None:
    assert hub.receive(5, dead) is None
    with pytest.raises(TimeoutError):
        hub.receive(0.1, alive)


def test_what_was_said_before_the_death_is_heard(hub: Hub, connect: Connect) -> None:
    channel = connect(hub)
    channel.send("attached")
    channel.close()
    assert hub.receive(5, dead) == (0, {"kind": "attached"})
    assert hub.receive(5, dead) is None


def test_a_folder_may_have_a_longer_path_than_an_address_has_room_for(
    tmp_path: Path, connect: Connect
) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with closing(Hub(folder)) as hub, closing(Hub(folder)) as other:
        assert hub.address != other.address
        with socket.socket(socket.AF_UNIX) as plain, pytest.raises(OSError, match="too long"):
            plain.connect(hub.address)
        channel = connect(hub)
        assert channel.send("attached")
        assert hub.receive(5, alive) == (0, {"kind": "attached"})
    assert not list(folder.iterdir())


def test_nobody_listens_at_an_address_that_is_gone(tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    hub.close()
    before = os.listdir("/proc/self/fd")
    assert not Channel.connect(hub.address).send("attached")
    assert not Channel.connect(None).send("attached")
    assert os.listdir("/proc/self/fd") == before


def test_a_process_that_is_gone_costs_no_descriptor(hub: Hub) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        with closing(Channel.connect(hub.address)) as channel:
            channel.send("attached")
        assert hub.receive(5, alive) == (number, {"kind": "attached"})
    assert hub.receive(5, alive) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_no_more_files_can_be_opened_it_hears_the_others(
    hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = connect(hub)
    first.send("attached")
    assert hub.receive(5, alive) is not None
    second = connect(hub)
    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "accept", refusing)
        first.send("report")
        assert hub.receive(5, alive) == (0, {"kind": "report"})
    second.send("attached")
    assert hub.receive(5, alive) == (1, {"kind": "attached"})


def refusing(_: socket.socket) -> None:
    raise OSError(24, "Too many open files")


def test_nobody_waits_for_one_who_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_WAITING", 1)
    with closing(Hub(tmp_path)) as hub:
        made: list[Channel] = []
        connects = lambda: made.extend(Channel.connect(hub.address) for _ in range(5))  # noqa: E731
        thread = threading.Thread(target=connects, daemon=True)
        thread.start()
        thread.join(10)
        assert len(made) == 5, "it waits"
        assert made[0].send("attached") and not made[-1].send("attached")
        for channel in made:
            channel.close()


def test_what_a_hub_has_left_behind_is_never_another_ones(tmp_path: Path) -> None:
    with closing(Hub(tmp_path)) as before:
        Path(f"{before.address}.claim").write_text(str(os.getpid()))
    with closing(Hub(tmp_path)) as after:
        assert not Path(f"{after.address}.claim").exists()
