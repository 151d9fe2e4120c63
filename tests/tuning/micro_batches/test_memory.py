"""A tuning under a limit of memory: what is left out, and what a base does to a result."""

from types import SimpleNamespace

from hotlap.plan import Plan
from hotlap.techniques import Numerics, registry
from hotlap.tuning.candidates import nominate
from hotlap.tuning.racing import without_too_large
from tests.tuning import faked

SMALL, LARGE = Plan({"micro_batch": {"size": 4}}), Plan({"resident": {}})


def test_a_plan_that_holds_too_much_leaves_the_race_and_says_why() -> None:
    race = faked.raced({SMALL: 1.1, LARGE: 2.0})
    for arm in race.arms.values():
        arm.peak_bytes = 500 * 2**20
    large = race.arms[faked.name_of(LARGE)]
    large.peak_bytes = 900 * 2**20
    kept = without_too_large(race, 600 * 2**20)
    assert faked.name_of(LARGE) not in kept.arms
    assert faked.name_of(SMALL) in kept.arms
    assert large.failed == "it held 900 MiB of 600 MiB"
    # Without a limit, and under a larger one, nothing is left out.
    assert without_too_large(race, None).arms == race.arms
    assert without_too_large(race, 900 * 2**20).arms == race.arms


def test_micro_batches_are_candidates_of_recipes_without_batch_norm() -> None:
    technique = registry()["micro_batch"]

    def sizes(batch: int) -> list[int]:
        loader = SimpleNamespace(batch_size=batch, training=True)
        facts = SimpleNamespace(loaders=(loader,))
        return [each["size"] for each in technique.candidates(facts, None)]

    assert sizes(512) == [128, 256, 64, 32]
    assert sizes(32) == [16]
    assert sizes(16) == []
    norm = SimpleNamespace(layers={"BatchNorm2d": 1})
    options = technique.options({"size": 16})
    assert "BatchNorm2d" in (technique.why_not(norm, None, options) or "")
    assert technique.why_not(SimpleNamespace(layers={"Linear": 1}), None, options) is None


def test_a_script_has_no_micro_batches() -> None:
    loader = faked.FACTS.loaders[0]
    facts = faked.replace(faked.FACTS, loaders=(faked.replace(loader, batch_size=64),))
    known = {"micro_batch": registry()["micro_batch"]}
    found, refused = nominate(facts, faked.tuner().host, known, Numerics.ROUNDING)
    assert not found
    assert "engine" in refused["micro_batch"]
    found, _ = nominate(facts, faked.tuner().host, known, Numerics.ROUNDING, own_step=True)
    assert [candidate.options["size"] for candidate in found] == [16, 32]
