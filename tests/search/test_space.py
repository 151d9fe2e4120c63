"""What is searched: annotations of a recipe, `--space`, and what is wrong with them."""

import json
from enum import Enum, IntFlag
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import hotlap
from hotlap.errors import UnknownName, UsageError
from hotlap.recipe import Recipe
from hotlap.search.parameters import Space, read_space, words_of
from hotlap.search.propose import grid
from hotlap.search.space import Distribution, from_json


class Act(str, Enum):  # noqa: UP042
    """A command line gives names, so values may be anything."""

    RELU = "ReLU"
    LEAKY_RELU = "leaky"


class Norm(Enum):
    BATCH = 1
    LAYER = 2


class Bits(IntFlag):
    ONE = 1


SHARES = [n / 100 for n in range(100)]


def space_of(function: Any, *arguments: str, given: tuple[str, ...] = ()) -> Space:
    return read_space(Recipe(Path("recipe.py"), function), arguments, given)


def plain(*, lr: float = 0.1, width: int = 8, kind: Literal["a", "b"] = "a", on: bool = False): ...


def annotated(
    *,
    lr: Annotated[float, hotlap.LogUniform(1e-4, 1e-1)] = 3e-2,
    batch_size: Annotated[int, hotlap.PowerOfTwo(16, 64)] = 16,
    depth: int = 2,
    decay: Annotated[float, hotlap.Derived(lambda lr, depth: lr / depth)] = 0.0,
): ...


