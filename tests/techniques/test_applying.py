"""What a plan may say, what it claims, and what is reported of techniques that did not act."""

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import hotlap
from hotlap.attach.apply import PlanInProcess
from hotlap.errors import DIFFERS, PlanError
from hotlap.plan import Plan
from hotlap.techniques import Numerics, Proof, Refusal, Technique, check, numerics_of
from hotlap.techniques.applying import Applied
from tests.distributed.cases import BATCH, exact
from tests.feed.heard import Heard

HERE = "tests.techniques.test_applying"


@dataclass(frozen=True)
class Options:
    pass


def raising(target: Any, options: Options) -> Any:
    target["touched"] = True
    raise KeyError("of the user's own model")


def refusing(target: Any, options: Options) -> Any:
    raise Refusal("the model is too small")


def taking(target: Any, options: Options) -> Any:
    return target


def proof(target: Any, options: Options) -> Proof:
    return Proof(target["state"], target["why"])


def technique(name: str, apply: Any) -> Technique:
    return Technique(
        name=name,
        seam="model",
        Options=Options,
        numerics=lambda: Numerics.EXACT,
        apply=apply,
        proof=proof,
    )


RAISING, REFUSING = technique("raising", raising), technique("refusing", refusing)
TAKING = technique("taking", taking)


def proven(name: str, *targets: dict[str, str]) -> tuple[str, str]:
    applied = Applied(Plan({name: {}}), (f"{HERE}:{name.upper()}",))
    for target in targets:
        applied.apply("model", target)
    (row,) = applied.proofs()
    return row["state"], row["why"]


WELL = {"state": "applied", "why": "it ran 3 times"}


def test_what_failed_or_refused_is_reported_with_its_reason_and_never_as_applied() -> None:
    assert proven("raising", dict(WELL)) == ("refused", 'KeyError: "of the user\'s own model"')
    assert proven("refusing", dict(WELL)) == ("refused", "the model is too small")
    assert proven("taking", dict(WELL)) == ("applied", "it ran 3 times")
    assert proven("taking") == ("no_effect", "the run had no model to apply it to")


def test_what_may_have_changed_something_is_told_first() -> None:
    late = {"state": "refused", "why": f"seen too late: {DIFFERS} from a plain run"}
    for targets in ([WELL, late], [late, WELL]):
        state, why = proven("taking", *targets)
        assert state == "refused" and DIFFERS in why
        assert "elsewhere in the script: applied, it ran 3 times" in why


@pytest.mark.parametrize(
    ("techniques", "words"),
    [
        ({"threads": {"count": True}}, "True has type bool. Expected: int"),
        ({"threads": {"count": 1.0}}, "1.0 has type float. Expected: int"),
        ({"threads": {"count": 0}}, "count"),
        ({"threads": {}}, "needs the option 'count'"),
        ({"threads": {"cuont": 1}}, "'cuont' is not known"),
        ({"optimizer": {"implementation": "fast"}}, "'fast' is not known"),
        ({"residant": {}}, "'residant' is not known"),
    ],
)
def test_what_a_plan_may_not_say_is_told(techniques: Any, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(Plan(techniques))
    assert words in str(caught.value)


def test_a_plan_claims_what_its_weakest_technique_claims() -> None:
    exact, rounding = {"resident": {}}, {"threads": {"count": 1}}
    narrow = {"autocast": {"dtype": "bf16"}}
    assert numerics_of(Plan()) is Numerics.EXACT
    assert numerics_of(Plan(exact)) is Numerics.EXACT
    assert numerics_of(Plan({**exact, **rounding})) is Numerics.ROUNDING
    assert numerics_of(Plan({**narrow, **exact, **rounding})) is Numerics.PRECISION


def test_an_optimizer_whose_step_raised_is_as_the_script_knows_it() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 1))
    optimizer = torch.optim.Adam([weight])
    before = dict(optimizer.param_groups[0])
    plan = PlanInProcess(Plan({"optimizer": {"implementation": "foreach"}}))
    plan.step_begins(optimizer)
    weight.grad = torch.ones(3, 1).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert optimizer.param_groups[0]["foreach"] is True
    plan.step_failed(optimizer)
    assert optimizer.param_groups[0] == before


def test_what_splits_nothing_is_refused_though_held_out_batches_go_through_it() -> None:
    task = exact(epochs=1)
    (row,) = hotlap.train(task, Plan({"micro_batch": {"size": BATCH}}), device="cpu").techniques
    assert row["state"] == "refused" and "is the whole batch" in row["why"]
    (row,) = hotlap.train(task, Plan({"micro_batch": {"size": 8}}), device="cpu").techniques
    assert row["state"] == "applied"


def over_lists(plan: PlanInProcess, *, is_held: bool) -> list[weakref.ref[Any]]:
    """Train over three lists, one after another; return what the lists held."""
    held = []
    for number in range(3):
        data = [torch.full((2,), float(number)) for _ in range(8)]
        held.append(weakref.ref(data[0]))
        loader = heard(data, plan)
        for _ in range(3):
            if not is_held:
                # As in `for batch in DataLoader(...)`: only the iterator is left.
                loader = heard(data, plan)
            batches = iter(loader)
            if not is_held:
                del loader
            assert len(list(batches)) == 2
            assert len(plan.targets()) == 1
            del batches
    return held


def heard(data: list[Any], plan: PlanInProcess) -> Heard:
    loader = Heard(data, batch_size=4)  # type: ignore[arg-type]
    loader.plan = plan
    return loader


@pytest.mark.parametrize("is_held", [True, False])
def test_a_list_is_kept_no_longer_than_its_loaders(is_held: bool) -> None:
    plan = PlanInProcess(Plan({"resident": {}}))
    held = over_lists(plan, is_held=is_held)
    gc.collect()
    assert [ref() for ref in held] == [None, None, None]
    assert plan.targets() == []
    (row,) = plan.proofs()
    assert row["state"] == ("applied" if is_held else "no_effect")
    assert ("batches served" in row["why"]) is is_held


def test_a_list_is_kept_as_long_as_one_of_its_loaders() -> None:
    plan, data = PlanInProcess(Plan({"resident": {}})), [torch.ones(2) for _ in range(8)]
    first, second = heard(data, plan), heard(data, plan)
    for _ in range(2):
        assert len(list(first)) == len(list(second)) == 2
    (served,) = plan.targets()
    del first
    assert len(list(second)) == 2
    assert plan.targets() == [served] and served[2].notes["resident"].served == 8
