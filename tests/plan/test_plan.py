"""Plans, and the files that they are kept in."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from hotlap.errors import MissingFile, PlanError
from hotlap.plan import Plan
from hotlap.plan.file import MeasuredOn, PlanFile, PlanVerdict, Speedup, is_plan_file

PLAN = Plan({"resident": {}, "optimizer": {"implementation": "foreach"}, "threads": {"count": 2}})
FILE = PlanFile(
    plan=PLAN,
    host=MeasuredOn("AMD EPYC", "2.13.0"),
    verdict=PlanVerdict("exact", 'bit-equal, "all" of \\ it: für 1001 Schritte', 1001),
    speedup=Speedup(2.3149, 2.2, 2.41),
    notes={"resident": "2.1x (2.0 to 2.2): items are decoded once", "optimizer": "# 1.1x"},
)


def text_of(body: str) -> str:
    return f"schema = 1\n{body}"


def test_order_of_insertion_does_not_matter() -> None:
    other = Plan(dict(reversed(PLAN.techniques.items())))
    assert other == PLAN
    assert other.hash == PLAN.hash
    assert len({other, PLAN}) == 1
    assert list(other.techniques) == sorted(other.techniques)


@pytest.mark.parametrize("value", [True, 1.0, "1", 2])
def test_plans_that_differ_in_one_value_or_its_type_differ(value: Any) -> None:
    one, other = Plan({"threads": {"count": 1}}), Plan({"threads": {"count": value}})
    assert one != other
    assert one.hash != other.hash
    assert one.diff(other) and not one.diff(one)


def test_hash_is_twelve_digits_and_stays_the_same_between_versions() -> None:
    assert Plan({"optimizer": {"implementation": "foreach"}, "resident": {}}).hash == "5af112a228d5"


def test_changing_what_a_plan_was_made_of_or_gave_leaves_the_plan() -> None:
    options = {"count": 1}
    plan = Plan({"threads": options})
    options["count"] = 2
    plan.techniques["threads"]["count"] = 3
    assert plan.techniques == {"threads": {"count": 1}}


def test_with_and_without_undo_each_other() -> None:
    assert PLAN.with_technique("channels_last").without("channels_last") == PLAN
    assert PLAN.with_technique("threads", count=1).techniques["threads"] == {"count": 1}
    assert PLAN.without("never_there") == PLAN
    assert not Plan() and PLAN


def test_diff_says_what_to_do_to_get_there() -> None:
    other = Plan({"optimizer": {"implementation": "fused"}, "threads": {"count": 2}, "workers": {}})
    assert PLAN.diff(other) == (
        "~ optimizer: implementation = foreach -> fused",
        "- resident",
        "+ workers",
    )


@pytest.mark.parametrize(
    "techniques",
    [
        {"re/sident": {}},
        {"": {}},
        {"a" * 65: {}},
        {1: {}},
        {"resident": 3},
        {"resident": {"x y": 1}},
        {"resident": {"x": None}},
        {"resident": {"x": [1]}},
        {"resident": {"x": float("nan")}},
        {"resident": {"x": 2**63}},
        {"resident": {"x": "/etc/passwd"}},
        {"resident": {"x": "$HOME"}},
        {"resident": {"x": "module:NAME"}},
        {"resident": {"x": "a\nb"}},
        {"resident": {"x": "__import__('os')"}},
    ],
)
def test_only_plain_words_and_numbers_are_a_plan(techniques: Any) -> None:
    with pytest.raises(PlanError, match=r"Expected"):
        Plan(techniques)


def test_reading_back_what_was_written_is_identity() -> None:
    again = PlanFile.from_toml(FILE.to_toml(), "x")
    assert again == FILE
    assert again.to_toml() == FILE.to_toml()
    assert again.is_as_measured


@pytest.mark.parametrize("seed", range(20))
def test_any_plan_file_survives_being_written(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    letters = "ab Z9_.,-+\"\\#[]='\tüé漢\x1b\u202e\n"

    def text() -> str:
        return "".join(generator.choices(letters, k=generator.randrange(1500)))

    def value() -> bool | int | float | str:
        number = generator.uniform(-1, 1) * 10.0 ** generator.randrange(-300, 300)
        word = "".join(generator.choices("ab Z9_.,-+", k=generator.randrange(64)))
        return generator.choice([True, False, generator.randrange(-(2**62), 2**62), number, word])

    names = ["a", "b-c", "d_1", "Zz"][: generator.randrange(5)]
    file = PlanFile(
        plan=Plan({name: {key: value() for key in "xyz"} for name in names}),
        host=generator.choice([None, MeasuredOn(text(), text()), MeasuredOn("a", "b", 16, text())]),
        verdict=generator.choice([None, PlanVerdict("unproven", text(), 7)]),
        speedup=generator.choice([None, Speedup(*(generator.uniform(0, 99) for _ in range(3)))]),
        notes={name: text() for name in names if generator.random() < 0.7},
        measured=generator.choice([None, "", "0123456789ab"]),
    )
    # The gain stands beside the hash of what was measured; without that, it is nobody's.
    if file.measured == "":
        file = PlanFile(file.plan, file.host, file.verdict, None, file.notes, "")
    file.write(tmp_path / "x.toml")
    assert PlanFile.read(tmp_path / "x.toml") == file
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_the_file_is_sorted_and_says_why_above_each_technique() -> None:
    assert FILE.to_toml().splitlines() == [
        f"# hotlap plan {PLAN.hash}: 2.31x (2.20 to 2.41), verdict exact over 1001 steps",
        "schema = 1",
        "",
        "[host]",
        'cpu = "AMD EPYC"',
        'torch = "2.13.0"',
        "",
        "[verdict]",
        'tier = "exact"',
        "horizon_steps = 1001",
        'evidence = "bit-equal, \\"all\\" of \\\\ it: für 1001 Schritte"',
        "",
        "# # 1.1x",
        "[techniques.optimizer]",
        'implementation = "foreach"',
        "",
        "# 2.1x (2.0 to 2.2): items are decoded once",
        "[techniques.resident]",
        "",
        "[techniques.threads]",
        "count = 2",
    ]


def test_a_file_written_by_hand_is_read_and_claims_nothing() -> None:
    file = PlanFile.from_toml(text_of("[techniques.resident]\n"), "x")
    assert file == PlanFile(Plan({"resident": {}}), measured="")
    assert not file.is_as_measured


def test_an_edited_plan_is_not_the_one_that_was_measured() -> None:
    edited = FILE.to_toml().replace('"foreach"', '"fused"')
    file = PlanFile.from_toml(edited, "x")
    assert not file.is_as_measured
    assert file.speedup == FILE.speedup
    assert PlanFile.from_toml(file.to_toml(), "x") == file


def test_an_edited_verdict_is_not_the_one_that_was_proven() -> None:
    verdict = PlanVerdict("rounding", "seen", 100)
    text = PlanFile(Plan({"resident": {}}), verdict=verdict).to_toml()
    assert PlanFile.from_toml(text, "plan.toml").is_as_measured
    for edited in (text.replace('"rounding"', '"exact"'), text.replace("= 100", "= 9999")):
        assert not PlanFile.from_toml(edited, "plan.toml").is_as_measured


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[hots]", "'hots' is not known. Expected: host, schema, techniques, verdict. Did you"),
        ("environment = 1", "'environment' is not known"),
        (
            "[host]\ncpu = 'x'\ntorhc = '2'",
            "'torhc' is not known. Expected: cores, cpu, gpus, to",
        ),
        ("[host]\ncpu = 'x'", "has no key 'torch'"),
        ("[host]\ncpu = 3\ntorch = '2'", "host.cpu = 3 has type int. Expected: a string"),
        ("[host]\ncpu = \"a\\u001bb\"\ntorch = '2'", "printable"),
        (f"[host]\ncpu = '{'a' * 2000}'\ntorch = '2'", "at most"),
        ("host = 3", "a table"),
        ("techniques = 3", "a table"),
        ("[techniques]\nresident = 3", "a table of options"),
        ("[techniques.resident]\nx = {y = 1}", "has type dict"),
        ("[techniques.resident]\nx = 1979-05-27", "has type date"),
        ("[techniques.resident]\nx = inf", "finite"),
        ('[techniques."../x"]', "not a valid name"),
        ("[verdict]\ntier = 'exat'\nhorizon_steps = 1\nevidence = ''", "Did you mean 'exact'"),
        ("[verdict]\ntier = 'exact'\nhorizon_steps = -1\nevidence = ''", "an integer of 0 or more"),
        ("[verdict]\ntier = 'exact'\nhorizon_steps = true\nevidence = ''", "an integer of 0"),
        ("x = " + "[" * 50_000, "nested too deeply"),
        ("x = " + "9" * 5000, "not valid TOML"),
        ("x = ", "not valid TOML"),
        ("# " + "x" * 70_000, "larger than"),
        ("# gained \u202e x9\n[techniques.resident]\n", "printable"),
        ("[techniques.resident]\nx = 1\n# " + "x" * 2000 + "\n[techniques.threads]\n", "at most"),
    ],
)
def test_what_is_no_plan_file_is_refused_with_its_name(body: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        PlanFile.from_toml(text_of(body), "some.toml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("some.toml: ")


@pytest.mark.parametrize("text", ["", "schema = 2", "schema = true", "schema = '1'"])
def test_another_schema_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="schema"):
        PlanFile.from_toml(text, "x")


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="was not found"):
        PlanFile.read(tmp_path / "x.toml")
    with pytest.raises(MissingFile, match="is not a file"):
        PlanFile.read(tmp_path)
    with pytest.raises(MissingFile, match="folder"):
        FILE.write(tmp_path / "no" / "x.toml")
    (tmp_path / "x.toml").write_bytes(b"schema = 1\nx = '\xff'")
    with pytest.raises(PlanError, match="UTF-8"):
        PlanFile.read(tmp_path / "x.toml")


def test_a_note_on_a_technique_that_is_not_in_the_plan_is_refused() -> None:
    with pytest.raises(PlanError, match="residant"):
        PlanFile(PLAN, notes={"residant": "x"})


def test_a_plan_file_is_replaced_as_a_whole_and_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, same = tmp_path / "x.toml", tmp_path / "same.toml"
    FILE.write(path)
    before = path.read_bytes()
    os.link(path, same)
    other = PlanFile(plan=Plan({"resident": {}}))
    other.write(path)
    # Who has the old file open reads the old one to its end.
    assert same.read_bytes() == before
    assert PlanFile.read(path).plan == other.plan
    assert path.stat().st_mode & 0o777 == 0o644

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        FILE.write(path)
    assert PlanFile.read(path).plan == other.plan
    assert {file.name for file in tmp_path.iterdir()} == {"x.toml", "same.toml"}


def test_in_words_text_is_told_from_numbers_and_from_truth() -> None:
    values = {"a": "2", "b": 2, "c": "true", "d": True, "e": "fused", "f": "", "g": 0.5}
    words = 'x(a="2", b=2, c="true", d=true, e=fused, f="", g=0.5)'
    assert str(Plan({"x": values, "resident": {}})) == f"resident, {words}"
    assert str(Plan()) == "(plain)"


def test_a_plan_says_how_it_is_made_again() -> None:
    assert eval(repr(PLAN)) == PLAN
    assert Plan(PLAN.to_json()) == PLAN


@pytest.mark.parametrize("value", [-0.01, 1e6, float("nan"), float("inf")])
def test_a_gain_that_is_none_is_not_written(value: float) -> None:
    for given in ((value, 1, 2), (1, value, 2), (1, 2, value)):
        with pytest.raises(ValueError, match="from 0 to a million"):
            Speedup(*given)


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (FILE.to_toml().encode(), True),
        (b"schema = 1\n", True),
        (b"", True),
        (b"print('mine')\n", False),
        (b"schema = 2\n", False),
        (b"[tool.mine]\n", False),
        (b"\xff", False),
        (b"# " + b"x" * 70_000, False),
    ],
)
def test_only_a_plan_file_is_taken_for_one_that_may_be_replaced(
    content: bytes, is_one: bool, tmp_path: Path
) -> None:
    (tmp_path / "x.toml").write_bytes(content)
    assert is_plan_file(tmp_path / "x.toml") is is_one
    assert not is_plan_file(tmp_path) and not is_plan_file(tmp_path / "missing.toml")
