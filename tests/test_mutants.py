"""Every mutant of `python -m tests.mutants` still fits the source, and names tests that exist."""

import re
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, load

MUTANTS = load()


def test_no_two_mutants_have_one_name() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)


def test_each_guard_that_a_mutant_breaks_is_in_the_source_once() -> None:
    problems = []
    for mutant in MUTANTS:
        try:
            mutant.applied(mutant.path().read_text())
        except (OSError, SyntaxError, ValueError) as error:
            problems.append(f"{mutant.name}: {error}")
    assert not problems, "\n".join(problems)


def test_the_tests_that_are_named_exist(root: Path) -> None:
    missing = []
    for mutant in MUTANTS:
        assert mutant.tests, mutant.name
        for named in mutant.tests:
            file, *inside = re.sub(r"\[.*\]$", "", named).split("::")
            path = root / file
            if not path.is_file() or any(f"{part}(" not in path.read_text() for part in inside):
                missing.append(f"{mutant.name}: {named}")
    assert not missing, "\n".join(missing)


def mutant(text: str, replacement: str) -> Mutant:
    return Mutant("a name", "x.py", text, replacement, "all", ("tests/test_x.py",))


def test_a_mutant_replaces_its_text_and_nothing_else() -> None:
    assert mutant("if a < 1:", "if True:").applied("b = 1\nif a < 1:\n    c\n") == (
        "b = 1\nif True:\n    c\n"
    )


@pytest.mark.parametrize(
    ("text", "replacement", "words"),
    [
        ("if b:", "if True:", "found 0 times"),
        ("a", "b", "found 2 times"),
        ("if a:", "if  a:", "the same program"),
    ],
)
def test_a_mutant_that_does_not_fit_says_so(text: str, replacement: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mutant(text, replacement).applied("if a:\n    a\n")
