"""Where a run begins, and what lies between its updates."""

from typing import Any

import pytest
import torch

from hotlap.lab.chain import OWN_CHANGES, OWN_IN_EVALUATION, check_custody, check_start
from hotlap.lab.coverage import covers, limits, not_checked
from hotlap.lab.run_checks import ALL_BITS, BUT_BUFFERS
from hotlap.lab.sampled_steps import SampledSteps
from hotlap.lab.verdict import judge
from hotlap.techniques import Numerics
from hotlap.trial.custody import Custody
from hotlap.trial.late_starts import LateStarts
from hotlap.trial.repetition_ways import BUFFER
from hotlap.trial.untrained_custody import UntrainedCustody
from tests.lab.records import record

STARTS = {
    "another value": {"0.weight": [6, True], "0.bias": [8, True]},
    "a layer that is frozen": {"0.weight": [7, True], "0.bias": [8, False]},
    "a parameter that is gone": {"0.weight": [7, True]},
    "a parameter more": {"0.weight": [7, True], "0.bias": [8, True], "0.more": [1, True]},
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_another_start_is_changed_and_named(start: dict[str, Any]) -> None:
    found = check_start(record(), {**record(), "start": start}, None)
    assert found.state == "failed" and "0." in found.evidence
    # Where two plain runs differ themselves, it says nothing of the plan.
    found = check_start(record(), {**record(), "start": start}, "weights (first at 1)")
    assert found.state == "not_made"
    assert check_start(record(), record(), None).state == "passed"


def test_buffers_start_as_in_the_plain_run() -> None:
    parameters = record()["start"]
    plain = {**record(), "start": {**parameters, "1.scale": [5, BUFFER]}}
    other = {**record(), "start": {**parameters, "1.scale": [6, BUFFER]}}
    found = check_start(plain, plain, None)
    assert found.evidence == "2 parameters and 1 buffers start bit-equal"
    found = check_start(plain, other, None)
    assert found.state == "failed" and "1.scale (of 2 parameters and 1 buffers)" in found.evidence
    # In two plain runs it differed.
    found = check_start({**plain, "start": {**parameters, "1.scale": None}}, other, None)
    assert found.state == "partial" and found.evidence.endswith("except 1.scale")


def test_buffers_change_where_they_change_in_the_plain_run() -> None:
    plain = {**record(), "untrained_moved": {"1.scale": [4]}, "untrained_changed": ["1.mean"]}
    assert check_custody(plain, plain).state == "passed"
    for other, words in (
        ({"untrained_moved": {"1.scale": [4], "1.mean": [9]}}, "update 9 and before the next"),
        ({"untrained_moved": {}}, "1.scale does not change"),
        ({"untrained_changed": ["1.mean", "1.scale"]}, "steps change 1.scale"),
    ):
        found = check_custody(plain, {**plain, **other})
        assert found.state == "failed" and words in found.evidence
    # A value may decide whether a step changes one.
    assert check_custody(plain, {**plain, "untrained_changed": []}).state == "passed"
    assert check_custody({**plain, "untrained_moved": None}, plain).state == "passed"


def test_a_movement_that_is_rounded_away_is_no_other_one() -> None:
    steps = list(range(1, 21))
    average = {"Net 1.weight": steps, "Net 1.bias": steps}
    plain = {**record(), "untrained_moved": average}
    # Of a bias before batch norm in a copy that follows the weights.
    rounded = {**average, "Net 1.bias": [at for at in steps if at not in (4, 9)]}
    assert check_custody(plain, {**plain, "untrained_moved": rounded}).state == "passed"
    assert check_custody({**plain, "untrained_moved": rounded}, plain).state == "passed"
    for other in (
        dict.fromkeys(average, steps[1:]),
        {name: [*steps, 21] for name in average},
        {"Net 1.weight": steps},
        {**average, "Net 1.frozen": [4]},
        {**average, "1.frozen": [4]},
    ):
        assert check_custody(plain, {**plain, "untrained_moved": other}).state == "failed"
    # What a script moves of the model itself is no copy.
    own = {**record(), "untrained_moved": {"1.count": steps, "1.centers": steps}}
    stopped = {**own, "untrained_moved": {"1.count": steps, "1.centers": steps[:1]}}
    assert check_custody(own, stopped).state == "failed"


def test_a_tensor_that_does_not_repeat_itself_excuses_no_other_one() -> None:
    plain = {**record(), "untrained_moved": {"Teacher 1.weight": [3, 6], "1.time": None}}
    same = {**plain, "untrained_moved": {"Teacher 1.weight": [3, 6], "1.time": [1, 2]}}
    found = check_custody(plain, same)
    assert found.state == "partial" and "1.time" in found.evidence
    other = {**plain, "untrained_moved": {"Teacher 1.weight": [3, 5], "1.time": [1, 2]}}
    assert check_custody(plain, other).state == "failed"
    for untrained, words in ((plain["untrained"], ALL_BITS), (None, BUT_BUFFERS)):
        given = {**record(), "untrained": untrained}
        verdict = judge(given, record(), claimed=Numerics.EXACT, plain_repeats=None)
        assert verdict.tier == "exact" and verdict.evidence.startswith(words)
        assert f"{words}, at each step" in {limit.of for limit in verdict.limits}


def test_another_state_before_the_first_update_is_changed() -> None:
    found = check_start(record(), {**record(), "first_state": ["filled"]}, None)
    assert found.state == "failed" and "state before their first updates" in found.evidence
    weight = torch.nn.Parameter(torch.ones(3))
    states = []
    for value in (None, 1.0):
        optimizer, custody = torch.optim.SGD([weight], lr=0.1, momentum=0.9), Custody()
        if value is not None:
            optimizer.state[weight]["momentum_buffer"] = torch.full((3,), value)
        for _ in range(2):
            custody.update_begins(0, optimizer, [weight])
            custody.update_ends(0, optimizer, [weight])
        states.append(custody.first_state)
    assert states[0] != states[1] and {len(state) for state in states} == {1}


@pytest.mark.parametrize(
    ("apart", "state"), [(0.0, "passed"), (1e-5, "partial"), (0.1, "not_made")]
)
def test_models_that_are_trained_later_begin_as_in_the_plain_run(apart: float, state: str) -> None:
    plain, other = ({**record(), "late_starts": _begin_late(by)} for by in (0.0, apart))
    found = check_start(plain, other, None)
    assert found.state == state
    assert "trained only later" in found.evidence
    assert check_start(plain, record(), None).state == "not_made"
    if state == "not_made":
        assert check_start(plain, other, "weights (first at 1)").state == "partial"


def _begin_late(apart: float) -> list[list[Any]]:
    starts, teacher, student = LateStarts(0), [torch.ones(9)], [torch.full((9, 9), 2.0 + apart)]
    for update in range(4):
        starts.update_begins(teacher if update < 2 else student, update)
        teacher[0] -= 0.1
    assert [row[:2] for row in starts.rows] == [[2, 1]]
    return starts.rows


@pytest.mark.parametrize("when", ["before the first update", "before that of the other one"])
def test_weights_that_move_before_their_first_update_are_seen(when: str) -> None:
    def recorded(*, moves: bool) -> dict[str, Any]:
        weights = [torch.ones(3), torch.ones(4)]
        both = [torch.optim.SGD([torch.nn.Parameter(each)], lr=0.1) for each in weights]
        custody = Custody()
        if moves and when == "before the first update":
            weights[0].mul_(0.5)
        custody.update_begins(0, both[0], [weights[0]])
        custody.follow(both[1], [weights[1]])
        custody.update_ends(0, both[0], [weights[0]])
        if moves and when == "before that of the other one":
            weights[1].mul_(0.5)
        custody.update_begins(1, both[1], [weights[1]])
        return {**record(), **custody.report()}

    plain, other = recorded(moves=False), recorded(moves=True)
    found = [check_start(plain, other, None), check_custody(plain, other)]
    assert [each.state for each in found].count("failed") == 1
    assert {check_start(plain, plain, None).state, check_custody(plain, plain).state} == {"passed"}


def test_an_optimizer_that_gets_other_weights_is_followed_on() -> None:
    custody = Custody()
    for sizes in ((3,), (3, 2), (3, 2, 4), (5,), (4,)):
        weights = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        for _ in range(3):
            held = [weight.detach() for weight in weights]
            custody.update_begins(0, optimizer, held)
            custody.update_ends(0, optimizer, held)
            held[0].mul_(0.9)
    plain = {**record(), **custody.report()}
    assert check_custody(plain, plain).state == "passed"


def test_what_moves_a_little_at_every_update_must_not_move_more() -> None:
    def decayed(shrink: float) -> dict[str, Any]:
        return trained(bound=100.0, shrink=shrink)

    assert check_custody(decayed(0.9999), decayed(0.9999)).state == "passed"
    found = check_custody(decayed(0.9999), decayed(0.999))
    assert found.state == "failed" and "changes weights itself" in found.evidence


@pytest.mark.parametrize("key", ["moved", "state_moved", "carried_moved"])
def test_what_moves_between_updates_must_move_in_the_plain_run_too(key: str) -> None:
    clamps = {**record(), key: [5, 10]}
    assert check_custody(clamps, clamps).state == "passed"
    assert check_custody(record(), clamps).state == "failed"
    # A movement of the script's own that a plan leaves out is as bad as one of the plan's.
    assert check_custody(clamps, record()).state == "failed"
    assert check_custody({**record(), key: None}, record()).state == "not_made"


def trained(shrink: float = 1.0, noise: float = 0.0, bound: float = 0.5) -> dict[str, Any]:
    """Return what is recorded of two weights, one of which is clamped after each update."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(64)) for _ in range(2)]
    optimizer, custody = torch.optim.SGD(weights, lr=0.1), Custody()
    for _ in range(20):
        for weight in weights:
            weight.grad = torch.randn(64)
            weight.grad += noise * torch.rand(64)
        held = [weight.detach() for weight in weights]
        custody.update_begins(0, optimizer, held)
        optimizer.step()
        custody.update_ends(0, optimizer, held)
        held[0].clamp_(-bound, bound)
        held[1].mul_(shrink)
    return {**record(), **custody.report()}


def test_where_a_script_moves_a_weight_itself_others_may_not_move() -> None:
    plain = trained()
    assert len(plain["moved"]) == 19 and plain["movements"]["0"][1][0] == 0.0
    rounded = check_custody(plain, trained(noise=1e-5))
    assert rounded.state == "passed" and OWN_CHANGES in rounded.evidence
    found = check_custody(plain, trained(shrink=0.999))
    assert found.state == "failed" and "number 1" in found.evidence
    # Nor that one as much as it likes.
    found = check_custody(plain, trained(bound=0.05))
    assert found.state == "failed" and "number 0" in found.evidence
    stated = {each.of for each in limits([rounded], SampledSteps(), is_exact=False)}
    assert "other weights, between updates" in stated


def test_buffers_belong_to_the_bits() -> None:
    other = {**record(), "untrained": ["b"] * 39 + ["c"]}
    verdict = judge(record(), other, claimed=Numerics.EXACT, plain_repeats=None)
    assert verdict.tier != "exact"
    assert judge(record(), record(), claimed=Numerics.EXACT, plain_repeats=None).tier == "exact"


class Loop:
    """Two optimizers that are stepped in turns, with an eye on what they leave."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weights = [torch.nn.Parameter(torch.randn(3)) for _ in range(2)]
        self.optimizers = [torch.optim.Adam([weight]) for weight in self.weights]
        self.custody = Custody()

    def step(self, which: int) -> None:
        weight, optimizer = self.weights[which], self.optimizers[which]
        weight.grad = torch.ones(3)
        self.custody.update_begins(which, optimizer, [weight.detach()])
        optimizer.step()
        self.custody.update_ends(which, optimizer, [weight])


def test_each_optimizer_has_a_chain_of_its_own() -> None:
    loop = Loop()
    for _ in range(3):
        loop.step(0)
        loop.step(1)
    assert loop.custody.moved == loop.custody.state_moved == []
    with torch.no_grad():
        loop.weights[1].clamp_(-0.1, 0.1)
    loop.step(0)
    loop.step(1)
    assert loop.custody.moved == [8] and loop.custody.state_moved == []


def test_weights_that_are_evaluated_are_those_that_the_update_has_left() -> None:
    def recorded(*, is_swapped: bool, is_saved_first: bool = False) -> dict[str, Any]:
        loop = Loop()
        for _ in range(3):
            loop.step(0)
            loop.step(1)
            if is_saved_first:
                loop.custody.evaluation()
            with torch.no_grad():
                loop.weights[1].mul_(0.5 if is_swapped else 1.0)
                loop.custody.evaluation()
                loop.weights[1].mul_(2.0 if is_swapped else 1.0)
        return {**record(), **loop.custody.report()}

    plain, swapped = recorded(is_swapped=False), recorded(is_swapped=True, is_saved_first=True)
    assert plain["moved_in_evaluation"] == [] and swapped["moved_in_evaluation"] == [2, 4, 6]
    assert check_custody(plain, plain).state == "passed"
    found = check_custody(plain, swapped)
    assert found.state == "failed" and "after 3 updates (first: 2) other weights" in found.evidence
    # A script may evaluate an average that it puts in their place; a plan may not leave that out.
    own = check_custody(swapped, swapped)
    assert own.state == "passed" and OWN_IN_EVALUATION in own.evidence
    assert check_custody(swapped, plain).state == "failed"
    # Where weights are rounded otherwise, a loss may decide it.
    rounded = {"weights": [f"v{number}" for number in range(40)]}
    assert check_custody(swapped, {**plain, **rounded}).state == "not_made"
    assert check_custody(plain, {**swapped, **rounded}).state == "failed"
    words = "which other weights the script evaluates or saves than those it trains"
    assert words in not_checked([own], covers(plain))
    assert words not in not_checked([check_custody(plain, plain)], covers(plain))


def best_at_the_end(
    best: int | None, *, is_rounded: bool = True, makes_anew: bool = False
) -> dict[str, Any]:
    """Return what is recorded where the weights after an update are loaded at the end."""
    loop, kept = Loop(), []
    for _ in range(4):
        loop.step(0)
        kept.append(loop.weights[0].detach().clone())
        loop.custody.evaluation()
        if makes_anew:
            loop.optimizers[0] = torch.optim.Adam([loop.weights[0]])
    with torch.no_grad():
        loop.weights[0].copy_(kept[-1 if best is None else best])
    # As where the optimizer was one of a function that has returned.
    loop.optimizers.clear()
    loop.custody.evaluation()
    weights = [f"v{number}" for number in range(40)] if is_rounded else record()["weights"]
    return {**record(), **loop.custody.report(), "weights": weights}


def test_the_best_weights_so_far_may_be_those_of_another_update() -> None:
    plain = {**best_at_the_end(None), "weights": record()["weights"]}
    assert plain["restored_in_evaluation"] == plain["moved_in_evaluation"] == []
    other = best_at_the_end(1)
    assert other["restored_in_evaluation"] == [[4, 2]] and other["moved_in_evaluation"] == []
    assert check_custody(plain, other).state == "not_made"
    assert check_custody(plain, best_at_the_end(1, is_rounded=False)).state == "failed"
    own = check_custody(other, other)
    assert own.state == "passed" and OWN_IN_EVALUATION in own.evidence
    found = check_custody({**other, "weights": plain["weights"]}, best_at_the_end(0))
    assert found.state == "partial" and "other updates have left" in found.evidence
    same_bits = {**best_at_the_end(0), "weights": other["weights"]}
    assert check_custody(other, same_bits).state == "failed"
    # Two plain runs differ in it.
    unknown = {**plain, "restored_in_evaluation": None}
    assert check_custody(unknown, other).state == "partial"
    anew = best_at_the_end(1, makes_anew=True)
    assert anew["restored_in_evaluation"] == [[4, 2]] and anew["moved_in_evaluation"] == []


def best_of_two(swap: int | None = None) -> dict[str, Any]:
    """Return what is recorded of two optimizers that share a weight, where the best weights so far
    are evaluated at the end, or one is another while it is evaluated."""
    torch.manual_seed(0)
    shared, *own = (torch.nn.Parameter(torch.randn(3)) for _ in range(3))
    optimizers = [torch.optim.Adam([shared, each]) for each in own]
    custody, kept = Custody(), []
    for _ in range(3):
        for key, (optimizer, each) in enumerate(zip(optimizers, own, strict=True)):
            shared.grad = each.grad = torch.ones(3)
            held = [shared.detach(), each.detach()]
            custody.update_begins(key, optimizer, held)
            optimizer.step()
            custody.update_ends(key, optimizer, held)
        kept.append([weight.detach().clone() for weight in (shared, *own)])
        with torch.no_grad():
            if swap is not None:
                own[swap].neg_()
            custody.evaluation()
            if swap is not None:
                own[swap].neg_()
    with torch.no_grad():
        for weight, value in zip((shared, *own), kept[1], strict=True):
            weight.copy_(value)
    custody.evaluation()
    return {**record(), **custody.report()}


def clamped_beside(bound: float, *, within_the_other: bool = False) -> dict[str, Any]:
    """Return what is recorded where the script moves what one of two optimizers alone has."""
    torch.manual_seed(0)
    shared, *own = (torch.nn.Parameter(torch.randn(64)) for _ in range(3))
    optimizers = [torch.optim.SGD([shared, each], lr=0.1) for each in own]
    custody = Custody()
    for number in range(20):
        for key, (optimizer, each) in enumerate(zip(optimizers, own, strict=True)):
            # A warm-up that begins at 0.
            shared.grad = each.grad = torch.randn(64) * (number > 0)
            held = [shared.detach(), each.detach()]
            custody.update_begins(key, optimizer, held)
            optimizer.step()
            if within_the_other and key == 0:
                own[1].detach().clamp_(-bound, bound)
            custody.update_ends(key, optimizer, held)
        if not within_the_other:
            own[1].detach().clamp_(-bound, bound)
    return {**record(), **custody.report()}


@pytest.mark.parametrize("within_the_other", [False, True])
def test_what_the_script_moves_beside_another_optimizer_moves_as_far(
    *, within_the_other: bool
) -> None:
    plain, other = (clamped_beside(b, within_the_other=within_the_other) for b in (0.5, 0.05))
    assert len(plain["moved"]) >= 18 and check_custody(plain, plain).state == "passed"
    found = check_custody(plain, other)
    assert found.state == "failed" and "changes weights itself" in found.evidence


def test_optimizers_that_share_a_weight_are_both_in_custody() -> None:
    plain = best_of_two()
    # One moves what the other has left, which is no movement between updates.
    assert plain["moved"] == plain["moved_in_evaluation"] == []
    assert plain["restored_in_evaluation"] == [[6, 4]]
    for which in (0, 1):
        other = best_of_two(which)
        assert other["moved_in_evaluation"] == [2, 4, 6]
        assert check_custody(plain, other).state == "failed"


@pytest.mark.parametrize("turns", [[0] * 4 + [1] * 4, [0, 1] * 4])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_what_another_optimizer_of_the_same_place_holds_does_not_move(
    turns: list[int], *, is_dropped: bool
) -> None:
    def recorded(factor: float, before: int) -> dict[str, Any]:
        torch.manual_seed(0)
        body, head = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))
        optimizers: list[Any] = [torch.optim.SGD(held, lr=0.1) for held in ([body, head], [head])]
        custody = Custody()
        for number, which in enumerate(turns):
            if number == before:
                with torch.no_grad():
                    body.mul_(factor)
            optimizer = optimizers[which]
            body.grad, head.grad = torch.ones(3), torch.ones(3)
            held = [p.detach() for group in optimizer.param_groups for p in group["params"]]
            custody.update_begins(0, optimizer, held)
            optimizer.step()
            custody.update_ends(0, optimizer, held)
            if is_dropped and which not in turns[number + 1 :]:
                optimizers[which] = optimizer = None
        return {**record(), **custody.report()}

    plain = recorded(1.0, 0)
    assert plain["moved"] == plain["state_moved"] == []
    assert plain["made_anew"] == [[turns.index(1) + 1, False]]
    for before in (4, 6):
        found = check_custody(plain, recorded(0.98, before))
        assert found.state == "failed"


