"""A process is told from every other that has or had its number."""

import json
import os
import signal
from typing import Any

import pytest

from hotlap.checkpoint import owner
from hotlap.checkpoint.owner import Owner, is_alive, start_time_of


def me(**changes: Any) -> Owner:
    return Owner(**Owner.of_this_process().to_json() | changes)


def test_this_process_lives_and_is_told_by_number_host_and_time() -> None:
    assert me().lives
    assert Owner.parse(json.loads(json.dumps(me().to_json()))) == me()
    shown = str(me())
    assert shown.startswith(f"process {os.getpid()} on {me().host}, started 20")


@pytest.mark.parametrize(
    "changes", [{"start": 1}, {"pid": 2**31}, {"pid": 0}, {"pid": -1}, {"boot": "another"}]
)
def test_what_differs_from_a_living_process_is_not_it(changes: dict[str, Any]) -> None:
    assert not me(**changes).lives


def test_another_process_of_the_same_number_is_not_the_one_that_had_it() -> None:
    start = start_time_of(os.getpid())
    assert start is not None
    assert is_alive(os.getpid()) and is_alive(os.getpid(), start)
    assert not is_alive(os.getpid(), start - 1)


def test_a_process_that_has_ended_and_was_not_waited_for_is_dead() -> None:
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert not is_alive(child) and start_time_of(child) is None
    finally:
        os.waitpid(child, 0)
    assert not is_alive(child)


def test_a_name_may_hold_brackets_and_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = owner.Path("/proc/self/stat")
    if not stat.exists():
        pytest.skip("this system keeps no such file")
    head, _, rest = stat.read_text().rpartition(")")
    number = head.partition("(")[0]
    expected = start_time_of(os.getpid())
    monkeypatch.setattr(
        owner.Path, "read_text", lambda _: f"{number}(a ) 1 2 (b) 3 4 5 6 7 8 9 c){rest}"
    )
    assert start_time_of(os.getpid()) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "7"},
        {"pid": True},
        {"pid": 7.0},
        {"start": None},
        {"host": 3},
        {"namespace": "4"},
        {"more": 1},
    ],
)
def test_what_no_owner_writes_is_none(change: dict[str, Any]) -> None:
    given = me().to_json()
    assert Owner.parse(given) is not None
    assert Owner.parse({**given, **change}) is None
    for name in given.keys() - {"namespace"}:
        assert Owner.parse({key: value for key, value in given.items() if key != name}) is None
    assert Owner.parse([given]) is None and Owner.parse(None) is None


def test_where_a_machine_does_not_tell_its_starts_apart_its_name_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "boot", lambda: "")
    assert me(boot="").is_of_this_boot
    assert not me(boot="", host="elsewhere").is_of_this_boot
    assert not me(boot="told before").is_of_this_boot


def test_what_older_versions_wrote_is_read() -> None:
    given = me().to_json()
    del given["namespace"]
    assert Owner.parse(given) == me(namespace=0)


@pytest.mark.parametrize(
    ("changes", "is_visible"),
    [
        ({}, True),
        ({"pid": 2**30}, True),
        ({"namespace": 0}, True),
        ({"namespace": 1}, False),
        ({"host": "elsewhere"}, False),
        ({"host": "elsewhere", "namespace": 0}, False),
    ],
)
def test_processes_of_other_containers_are_not_seen(
    changes: dict[str, Any], is_visible: bool
) -> None:
    assert me(**changes).is_visible is is_visible


def test_a_place_is_that_of_a_host_and_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    before = owner.place()
    assert before == owner.place() and len(before) == 8
    with monkeypatch.context() as patch:
        patch.setattr(owner, "pid_namespace", lambda: 1)
        assert owner.place() != before
    monkeypatch.setattr(owner.socket, "gethostname", lambda: "elsewhere")
    assert owner.place() != before
