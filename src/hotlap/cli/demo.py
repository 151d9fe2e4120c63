"""`hotlap demo`: the options of the command; `hotlap.demo` does what it shows."""

from hotlap.cli.command import Command
from hotlap.cli.page import PageFile, check_page, signed, write_page
from hotlap.cli.script import detect_host
from hotlap.cli.starting import say


def demo(*, page: PageFile = None) -> int:
    """Tell the whole story on one real script: diagnose it, tune it, prove it, and run it.

    Uses FashionMNIST where it is found or can be downloaded, else scikit-learn's digits. Takes
    about four minutes on two cores.
    """
    from hotlap import demo as story
    from hotlap.report.terminal import page_console

    check_page(page)
    host = detect_host()
    told = story.demo(page_console(), host, say)
    tokens = () if page is None else ("--page", page)
    write_page(page, signed("demo", told, host, tokens, "demo"))
    return 0


COMMAND = Command(
    name="demo",
    function=demo,
    examples=(
        "hotlap demo    # needs no argument",
        "hotlap demo --page story.html    # and the whole story as a page",
    ),
)
