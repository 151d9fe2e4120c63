"""Pages go to standard output and progress to standard error, and neither obeys a script's text."""

from collections.abc import Callable

import pytest
from rich.console import Console

from hotlap.report.printable import printable
from hotlap.report.terminal import page_console, progress_console


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain ü\n\tx", "plain ü\n\tx"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\u202eabc", "\\u202eabc"),
        ("a\rb\x9b2J", "a\\rb\\x9b2J"),
        ("a\x00\x08\x7f", "a\\x00\\x08\\x7f"),
        ("\u2066a\u200b\ufeff", "\\u2066a\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
        ("漢字 é 😀", "漢字 é 😀"),
        ("a\u3000b\u2003c", "a\u3000b\u2003c"),
    ],
)
def test_no_control_character_reaches_the_terminal(given: str, shown: str) -> None:
    assert printable(given) == shown


def test_what_was_made_printable_stays_as_it_is() -> None:
    every = "".join(map(chr, range(0x3000)))
    once = printable(every)
    assert printable(once) == once
    assert all(letter.isprintable() or letter.isspace() for letter in once)


@pytest.mark.parametrize(
    ("make", "stream"), [(page_console, "out"), (progress_console, "err")], ids=["page", "progress"]
)
def test_each_console_has_its_stream_and_shows_text_as_it_is(
    make: Callable[[], Console], stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make().print("[bold]list[int][/bold] :smile: 3.5 'a'")
    caught = capsys.readouterr()
    assert getattr(caught, stream) == "[bold]list[int][/bold] :smile: 3.5 'a'\n"
    assert caught.out + caught.err == getattr(caught, stream)
