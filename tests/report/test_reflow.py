"""Long texts are wrapped for the terminal; lists, code, tables and labels keep their form."""

import random

import pytest

from hotlap.report.reflow import reflow

TEXT = """A paragraph that somebody has written on two
lines, with a list of what there is:

- one thing that takes more than a line of its
  own to be said
- another

| a table | that is much wider than the terminal is | 1 |

    code = stays(where_it_is, however_wide_the_line_may_be)
      even = "if it is indented"

Options:
  where: auto or host or device, auto if it was not given

```
fenced   code   stays
as it is
```
The end."""

AT_40 = """A paragraph that somebody has written on
two lines, with a list of what there is:

- one thing that takes more than a line
  of its own to be said
- another

| a table | that is much wider than the terminal is | 1 |

    code = stays(where_it_is, however_wide_the_line_may_be)
      even = "if it is indented"

Options:
  where: auto or host or device, auto if
      it was not given

```
fenced   code   stays
as it is
```
The end."""


def test_lists_code_and_tables_stay() -> None:
    assert reflow(TEXT, 40) == AT_40


def test_every_line_of_a_plan_is_a_fact_of_its_own() -> None:
    facts = "Plan 1: resident\nSpeed-up 2.0"
    assert reflow(facts, 60, joins=False) == facts
    assert reflow(facts, 60) == "Plan 1: resident Speed-up 2.0"


def test_lines_below_a_label_begin_under_its_text() -> None:
    text = (
        "What it does   keeps each sample as it was decoded the first time\n               and more"
    )
    assert reflow(text, 40).splitlines() == [
        "What it does   keeps each sample as it",
        "  was decoded the first time and more",
    ]
    wide = reflow(text, 60).splitlines()
    assert wide[0].startswith("What it does   keeps") and wide[1].startswith(" " * 15 + "time")


def test_a_word_and_a_colon_beside_a_label_are_part_of_its_sentence() -> None:
    text = "Numerics       one: exact. two and\n               three: rounding"
    assert reflow(text, 60) == "Numerics       one: exact. two and three: rounding"


def test_a_numbered_list_keeps_its_items() -> None:
    assert reflow("1. one two three\n   four\n2. five", 12).splitlines() == [
        "1. one two",
        "   three",
        "   four",
        "2. five",
    ]


def test_a_word_that_is_wider_than_the_terminal_is_not_cut() -> None:
    path = "/a/very/long/path-with-hyphens/that/nobody/could/copy/from/two/lines.py"
    assert path in reflow(f"See {path} for more.", 20).splitlines()


def test_a_tree_and_what_python_prints_stay() -> None:
    drawn = "HotlapError\n|-- UsageError   something that the user gave is wrong\n|   `-- PlanError"
    assert reflow(drawn, 20) == drawn
    prompt = ">>> size(1536 * 2**20, and_more=True)"
    assert reflow(prompt, 20) == prompt


def test_blank_lines_separate_and_stay() -> None:
    assert reflow("a\nb\n\n\nc", 80) == "a b\n\n\nc"
    assert reflow("", 80) == ""


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("joins", [True, False])
def test_no_text_loses_a_word_or_runs_over_the_edge(seed: int, joins: bool) -> None:
    generator = random.Random(seed)
    heads = ["", "", "", "- ", "* ", "12) ", "  key: ", "Label   ", "      ", "| ", ">>> ", "    "]
    lines = []
    for _ in range(generator.randrange(1, 30)):
        body = " ".join("x" * generator.randrange(1, 12) for _ in range(generator.randrange(20)))
        lines.append(generator.choice(heads) + body if body else "")
    text = "\n".join(lines)
    for width in (20, 40, 80):
        wrapped = reflow(text, width, joins=joins)
        assert wrapped.split() == text.split()
        over = [line for line in wrapped.splitlines() if len(line) > width]
        # What is drawn or code stays as it was.
        assert set(over) <= set(lines)
