"""The journal: lines that count once they are whole."""

import resource
from pathlib import Path

import pytest

from hotlap.errors import StorageError, UsageError
from hotlap.search.journal import Journal, read


def lines(path: Path) -> list[int]:
    return [record["n"] for record in read(path)[0]]


def test_a_torn_tail_is_ignored_and_cut_off_before_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    assert journal.open() == []
    for n in range(3):
        journal.append({"kind": "job", "n": n})
    journal.close()
    whole = path.read_bytes()
    for torn in range(1, len(whole.splitlines()[-1]) + 1):
        path.write_bytes(whole[:-torn])
        assert lines(path) == [0, 1]
        journal = Journal(path)
        assert len(journal.open()) == 2
        journal.append({"kind": "job", "n": 7})
        journal.close()
        assert lines(path) == [0, 1, 7]


def test_a_line_that_is_no_json_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for content, words in (
        (b'{"kind": "job"}\n{"ki\n{"kind": "job"}\n', "line 2"),
        (b"3\n", "line 1"),
        (b'{"kind": "job"}\n{"kind": "note"}\n', "line 2 .* of the kind 'note'.*Expected: search"),
        (b'{"kind": [1]}\n', "line 1 .* of the kind"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            Journal(path).open()
        assert path.read_bytes() == content


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.open()
    journal.append({"kind": "job", "n": 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        with pytest.raises(StorageError, match="Free some space, and run this `hotlap"):
            journal.append({"kind": "job", "n": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert lines(path) == [0]
    journal.append({"kind": "job", "n": 2})
    assert lines(path) == [0, 2]
