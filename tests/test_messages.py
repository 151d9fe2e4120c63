"""Messages say what was given and what to do, in the words of PyTorch's documentation."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "hotlap").rglob("*.py"))
PROSE = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

ERRORS = {
    "UsageError",
    "PlanError",
    "UnknownName",
    "MissingFile",
    "CheckpointCorrupt",
    "StorageError",
    "RunError",
    "Refusal",
    "_Wrong",
    "_Irregular",
    "_corrupt",
    "_error",
}
"""What is raised with a message of hotlap's own. What `why_not` returns is one, too."""

PRINTED = {
    "_Wrong": (
        "checkpoint '{}' is damaged: {part}. Pass the run's folder instead of this checkpoint, to "
        "use its newest intact one."
    ),
    "_Irregular": (
        "the shapes of a batch of {} samples cannot be inferred from batches of 2 and 3 samples: "
        "{part}. Or use a batch size of at most {} in the task: then a whole batch is read "
        "instead."
    ),
}
"""What becomes part of another message -> that message, which is what the user reads."""

ACTION = re.compile(
    r"(?:^|[.;:,(]\s+|\bor )(?:Expected|Did you mean|To |Use|Pass|Set|Give|Choose|Install|Remove|"
    r"Delete|Move|Put|Run|Add|Rename|Free|Check|Wait|Stop|Make|Call|Return|Name|Write|Save|Train|"
    r"Resume|Continue|Start|Try|Convert|Keep|Drop|Open|Update|Lower|Raise|Reduce|Increase|Split|"
    r"Replace|Copy|Point|Create|Unset|Close|Load|Wrap|Export|Retry|Report)",
    re.IGNORECASE,
)
"""A sentence or clause that begins so says what to do, or what was expected."""
VALUE = re.compile(r"\{\}|`[^`]+`|'[^']+'|--[a-z]|[A-Za-z_]+=|[A-Za-z_]+\(")
"""A formatted value, or the name of an option, an argument or a function."""

BANNED = (
    "Allowed:",
    "Known:",
    "is not there",
    "are not there",
    "nobody",
    "somebody",
    "whoever",
    "left out",
    "behind SCRIPT",
    "behind the ",
    "go on",
    "goes on",
    "anew",
    "in place of",
    "so many",
    "what draws",
    "random states",
    "the device itself",
    "hand the model",
    "handed back",
    "leaves no trace",
    "cannot serve",
    "nominated",
    "acquitted",
    "what was fed",
    "the task's numbers",
    "nothing to try",
    "some five",
)
"""From a style guide: phrases that send a PyTorch engineer back to the sentence's beginning."""


@dataclass(frozen=True)
class Message:
    """One message as it stands in the source, `{}` for each value that is formatted into it."""

    where: str
    text: str
    """As the user reads it."""
    part: str
    """What of it stands there; the rest is added elsewhere."""


def text_of(node: ast.expr) -> str | None:
    """Return a string constant or f-string with `{}` for its values, None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{text_of(node.left) or '{}'}{text_of(node.right) or '{}'}"
    return None


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def messages(path: Path) -> Iterator[Message]:
    """Give every message that is raised, or returned by `why_not`, and is written where it is."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in ERRORS and node.args:
            part = text_of(node.args[0])
            if part is not None:
                whole = PRINTED.get(name_of(node.func), "{part}").replace("{part}", part)
                yield Message(f"{path.relative_to(ROOT)}:{node.lineno}", whole, part)
        if isinstance(node, ast.FunctionDef) and node.name == "why_not":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    text = text_of(inner.value)
                    if text is not None:
                        yield Message(f"{path.relative_to(ROOT)}:{inner.lineno}", text, text)


def strings(path: Path) -> Iterator[Message]:
    """Give every string that is not a docstring: what a message may be made of."""
    tree = ast.parse(path.read_text())
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield Message(where, node.value, node.value)


def banned_in(text: str) -> list[str]:
    plain = re.sub(r"\s+", " ", text)
    return [each for each in BANNED if re.search(rf"\b{re.escape(each)}", plain)]


def is_complete(text: str) -> bool:
    """True if a message has a value and an action."""
    return bool(VALUE.search(text) and ACTION.search(text))


def test_every_message_says_what_was_given_and_what_to_do() -> None:
    found = [message for path in SOURCES for message in messages(path)]
    assert len(found) > 250
    wrong = [f"{m.where}: {m.text}" for m in found if not is_complete(m.part)]
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)


def test_parts_of_messages_are_shown_within_what_the_user_reads() -> None:
    texts = [path.read_text() for path in SOURCES]
    trees = [ast.parse(text) for text in texts if any(name in text for name in PRINTED)]
    written = {
        text_of(node)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
    }
    for printed in PRINTED.values():
        assert printed.replace("{part}", "{}") in written


def test_no_message_uses_words_of_our_own() -> None:
    wrong = [
        f"{m.where}: {banned_in(m.text)}: {m.text}"
        for path in SOURCES
        for m in strings(path)
        if banned_in(m.text)
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_no_page_uses_words_of_our_own(path: Path) -> None:
    wrong = [
        f"{path.name}:{number}: {banned_in(line)}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned_in(line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("lr={} is negative. Expected: 0 or more.", True),
        ("'{}' was not found. Use --out to choose another file.", True),
        ("the loader has num_workers={}; set it to 0", True),
        ("the file is wrong", False),
        ("the file '{}' is wrong", False),
        ("Use another file.", False),
    ],
)
def test_a_message_without_value_or_action_is_seen(text: str, *, is_good: bool) -> None:
    assert is_complete(text) == is_good


def test_a_phrase_over_two_lines_is_seen() -> None:
    assert banned_in("it goes\non") == ["goes on"]
    assert not banned_in("the algorithm runs on, ongoing")