def test_an_optimizer_whose_tensors_are_replaced_is_followed_on() -> None:
    def recorded(factor: float) -> dict[str, Any]:
        torch.manual_seed(0)
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.randn(3))])
        custody = Custody()
        for number in range(6):
            weight = optimizer.param_groups[0]["params"][0]
            weight.grad = torch.ones_like(weight)
            held = [weight.detach()]
            custody.update_begins(0, optimizer, held)
            optimizer.step()
            custody.update_ends(0, optimizer, held)
            with torch.no_grad():
                weight.mul_(factor)
                custody.evaluation()
                weight.div_(factor)
            if number == 2:
                grown = torch.nn.Parameter(torch.cat([weight.detach()] * 2))
                optimizer.state.clear()
                optimizer.param_groups[0]["params"] = [grown]
        return {**record(), **custody.report()}

    plain, other = recorded(1.0), recorded(0.5)
    assert plain["moved_in_evaluation"] == [] and plain["made_anew"] == []
    assert other["moved_in_evaluation"] == [1, 2, 3, 4, 5, 6]
    assert check_custody(plain, plain).state == "passed"
    assert check_custody(plain, other).state == "failed"


def test_weights_are_looked_at_when_their_optimizer_is_no_more() -> None:
    def recorded(factor: float) -> dict[str, Any]:
        loop = Loop()
        loop.step(0)
        weight = loop.weights[0]
        loop.optimizers.clear()
        with torch.no_grad():
            weight.mul_(factor)
        loop.custody.evaluation()
        return {**record(), **loop.custody.report()}

    plain = recorded(1.0)
    assert check_custody(plain, plain).state == "passed"
    assert check_custody(plain, recorded(0.5)).state == "failed"
    # Of a model that is gone, nothing is looked at.
    loop = Loop()
    loop.step(0)
    loop.weights.clear()
    loop.optimizers.clear()
    loop.custody.evaluation()
    assert loop.custody.moved_in_evaluation == []


