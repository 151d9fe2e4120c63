"""The Dockerfile, read closely: there need be no Docker where the tests run."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

Instruction = tuple[str, str]


def read(text: str) -> list[Instruction]:
    """Return (instruction, arguments), lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r" *\\\n\s*", " ", "\n".join(lines))
    return [
        (word.upper(), rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
        if word
    ]


@pytest.fixture(scope="module")
def instructions(root: Path) -> list[Instruction]:
    return read((root / "Dockerfile").read_text())


def copied(instructions: list[Instruction]) -> list[str]:
    sources = []
    for word, rest in instructions:
        if word == "COPY":
            sources += [name for name in rest.split()[:-1] if not name.startswith("--")]
    return sources


def commands(instructions: list[Instruction]) -> list[str]:
    return [
        command.strip()
        for word, rest in instructions
        if word == "RUN"
        for command in re.split("&&|;|[|][|]", rest)
    ]


def test_every_instruction_is_one(instructions: list[Instruction]) -> None:
    known = {"ARG", "FROM", "RUN", "USER", "WORKDIR", "COPY", "ENV", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions} <= known


def test_the_base_image_is_an_argument_and_no_registry_is_named(
    instructions: list[Instruction],
) -> None:
    assert instructions[0][0] == "ARG" and instructions[0][1].startswith("BASE=python:")
    assert [rest for word, rest in instructions if word == "FROM"] == ["${BASE}"]
    for _, rest in instructions:
        assert not re.search(r"\b[\w-]+\.(io|com|org|net)\b", rest), rest


def test_arguments_are_known_where_they_are_used(instructions: list[Instruction]) -> None:
    known: set[str] = set()
    for word, rest in instructions:
        used = set(re.findall(r"\$\{(\w+)\}", rest)) - {"PATH"}
        assert used <= known, f"{word} {rest}"
        if word == "ARG":
            known.add(rest.partition("=")[0])
        elif word == "FROM":
            known.clear()


def test_what_is_copied_is_there_and_is_all_that_building_needs(
    instructions: list[Instruction], root: Path
) -> None:
    sources = copied(instructions)
    for name in sources:
        assert (root / name).exists(), name
    project = tomllib.loads((root / "pyproject.toml").read_text())
    needed = [project["project"]["readme"], *project["project"]["license-files"]]
    needed += project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    needed += ["Makefile", "pyproject.toml", "constraints.txt", "src/hotlap"]
    for name in needed:
        parts = {str(part) for part in [Path(name), *Path(name).parents]}
        assert parts & set(sources), f"{name} is not copied"


def test_it_runs_the_install_step_as_a_user_who_is_not_root(
    instructions: list[Instruction], root: Path
) -> None:
    (place,) = [
        n for n, (word, rest) in enumerate(instructions) if word == "RUN" and "make ." in rest
    ]
    users = [rest for word, rest in instructions[:place] if word == "USER"]
    assert users == ["${UID}"] and ("ARG", "UID=1000") in instructions
    assert not [rest for word, rest in instructions[place:] if word == "USER"]
    (call,) = [command for command in commands(instructions) if command.startswith("make ")]
    for torch in ("own", "image"):
        argv = call.replace("${TORCH}", torch).split()
        done = subprocess.run([*argv, "-n", "-B"], cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        installs = [line for line in done.stdout.splitlines() if "pip install" in line]
        assert any("--editable '.[demo]'" in line for line in installs)
        assert any(line.endswith(" torch") for line in installs) is (torch == "own")
        assert ("--system-site-packages" in done.stdout) is (torch == "image")


def test_make_knows_no_other_source_of_torch(root: Path) -> None:
    done = subprocess.run(
        ["make", "-n", ".venv", "TORCH=elsewhere"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "Allowed: own, image" in done.stderr


def test_it_starts_hotlap(instructions: list[Instruction], root: Path) -> None:
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    entry = dict(instructions)["ENTRYPOINT"]
    assert entry.strip('[]"') in scripts
    assert any("/hotlap/.venv/bin" in rest for word, rest in instructions if word == "ENV")


def test_the_reader_of_this_test_sees_what_is_wrong() -> None:
    text = "ARG BASE=x\nFROM ${BASE}\nRUN a \\\n    && b\n# no\nRUN echo ${BASE}\n"
    parsed = read(text)
    assert parsed[2] == ("RUN", "a && b")
    with pytest.raises(AssertionError):
        test_arguments_are_known_where_they_are_used(parsed)
    with pytest.raises(AssertionError):
        test_it_runs_the_install_step_as_a_user_who_is_not_root(
            [*parsed, ("RUN", "make .venv")], Path()
        )
