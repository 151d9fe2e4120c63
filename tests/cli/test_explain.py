"""The pages of `hotlap explain` on terminals of different widths."""

from itertools import pairwise

import pytest

from hotlap.cli import main
from hotlap.report.beliefs import BELIEFS
from hotlap.report.explaining import explain
from hotlap.rules import registry as rules_registry
from hotlap.techniques import ORDER

COLUMN = " " * len("What it does   ")


@pytest.mark.parametrize("width", [60, 80, 100, None], ids=str)
@pytest.mark.parametrize("name", ["resident", "per_item_decode", "empty_cache", "TrialError"])
def test_a_page_is_wrapped_once(
    name: str,
    width: int | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if width is None:
        # Piped, nothing is known of a terminal.
        monkeypatch.delenv("COLUMNS", raising=False)
        width = 80
    else:
        monkeypatch.setenv("COLUMNS", str(width))
    assert main(["explain", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    page = explain(name)
    assert "\n".join(lines).split() == page.text.split()
    assert lines[:2] == [f"{name} ({page.kind})", ""]
    # What has no space in it, such as a path, is not cut.
    assert [line for line in lines if len(line) > width and len(line.split()) > 1] == []
    assert not wrapped_too_early(lines, width)


def wrapped_too_early(lines: list[str], width: int) -> list[str]:
    """Return the lines that could have taken the first word of the one that continues them."""
    found = []
    for line, after in pairwise(lines):
        continues = after.startswith(COLUMN) or (line[:1].islower() and after[:1].islower())
        if continues and line and len(line) + 1 + len(after.split()[0]) <= width:
            found.append(line)
    return found


def test_the_comparison_sees_lines_that_were_wrapped_twice() -> None:
    text = explain("resident").text
    twice = [
        part
        for line in text.splitlines()
        for part in ([line] if len(line) <= 80 else [line[:75], COLUMN + line[75:]])
    ]
    assert wrapped_too_early(twice, 80)


@pytest.mark.parametrize("width", [30, 60, 80])
def test_no_page_loses_or_moves_a_word(width: int) -> None:
    for name in [None, *ORDER, *rules_registry(), *BELIEFS]:
        page = explain(name)
        assert page.render(width).split() == page.text.split()