def test_a_buffer_that_is_another_one_in_evaluation_is_seen() -> None:
    def recorded(factor: float) -> dict[str, Any]:
        custody, buffer = UntrainedCustody(), torch.ones(3)
        named = [("1.mean", buffer)]
        custody.forward_begins(named)
        # Before the first update nothing was left that could be compared.
        custody.evaluation(named)
        for _ in range(3):
            buffer += 1
            custody.update_ends(named)
            buffer *= factor
            custody.evaluation(named)
            custody.evaluation(named)
            buffer /= factor
            custody.forward_begins(named)
        return {**record(), **custody.report(), "looked_in_evaluation": [1, 2, 3]}

    plain = recorded(1.0)
    assert check_custody(plain, plain).state == "passed"
    found = check_custody(plain, recorded(0.5))
    assert found.state == "failed" and "after update 1 1.mean is evaluated" in found.evidence
    # The script's own change, behind the evaluation, allows for none in it.
    cooled = {"untrained_moved": {"1.mean": [1, 2, 3]}}
    assert check_custody({**plain, **cooled}, {**recorded(0.5), **cooled}).state == "failed"
    # An average that moves in most updates need not move in one, and is evaluated in few.
    at = {"untrained_in_evaluation": {"M 1.a": [1], "M 1.b": [1]}, "looked_in_evaluation": [1, 2]}
    moves = {"untrained_moved": {"M 1.a": [4], "M 1.b": [4]}}
    assert check_custody({**plain, **at, **moves}, {**plain, **at, **moves}).state == "passed"
    less = {**at, "untrained_in_evaluation": {"M 1.a": [1]}}
    assert check_custody({**plain, **at, **moves}, {**plain, **less, **moves}).state == "passed"
    still = {"untrained_moved": {"M 1.a": [4]}}
    assert check_custody({**plain, **at, **still}, {**plain, **less, **still}).state == "failed"