@pytest.mark.parametrize(
    ("distribution", "inside"),
    [
        (hotlap.LogUniform(1e-4, 1e-1), lambda v: 1e-4 <= v <= 1e-1),
        (hotlap.Uniform(-1.0, 1.0), lambda v: -1 <= v <= 1),
        (hotlap.IntRange(2, 4), lambda v: v in (2, 3, 4)),
        (hotlap.PowerOfTwo(16, 128), lambda v: v in (16, 32, 64, 128)),
        (hotlap.Choice("a", 2, True), lambda v: v in ("a", 2, True)),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_draws_and_grids_lie_in_the_space(distribution: Distribution, inside: Any) -> None:
    drawn = [distribution.draw(share) for share in SHARES]
    assert all(map(inside, drawn)) and all(map(inside, distribution.grid(4)))
    assert len(set(drawn)) >= 3
    assert from_json(distribution.to_json()) == distribution


def test_a_logarithmic_range_gives_each_decade_as_many_draws() -> None:
    drawn = [hotlap.LogUniform(1e-4, 1e-1).draw(share) for share in SHARES]
    assert sum(value < 1e-3 for value in drawn) in (33, 34)


@pytest.mark.parametrize("kind", [hotlap.Uniform, hotlap.LogUniform])
def test_a_narrow_range_is_not_rounded_to_its_ends(kind: Any) -> None:
    drawn = {kind(0.9999, 0.99999).draw(share) for share in SHARES}
    assert len(drawn) > 90 and all(0.9999 <= value <= 0.99999 for value in drawn)
    assert len({kind(1e6, 1e6 + 1).draw(share) for share in SHARES}) > 90
    # Elsewhere values stay short.
    for low, high in ((0.9, 0.999), (1e-6, 1.0), (100.0, 300.0)):
        drawn = [kind(low, high).draw(share) for share in SHARES[1:]]
        assert all(value == float(f"{value:.4g}") for value in drawn)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: hotlap.LogUniform(1e-1, 1e-4),
            "is an empty range: low=0.1 is not below high=0.0001",
        ),
        (lambda: hotlap.LogUniform(0, 1), "low=0, which.*above 0"),
        (lambda: hotlap.Uniform(0, float("inf")), "inf.*finite numbers"),
        (lambda: hotlap.IntRange(1, 2.5), "2.5.*integers"),  # pyright: ignore[reportArgumentType]
        (lambda: hotlap.PowerOfTwo(16, 100), "100.*powers of two"),
        (lambda: hotlap.Choice(), "no values"),
        (lambda: hotlap.Choice([1], [2]), "list.*numbers, strings and bools"),  # pyright: ignore
        (lambda: hotlap.Choice(Bits.ONE), "Bits.*an Enum that is not a Flag"),
        (lambda: hotlap.Derived(lambda: 1), "without arguments"),
    ],
)
def test_a_wrong_space_says_what_is_expected(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_the_space_is_read_from_annotations() -> None:
    space = space_of(annotated)
    assert list(space.distributions) == ["lr", "batch_size"]
    assert space.defaults == {"lr": 3e-2, "batch_size": 16, "decay": 0.0}
    assert space.complete({"lr": 0.01, "batch_size": 32})["decay"] == 0.005
    # What is given on the command line is fixed, and is what derived values follow from.
    fixed = space_of(annotated, "--depth", "4", "--batch-size", "64")
    assert list(fixed.distributions) == ["lr"]
    assert fixed.complete({"lr": 0.01})["decay"] == 0.0025


def test_annotated_parameters_are_still_options() -> None:
    def task(*, steps: Annotated[int, hotlap.IntRange(1, 5)] = 1) -> hotlap.Task:
        return hotlap.Task(
            model=list, loss=max, data=[0], optimizer=list, batch_size=1, steps=steps
        )

    recipe = Recipe(Path("recipe.py"), task)
    assert recipe.task(["--steps", "3"]).steps == 3
    with pytest.raises(UsageError, match=r"--steps 2\.5 is not allowed"):
        recipe.task(["--steps", "2.5"])


def test_space_options_replace_annotations() -> None:
    given = ("lr=uniform(0, 1)", "depth=choice(1,2)", "batch-size=poweroftwo(2,4)")
    space = space_of(annotated, given=given)
    assert space.distributions == {
        "lr": hotlap.Uniform(0, 1),
        "depth": hotlap.Choice(1, 2),
        "batch_size": hotlap.PowerOfTwo(2, 4),
    }
    assert space_of(plain, given=("kind=choice(a,b)",)).distributions["kind"].grid(1) == ("a", "b")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "no parameter of 'recipe.py' has a search space.*lr, width, kind, on.*LogUniform"),
        (("lr=loguniform(1,0.1)",), "--space 'lr=loguniform.*is an empty range"),
        (("lr=loguniform(1)",), "has 1 values. Expected: two"),
        (("lr:1-2",), "NAME=KIND"),
        (("lr=normal(0,1)",), "distribution 'normal' is not known"),
        (("rate=uniform(0,1)",), "parameter of task.. 'rate' is not known"),
        (("width=uniform(1,8)",), "`width` of 'recipe.py' is an int.*Use IntRange"),
        (
            ("kind=uniform(1,8)",),
            "`kind` of 'recipe.py' cannot be 1.0.*Use Choice with some of 'a', 'b'",
        ),
        (("kind=choice(a,c)",), "cannot be 'c'"),
        (("on=intrange(0,1)",), "is a bool.*Use Choice"),
        (("on=choice(true,false)",), r"is a bool, but .* gives 'true'.*choice\(True,False\)"),
        (("kind=choice()",), "no values"),
    ],
)
def test_a_wrong_space_option_is_refused(given: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        space_of(plain, given=given)


def test_a_parameter_that_is_given_is_not_searched_as_well() -> None:
    with pytest.raises(UsageError, match="--lr sets a fixed value"):
        space_of(plain, "--lr", "1", given=("lr=uniform(0,1)",))


def test_derived_parameters_know_what_they_follow_from() -> None:
    def unknown(
        *,
        lr: Annotated[float, hotlap.Uniform(0, 1)] = 0.1,
        decay: Annotated[float, hotlap.Derived(lambda rate: rate)] = 0.0,
    ): ...

    def circle(
        *,
        lr: Annotated[float, hotlap.Uniform(0, 1)] = 0.1,
        a: Annotated[float, hotlap.Derived(lambda b: b)] = 0.0,
        b: Annotated[float, hotlap.Derived(lambda a: a)] = 0.0,
    ): ...

    with pytest.raises(UnknownName, match="'rate' is not known"):
        space_of(unknown)
    with pytest.raises(UsageError, match="a -> b -> a"):
        space_of(circle)


def test_none_is_a_value_of_the_recipe_s_own() -> None:
    def task(
        *,
        lr: Annotated[float, hotlap.Uniform(0, 1)] = 0.1,
        clip: Annotated[float | None, hotlap.Uniform(0.1, 1)] = None,
        decay: Annotated[float | None, hotlap.Derived(lambda lr: lr / 10)] = None,
    ): ...

    space = space_of(task)
    assert space.defaults == {"lr": 0.1, "clip": None, "decay": None}
    assert words_of(space.defaults or {}) == ["--lr", "0.1"]

    def without(*, clip: Annotated[float | None, hotlap.Uniform(0.1, 1)], seed: int = 0): ...

    # A parameter without a default has none of its own.
    assert space_of(without).defaults is None


def test_members_of_an_enum_are_their_names_on_the_command_line() -> None:
    seen: list[Any] = []

    def gain(act: Act, norm: Norm) -> float:
        seen.append((act, norm))
        return 1.0

    def task(
        *,
        act: Annotated[Act, hotlap.Choice(Act.RELU, Act.LEAKY_RELU)] = Act.LEAKY_RELU,
        norm: Annotated[Norm | None, hotlap.Choice(Norm.LAYER, Norm.BATCH)] = Norm.LAYER,
        text: Annotated[str, hotlap.Choice(Act.RELU, "b")] = Act.LEAKY_RELU,
        gain: Annotated[float, hotlap.Derived(gain)] = 1.0,
        after: Annotated[Norm, hotlap.Derived(lambda norm: norm)] = Norm.BATCH,
    ): ...

    space = space_of(task)
    grids = {name: each.grid(1) for name, each in space.distributions.items()}
    assert grids["act"] == ("relu", "leaky-relu") and grids["norm"] == ("layer", "batch")
    # What is no Enum in the recipe has the value.
    assert grids["text"] == ("ReLU", "b")
    own = {"act": "leaky-relu", "norm": "layer", "text": "leaky", "gain": 1.0, "after": "batch"}
    assert space.defaults == own
    assert json.loads(json.dumps(space.to_json()))["act"]["values"] == ["relu", "leaky-relu"]
    # Derived functions have members, as task() has.
    seen.clear()
    values = space.complete({"act": "relu", "norm": "layer", "text": "b"})
    assert seen == [(Act.RELU, Norm.LAYER)] and values["after"] == "layer"
    read = Recipe(Path("recipe.py"), task).values(words_of(values))
    assert (read["act"], read["norm"], read["after"]) == (Act.RELU, Norm.LAYER, Norm.LAYER)
    given = space_of(task, given=("act=choice(LEAKY_RELU,relu)",))
    assert given.distributions["act"].grid(1) == ("leaky-relu", "relu")
    with pytest.raises(UsageError, match=r"is the Enum Act, but .*'ReLU6', which names no member"):
        space_of(task, given=("act=choice(relu,ReLU6)",))
    with pytest.raises(
        UsageError, match=r"is the Enum Act, but .* Use Choice with some of relu, l"
    ):
        space_of(task, given=("act=intrange(0,1)",))


def depths(of: Any) -> Any:
    def task(
        *,
        depth: Annotated[int, hotlap.IntRange(1, 9)] = 1,
        width: Annotated[int, hotlap.Derived(of)] = 4,
    ): ...

    return task


def test_a_derived_value_need_not_be_there_at_the_middle() -> None:
    space = space_of(depths(lambda depth: {1: 4, 2: 8, 9: 32}[depth]))
    found = list(space.examples())
    assert found and {values["depth"] for values in found} == {1, 2, 9}
    assert found == list(space.examples())
    # The middle is the first example where it has one.
    assert next(space_of(depths(lambda depth: 2 * depth)).examples()) == {"depth": 5, "width": 10}
    with pytest.raises(UsageError, match=r"\(width\) have no value for any .* KeyError: \d"):
        space_of(depths(lambda depth: {}[depth]))
    with pytest.raises(UsageError, match="`width` returned None"):
        space_of(depths(lambda depth: None))


def test_a_derived_value_that_the_recipe_does_not_take_is_refused_at_once() -> None:
    # At the middle, 5, it is an integer.
    with pytest.raises(UsageError, match=r"for depth=\d\. Return .*round.*--width \d+\.5 is not"):
        space_of(depths(lambda depth: (depth - 1) * 1.5))
    assert space_of(depths(lambda depth: depth * 2.0)).complete({"depth": 3})["width"] == 6.0


def test_words_are_what_the_recipe_reads() -> None:
    def task(*, lr: float = 0.0, on: bool = True, name: str = "", batch_size: int = 1) -> None:
        raise AssertionError

    values = {"lr": -0.5, "on": False, "name": "a b", "batch_size": 8}
    assert Recipe(Path("r.py"), task).values(words_of(values)) == values


def test_a_grid_has_every_combination() -> None:
    space = space_of(annotated)
    points = grid(space.distributions, 4)
    assert len(points) == 12 and len({tuple(p.values()) for p in points}) == 12
    with pytest.raises(UsageError, match="empty"):
        grid(space.distributions, 0)
