"""Rows of gradients: read as they are written, waited for, and over when their run is."""

import threading
import time
from pathlib import Path

import numpy
import pytest

from hotlap.trial import gradient_rows
from hotlap.trial.gradient_rows import RowReader, RowWriter, end_rows, is_begun

ROWS = [numpy.arange(count, dtype=numpy.float32) for count in (3, 0, 5)]


def read_all(reader: RowReader) -> list[list[float]]:
    found = []
    while (row := reader.next()) is not None:
        found.append(row.tolist())
    return found


def test_rows_are_read_in_their_order_until_the_run_is_over(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    writer = RowWriter(file)
    assert not is_begun(file)
    writer.write(ROWS[0])
    # The optimizer has no state yet.
    assert not is_begun(file)
    for row in ROWS[1:]:
        writer.write(row)
    assert is_begun(file)
    end_rows(file)
    assert read_all(RowReader(file)) == [row.tolist() for row in ROWS]
    # A run that ended before its first row has none.
    end_rows(tmp_path / "empty")
    assert read_all(RowReader(tmp_path / "empty")) == []


def test_a_row_is_waited_for_and_one_that_is_half_written_too(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    writer, reader = RowWriter(file), RowReader(file)
    found: list[list[float]] = []
    thread = threading.Thread(target=lambda: found.extend(read_all(reader)))
    thread.start()
    writer.write(ROWS[0])
    data = ROWS[2].tobytes()
    with (tmp_path / "rows").open("ab") as rows:
        rows.write(gradient_rows._LENGTH.pack(len(data)) + data[:7])
        rows.flush()
        time.sleep(0.05)
        assert found == []
        rows.write(data[7:])
    time.sleep(0.05)
    assert thread.is_alive()
    end_rows(file)
    thread.join(5)
    assert found == [ROWS[0].tolist(), ROWS[2].tolist()]


def test_a_run_that_neither_goes_on_nor_ends_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_rows, "_LONGEST_S", 0.01)
    with pytest.raises(TimeoutError, match="15 minutes"):
        RowReader(tmp_path / "rows").next()