@pytest.mark.parametrize("is_filled", [False, True])
def test_an_optimizer_that_is_made_anew_begins_without_a_state(is_filled: bool) -> None:
    def recorded(*, fills: bool) -> dict[str, Any]:
        weight, custody = torch.nn.Parameter(torch.ones(3)), Custody()
        for _ in range(3):
            optimizer = torch.optim.Adam([weight])
            if fills:
                optimizer.state[weight]["exp_avg_sq"] = torch.ones(3)
            for _ in range(2):
                custody.update_begins(0, optimizer, [weight.detach()])
                custody.update_ends(0, optimizer, [weight])
        return {**record(), **custody.report(), "state_moved": [], "first_state": ["e"]}

    plain, other = recorded(fills=False), recorded(fills=is_filled)
    assert plain["made_anew"] == [[3, False], [5, False]]
    assert check_custody(plain, other).state == ("failed" if is_filled else "passed")


def test_the_state_of_the_optimizer_is_in_custody_too() -> None:
    loop = Loop()
    loop.step(0)
    state = loop.optimizers[0].state[loop.weights[0]]
    # `.data` moves it past the version that torch counts.
    state["exp_avg"].data.copy_(state["exp_avg"].bfloat16())
    loop.step(0)
    loop.custody.look(0, loop.optimizers[0], [])
    assert loop.custody.state_moved == [2]


def test_tensors_that_belong_to_no_module_start_as_in_the_plain_run() -> None:
    plain = {**record(), "start": {}, "first_weights": ["a"], "first_state": ["empty"]}
    found = check_start(plain, dict(plain), None)
    assert found.state == "passed" and found.evidence.startswith("the weights of 1 optimizers")
    assert check_start(plain, {**plain, "first_weights": ["b"]}, None).state == "failed"
    assert check_start({**plain, "first_weights": []}, plain, None).state == "not_made"
