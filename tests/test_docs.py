"""What is documented, and that it says nothing that only its writers understand."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

HEADINGS = ("What it does", "When it helps", "When it hurts", "Numerics", "Measured", "Source")
TEXT = {".py", ".md", ".toml", ".txt", ".cfg", ".html", ""}
# Folders of one machine mean nothing to a reader; the pattern is split so that it is not one.
PRIVATE = re.compile("/" + r"work/|\.\./" + r"shared|/tmp/" + r"venv|DESIGN" + r"\.md")


def test_every_technique_has_the_fixed_headings(source: Path) -> None:
    for path in sorted((source / "techniques").glob("*.py")):
        code = path.read_text()
        if "\nTECHNIQUE = " not in code:
            continue
        text = ast.get_docstring(ast.parse(code)) or ""
        places = [text.find(f"\n{heading}") for heading in HEADINGS]
        assert -1 not in places and places == sorted(places), f"{path}: headings {HEADINGS}"


def test_decisions_are_one_row_each(root: Path) -> None:
    lines = (root / "docs" / "decisions.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) > 2
    for row in rows:
        cells = row.strip("|").split(" | ") if set(row) - set("|- ") else ["-"] * 3
        assert len(cells) == 3 and all(cell.strip() for cell in cells), row


def test_every_dependency_has_its_decision(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    decisions = (root / "docs" / "decisions.md").read_text()
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["demo"], *extras["dev"]]
    for requirement in needed:
        name = re.split(r"[<>=\[ ]", requirement)[0]
        assert f"`{name}`" in decisions, f"{name} has no row in docs/decisions.md"


def test_every_dependency_is_used(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # What `dev` brings is run, and `integrations` are what users' scripts import.
    imported = set(extras) - {"dev", "integrations"}
    users = dict.fromkeys(imported, ("src", "examples", "benchmarks"))
    groups = [(project["dependencies"], ("src",))]
    groups += [(extras[name], folders) for name, folders in users.items()]
    for needed, folders in groups:
        files = [path for folder in folders for path in (root / folder).rglob("*.py")]
        code = "\n".join(path.read_text() for path in files)
        for requirement in needed:
            name = re.split(r"[<>=\[ ]", requirement)[0]
            name = {"scikit-learn": "sklearn", "pillow": "PIL"}.get(name, name)
            # Some are imported by the name that they have in a list.
            assert re.search(rf'^\s*(import|from) {name}\b|"{name}"', code, re.M), requirement


def test_the_changelog_knows_this_version(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert f"## [{project['version']}]" in (root / "CHANGELOG.md").read_text()


DOCUMENTS = {
    "diagnosis/findings.py": "Diagnosis",
    "tuning/result.py": "Tuning",
    "tuning/checking.py": "PlanCheck",
    "engine/training_report.py": "TrainingReport",
}


@pytest.mark.parametrize("file", DOCUMENTS)
def test_the_keys_of_json_documents_are_documented(root: Path, source: Path, file: str) -> None:
    tree = ast.parse((source / file).read_text())
    kind = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == DOCUMENTS[file])
    makes = {"to_json", "_phases"}
    made = [n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name in makes]
    returned = [n.value for n in ast.walk(ast.Module(made, [])) if isinstance(n, ast.Return)]
    keys = [key for value in returned if isinstance(value, ast.Dict) for key in value.keys]
    names = [key.value for key in keys if isinstance(key, ast.Constant)]
    assert len(names) > 8
    quoted = re.findall(r"`[^`\n]+`", (root / "docs" / "json.md").read_text())
    assert not set(names) - set(re.findall(r"\w+", " ".join(quoted)))


def test_results_that_are_cited_exist(root: Path) -> None:
    pattern = re.compile(r"benchmarks/results/[\w.-]+\.md")
    files = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "src").rglob("*.py")]
    for path in files:
        for cited in pattern.findall(path.read_text()):
            assert (root / cited).is_file(), f"{path} cites {cited}"


def test_no_file_names_a_place_that_only_one_machine_has(root: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for path in (root / name for name in listed.stdout.splitlines()):
        if path.is_file() and path.suffix in TEXT:
            assert not PRIVATE.search(path.read_text(errors="replace")), path
