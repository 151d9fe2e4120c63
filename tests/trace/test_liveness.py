"""Whether a loop's variable is read again once a pass has ended."""

from pathlib import Path

import pytest

from hotlap.trace.source.liveness import AFTER_LOOP, NEXT_PASS, find_reader
from hotlap.trace.source.statements import line_that_removes

LOOP = "for batch in loader:\n    out = model(batch)  # here\n"
CASES = {
    "nothing": (LOOP + "    use(out)\n", ""),
    "the next pass": (
        "prev = None\nfor batch in loader:\n    out = model(batch)\n    use(out, prev)\n"
        "    prev = out  # here\n",
        NEXT_PASS,
    ),
    "added to": ("out = 0\nfor batch in loader:\n    out += model(batch)  # here\n", NEXT_PASS),
    "one branch of the next pass": (
        "for step, batch in loader:\n    if step:\n        use(out)\n"
        "    out = model(batch)  # here\n",
        NEXT_PASS,
    ),
    "both branches assign": (
        "for batch in loader:\n    if batch:\n        out = 1\n    else:\n        out = 2\n"
        "    use(out)\n    out = model(batch)  # here\n",
        "",
    ),
    "a branch may not assign": (
        "for batch in loader:\n    if batch:\n        out = 1\n    use(out)\n"
        "    out = model(batch)  # here\n",
        NEXT_PASS,
    ),
    "a branch that leaves": (
        "for batch in loader:\n    if batch:\n        out = 1\n    else:\n        continue\n"
        "    use(out)\n    out = model(batch)  # here\n",
        "",
    ),
    "deleted": (LOOP + "    del out\n", ""),
    "deleted before": (
        "for batch in loader:\n    del out\n    out = model(batch)  # here\n",
        NEXT_PASS,
    ),
    "after the loop": (LOOP + "print(out)\n", AFTER_LOOP),
    "after an outer loop's next pass has begun": (
        "for epoch in range(3):\n    if epoch:\n        print(out)\n"
        "    for batch in loader:\n        out = model(batch)  # here\n",
        AFTER_LOOP,
    ),
    "assigned by the outer loop first": (
        "for epoch in range(3):\n    out = None\n"
        "    for batch in loader:\n        out = model(batch)  # here\n",
        "",
    ),
    "a while loop's test": (
        "out = 1\nwhile out > 0:\n    out = model(1)  # here\n",
        NEXT_PASS,
    ),
    "the loop's own variable": ("for out in loader:\n    use(out)  # here\n", ""),
    "an inner loop that may have no pass": (
        "for batch in loader:\n    for part in batch:\n        out = part\n    use(out)\n"
        "    out = model(batch)  # here\n",
        NEXT_PASS,
    ),
    "behind a break": (
        LOOP + "    if out > 3:\n        break\nelse:\n    out = 0\nprint(out)\n",
        AFTER_LOOP,
    ),
    "an inner loop that is left before it assigns": (
        "for batch in loader:\n    for part in batch:\n        if part:\n            break\n"
        "    else:\n        out = 0\n    use(out)\n    out = model(batch)  # here\n",
        NEXT_PASS,
    ),
    "a handler": (
        "for batch in loader:\n    try:\n        out = model(batch)  # here\n"
        "    except ValueError:\n        print(out)\n",
        NEXT_PASS,
    ),
    "a function's own": (
        "def train():\n    for batch in loader:\n        out = model(batch)  # here\n"
        "def other(out):\n    return out\n",
        "",
    ),
    "a function that is called later": (
        LOOP + "def show():\n    print(out)\n",
        AFTER_LOOP,
    ),
    "a closure": (
        "def train():\n    show = lambda: print(out)\n    for batch in loader:\n"
        "        out = model(batch)  # here\n    show()\n",
        AFTER_LOOP,
    ),
    "a global of a function": (
        "def train():\n    global out\n    for batch in loader:\n"
        "        out = model(batch)  # here\n",
        AFTER_LOOP,
    ),
    "no loop": ("out = model(1)  # here\nprint(out)\n", ""),
    "a context manager": (
        "for batch in loader:\n    with scope() as out:\n        use(out)  # here\n",
        "",
    ),
    "an early return": (
        "def train():\n    for batch in loader:\n        out = model(batch)  # here\n"
        "        if out:\n            return 1\n    return 2\n",
        "",
    ),
    "what a match may leave": (
        "for batch in loader:\n    match batch:\n        case 1:\n            out = 1\n"
        "    use(out)\n    out = model(batch)  # here\n",
        NEXT_PASS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_who_may_read_a_variable_after_its_pass(name: str, tmp_path: Path) -> None:
    text, reader = CASES[name]
    path = tmp_path / "train.py"
    path.write_text(text)
    (line,) = [n for n, row in enumerate(text.splitlines(), 1) if "# here" in row]
    assert find_reader(str(path), "out" if "prev =" not in text else "prev", [line]) == reader


def test_the_innermost_loop_that_holds_all_lines_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "for epoch in range(3):\n"
        "    out = model(epoch)\n"
        "    for batch in out:\n"
        "        use(batch)\n"
    )
    assert find_reader(str(path), "batch", [3, 4]) == ""
    assert find_reader(str(path), "out", [2, 4]) == ""
    # The line that assigns it was looked for in the whole file, and is another function's.
    path = tmp_path / "other.py"
    path.write_text("for batch in loader:\n    use(out)\n    out = 1\ndef f():\n    out = 2\n")
    assert find_reader(str(path), "out", [2, 5]) == NEXT_PASS


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("kept.append(1)\nkept.pop(0)\n", "list", 2),
        ("kept.append(1)\nkept = kept[-9:]\n", "list", 2),
        ("kept.append(1)\nkept[:] = kept[-9:]\n", "list", 2),
        ("kept.append(1)\ndel kept[0]\n", "list", 2),
        ("kept.append(1)\nkept[place] = 1\n", "list", 2),
        ("kept[place] = 1\nkept.popitem()\n", "dict", 2),
        ("heapq.heappush(kept, 1)\nheapq.heappop(kept)\n", "list", 2),
        ("kept[place] = 1\n", "dict", None),
        ("kept.append(1)\nother.pop()\n", "list", None),
        ("kept = []\nkept = kept + [1]\n", "list", None),
        ("kept = rest[:3]\nkept.append(1)\n", "list", None),
    ],
)
def test_a_statement_that_bounds_a_container_is_found(
    text: str, kind: str, line: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    expected = None if line is None else (str(path), line)
    assert line_that_removes([str(path)], "kept", kind) == expected
    # Another object may call it by its own name.
    path = tmp_path / "buffer.py"
    path.write_text(text.replace("kept", "self.kept"))
    expected = None if line is None else (str(path), line)
    assert line_that_removes([str(tmp_path / "none.py"), str(path)], "agent.kept", kind) == expected
