"""Where a variable is added to, limited or made anew is looked for in the files that name it."""

from pathlib import Path

import pytest

from hotlap.trace.source import statements
from hotlap.trace.source.rebinding import line_that_rebinds, line_that_tests_length
from hotlap.trace.source.statements import files_with, line_that_removes


@pytest.mark.parametrize(
    "name",
    [
        *("kept", "agent.kept", "agent.layers[3].kept", "kept['loss']", "agent.kept[...]"),
        # What is no identifier may be written in many ways.
        "agent['a.b']",
    ],
)
def test_a_file_is_looked_at_if_it_has_the_last_identifier_of_a_name(
    name: str, tmp_path: Path
) -> None:
    named = tmp_path / "named.py"
    named.write_text("class Agent:\n    def log(self, x):\n        self.kept.append(x)\n")
    assert list(files_with([str(named)], [name])) == [str(named)]


def test_many_files_that_do_not_name_a_variable_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for number in range(200):
        path = tmp_path / f"module_{number}.py"
        path.write_text(f"def compute_{number}(x):\n    x[0] = len(x) > 3\n    return x\n")
        files.append(str(path))
    last = tmp_path / "train.py"
    last.write_text(
        "for batch in loader:\n    agent.kept.pop()\n    agent.kept = []\n"
        "    if len(agent.kept) > 3:\n        break\n"
    )
    parsed: list[str] = []
    parse = statements.ast.parse
    monkeypatch.setattr(statements.ast, "parse", lambda text: parsed.append(text) or parse(text))
    found = (
        line_that_removes([*files, str(last)], "agent.kept", "list"),
        line_that_rebinds([*files, str(last)], "agent.kept", None),
        line_that_tests_length([*files, str(last)], "agent.kept"),
    )
    assert found == ((str(last), 2), (str(last), 3), (str(last), 4))
    assert len(parsed) == 1
    # Control: of a name that stands in all of them, all are.
    assert line_that_removes(files, "agent.x", "dict") is None
    assert len(parsed) == 201
