"""Rules about mistakes of learning: each names the line, and says nothing of the corrected loop."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hotlap import rules
from hotlap.rules.nomination import Nomination
from hotlap.trace import event_kinds as kinds
from hotlap.trace.learning import (
    BatchSizeFacts,
    EvaluationFacts,
    InputFacts,
    Learning,
    LossFacts,
    SavedFacts,
    ScalerFacts,
    ScheduleFacts,
    WithoutGradient,
    WorkerFacts,
)
from hotlap.trace.schema import Event, Trace
from tests.rules.test_rules import ADAM, LOADER, trace

LINES = {
    kinds.BACKWARD: "train.py:32",
    kinds.OPTIMIZER_STEP: ADAM.where,
    kinds.LOADER_BEGUN: LOADER.where,
    kinds.CLIP: "train.py:40",
    kinds.SCHEDULER_STEP: "train.py:41",
    kinds.SCALER_MADE: "train.py:42",
}
SHORT = {
    "b": kinds.BACKWARD,
    "s": kinds.OPTIMIZER_STEP,
    "z": kinds.ZERO_GRAD,
    "e": kinds.LOADER_BEGUN,
    "c": kinds.CLIP,
    "u": kinds.UNSCALE,
    "l": kinds.SCHEDULER_STEP,
    "g": kinds.SCALER_MADE,
    "p": kinds.SCALER_UPDATE,
    "d": kinds.LOAD_STATE_DICT,
}


def loop(text: str, ended: str = "limit", **learned: Any) -> Trace:
    """Return a run with these events, a letter each, see `SHORT`."""
    events, steps = [], 0
    for letter in text.replace(" ", ""):
        kind = SHORT[letter]
        events.append(Event(steps, kind, LINES.get(kind, "train.py:1")))
        steps += kind == kinds.OPTIMIZER_STEP
    given = trace()
    return replace(given, events=tuple(events), ended=ended, learning=Learning(**learned))


def mistakes(given: Trace) -> list[Nomination]:
    return [each for each in rules.nominate(given) if each.kind == "mistake"]


def only(given: Trace, rule: str) -> Nomination:
    (found,) = mistakes(given)
    assert found.rule == rule
    assert found.at_most_ms == 0 and not found.remedies and found.by_hand
    return found


MEAN = LossFacts("train.py:32", backwards=12, is_mean=True)


def test_a_first_step_of_one_micro_batch() -> None:
    found = only(loop("bsz bbbsz bbbsz bbbsz"), "single_first_micro_batch")
    assert found.where == ADAM.where and "the others follow 3" in found.evidence
    assert mistakes(loop("bbbsz bbbsz bbbsz bbbsz")) == []
    assert mistakes(loop("bsz bsz bsz bsz")) == []
    # LOADER has 10 batches: steps follow the first, fourth, seventh and tenth.
    assert found.evidence.endswith("after micro-batch 0")
    found = only(loop("bsz bbsz bbsz bbsz"), "single_first_micro_batch")
    assert found.evidence.endswith("and the last 1 of the 10 micro-batches of an epoch has no step")


def test_steps_with_one_micro_batch_within_an_epoch_are_a_warm_up() -> None:
    # As YOLOv5 begins, whose accumulation grows from 1 to 4.
    assert mistakes(loop("e bsz bsz bsz bbsz bbsz bbsz bbsz bbbsz bbbsz bbbbsz")) == []
    # The first one of a later epoch is that of micro-batch 0 again, also without a loader.
    text = "zbsz bbbsz bbbsz bb zbsz bbbsz bbbsz bb zbsz"
    assert only(loop(text), "single_first_micro_batch")
    text = "e bsz bbsz bbsz bbsz e bsz bbsz bbsz"
    assert only(loop(text), "single_first_micro_batch")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("e bbbsz bbbsz bbbsz b e zbbbsz", "are zeroed; the usual step has 3"),
        ("e bbbsz bbbsz bbbsz b e bbbsz", "go into the first step of the next one"),
        ("e bbbsz bbbsz bbbsz bb z e bbbsz", "are zeroed; the usual step has 3"),
        ("bbbsz bbbsz bbbsz bb", "are lost at the end of the script"),
    ],
)
def test_micro_batches_without_a_step(text: str, words: str) -> None:
    found = only(loop(text, ended="script"), "unused_micro_batches")
    assert found.where == MEAN.where and words in found.evidence


def test_accumulation_may_go_on_across_epochs() -> None:
    assert mistakes(loop("e bbbsz bbbsz b e bbsz bbbsz bb e bsz bbbsz")) == []


def test_a_loss_that_begins_later_is_no_micro_batch() -> None:
    given = loop("bsz bbsz bbsz bbsz bbsz")
    second = [i for i, e in enumerate(given.events) if e.kind == kinds.BACKWARD][2::2]
    events = [
        replace(event, where="train.py:35") if i in second else event
        for i, event in enumerate(given.events)
    ]
    assert only(given, "single_first_micro_batch")
    assert mistakes(replace(given, events=tuple(events))) == []


SMALL = BatchSizeFacts("train.py:38", 32, 20, 0, 29, 0.1, 0.1)
LARGE = replace(SMALL, where="train.py:44", samples=256, first_step=30, last_step=60)


def test_a_batch_size_that_grows_at_the_same_rate_is_explained() -> None:
    found = only(loop("bsz bsz", batch_sizes=(SMALL, LARGE)), "grown_batch")
    assert found.where == LARGE.where
    assert (
        "from 32 to 256 at step 31" in found.evidence and "0.1 before, 0.1 after" in found.evidence
    )
    assert "by 8 for SGD, or by 2.83 for Adam" in found.by_hand
    others = {
        "scaled": replace(LARGE, first_rate=0.8),
        "a little": replace(LARGE, samples=40),
        "few steps": replace(LARGE, steps=3),
        "in turns": replace(LARGE, first_step=10),
    }
    for name, after in others.items():
        assert mistakes(loop("bsz bsz", batch_sizes=(SMALL, after))) == [], name
    assert (
        mistakes(loop("bsz bsz", batch_sizes=(LARGE, replace(SMALL, first_step=70, last_step=90))))
        == []
    )


def test_micro_batches_that_all_have_a_step_are_no_mistake() -> None:
    assert mistakes(loop("e bbbsz bbbsz e bbbsz bsz e bbbsz", ended="script")) == []
    # The observation has ended in the middle of a step.
    assert mistakes(loop("bbbsz bbbsz bbbsz bb")) == []
    # A scaler has left a step out.
    assert mistakes(loop("bbbspz bbbspz bbbpz e bbbspz")) == []
    # An optimizer that goes backward itself, as often as it needs.
    lbfgs = replace(ADAM, name="torch.optim.lbfgs.LBFGS")
    for text in ("s zbzbzb s zbzbzb s zbzbzb s", "bs bbbs bbbs bbbs"):
        given = loop(text, losses=(MEAN,), forwards=12)
        facts = replace(given.facts, optimizers=(lbfgs,))
        assert mistakes(replace(given, facts=facts)) == []


@pytest.mark.parametrize(
    "text",
    [
        # Sharpness-aware: the first pass finds the weights at which the second one is made.
        "bzbsz bzbsz bzbsz bzbsz",
        # Attacks, whose passes find the input that is trained on; the first epoch has none.
        "bzbsz bzbsz e bzbsz bzbsz",
        "bbbzbsz bbbzbsz e bbbzbsz bbbzbsz",
        "bsz bzbsz bzbsz bzbsz",
        # Gradients of several tasks, each kept apart.
        "zbzbzbs zbzbzbs e zbzbzbs zbzbzbs",
    ],
)
def test_backward_passes_for_something_else_than_a_step_are_no_micro_batches(text: str) -> None:
    assert mistakes(loop(text, ended="script", losses=(MEAN,), forwards=12)) == []


def summed(text: str, batches: int = 12, **learned: Any) -> Trace:
    """Return a run of means that nothing divides, whose loader has given so many batches."""
    seen: dict[str, Any] = {"losses": (MEAN,), "forwards": 12, "compared_gradients": 3, **learned}
    given = loop(text, **seen)
    return replace(given, anchor=replace(given.anchor, votes={"training_batches": batches}))


def test_passes_of_several_tasks_and_gradients_that_are_divided_later_are_no_sum() -> None:
    text = "bbbsz bbbsz bbbsz bbbsz"
    # `p.grad /= 3` before the step.
    assert mistakes(summed(text, changed_gradients=3)) == []
    # A loader for each task.
    given = summed(text)
    tasks = replace(given.facts, loaders=(LOADER, replace(LOADER, where="train.py:31")))
    assert mistakes(replace(given, facts=tasks)) == []
    # Parts of one batch may be tasks, and on a device no gradient was compared.
    for unsure in (summed(text, batches=4), summed(text, compared_gradients=0)):
        found = only(unsure, "summed_micro_batches")
        assert "(loss / 3)" in found.by_hand and "unless the passes are of several" in found.by_hand


def test_micro_batches_that_are_summed() -> None:
    text = "bbbsz bbbsz bbbsz bbbsz"
    found = only(summed(text), "summed_micro_batches")
    assert found.where == MEAN.where and "3 times that of the batch" in found.evidence
    assert found.by_hand == "`(loss / 3).backward()`"
    found = only(summed(text, scales=True), "summed_micro_batches")
    assert found.by_hand == "`scaler.scale(loss / 3).backward()`"
    divided = replace(MEAN, is_mean=False)
    assert mistakes(loop(text, losses=(divided,), forwards=12)) == []
    # Three losses of one forward pass.
    assert mistakes(loop(text, losses=(MEAN,), forwards=4)) == []


def test_clipping_in_the_wrong_place() -> None:
    found = only(loop("bcusp bcusp bcusp", scales=True), "clip_before_unscale")
    assert found.where == LINES[kinds.CLIP]
    assert mistakes(loop("bucsp bucsp bucsp", scales=True)) == []
    # Two optimizers, both unscaled before the first one is clipped.
    assert mistakes(loop("buucscsp buucscsp buucscsp", scales=True)) == []
    found = only(loop("bcusp bcuscusp bcuscusp", scales=True), "clip_before_unscale")
    assert "in 3 of the 3 steps" in found.evidence
    found = only(loop("bsc bsc bsc"), "clip_after_step")
    assert found.where == LINES[kinds.CLIP]
    assert mistakes(loop("bcs bcs bcs")) == []
    # Its backward passes are not heard, as those of `torch.autograd.grad`.
    assert mistakes(loop("cs cs cs cs")) == []


def test_scalers() -> None:
    found = only(loop("gbsp bsp gbsp bsp gbsp", scales=True), "new_scaler")
    assert "3 times, after 0, 2, 4 steps" in found.evidence
    assert mistakes(loop("gbsp bsp bsp bsp", scales=True)) == []
    # The observation ends in the first epoch.
    each = ScalerFacts(LINES[kinds.SCALER_MADE], "train.py:90", 10)
    found = only(loop("gbsp bsp", scales=True, scalers=(each,)), "new_scaler")
    assert (
        found.where == each.where and "the 10 passes of the loop at train.py:90" in found.evidence
    )
    found = only(loop("gbsp gbsp", scales=True, scalers=(each,)), "new_scaler")
    assert "2 times, after 0, 1 steps" in found.evidence
    # Each fold has a model, an optimizer and a scaler.
    folds = loop("g bsp bsp g bsp bsp g bsp", scales=True, optimizers_made=(0, 2, 4))
    assert mistakes(folds) == []
    again = loop("g bsp bsp g bsp bsp g bsp", scales=True, optimizers_made=(0,))
    assert only(again, "new_scaler")
    narrow = replace(MEAN, not_scaled=12)
    assert only(loop("", losses=(narrow,)), "float16_without_scaler").where == MEAN.where
    assert mistakes(loop("", losses=(narrow,), scales=True)) == []


def test_gradients_that_stay() -> None:
    kept: dict[str, Any] = {"kept_gradients": 8, "first_backwards": 8}
    assert only(loop("bs bs bs", **kept), "kept_gradients").where == ADAM.where
    assert mistakes(loop("zbs zbs zbs", **kept)) == []
    # Once an epoch, or once before the loop.
    seldom = only(loop("zbs bs bs bs bs", **kept), "kept_gradients")
    assert "zeroed 1 times in 5 steps" in seldom.evidence
    # They are set to None by hand.
    assert mistakes(loop("bs bs bs", kept_gradients=0, first_backwards=8)) == []


def test_a_schedule_that_comes_first() -> None:
    assert only(loop("l bs l bs"), "schedule_before_update").where == LINES[kinds.SCHEDULER_STEP]
    assert mistakes(loop("bs l bs l")) == []
    # A run that is resumed catches up with its schedule.
    resumed = [replace(event, where="train.py:20") for event in loop("ll").events]
    later = loop("bs l bs l")
    assert mistakes(replace(later, events=(*resumed, *later.events))) == []
    assert mistakes(replace(later, events=(*resumed, *loop("bs bs").events))) == []
    # Under a scaler the first step may be skipped.
    assert mistakes(loop("bpl bsp l")) == []


def with_schedule(schedule: ScheduleFacts, planned: int | None = 240, steps: int = 40) -> Trace:
    """Return a run of epochs of 20 steps."""
    given = loop("", schedules=(schedule,))
    facts = replace(given.facts, steps_per_epoch=20, planned_steps=planned)
    return replace(given, facts=facts, steps=[given.steps[0]] * steps)


def test_a_schedule_that_is_stepped_for_each_batch() -> None:
    cosine = ScheduleFacts("CosineAnnealingLR", "train.py:41", 40, 12, 0.1, 0.05)
    assert "an epoch has 20 steps" in only(with_schedule(cosine), "schedule_per_batch").evidence
    decay = ScheduleFacts("ExponentialLR", "train.py:41", 40, None, 0.1, 1e-9, vanished=15)
    assert only(with_schedule(decay), "schedule_per_batch").where == "train.py:41"
    # A third is left after an epoch, a thousandth before the middle of the run.
    slower = replace(decay, last_rate=0.1 * 0.94**40, vanished=None)
    assert only(with_schedule(slower), "schedule_per_batch")
    assert mistakes(with_schedule(replace(slower, name="LambdaLR"))) == []
    for good in (
        replace(cosine, calls=2),
        replace(cosine, period=240),
        replace(decay, last_rate=0.08, vanished=None),
    ):
        assert mistakes(with_schedule(good)) == []
    assert mistakes(with_schedule(cosine, planned=None)) == []
    # Nobody knows its epochs, but the rate has been gone for long.
    gone = ScheduleFacts("StepLR", "train.py:41", 400, 30, 0.1, 1e-14, vanished=90)
    found = only(with_schedule(gone, planned=None), "schedule_per_batch")
    assert "in 90 calls" in found.evidence and "called 400 times" in found.evidence
    for good in (replace(gone, calls=170), replace(gone, last_rate=0.05)):
        assert mistakes(with_schedule(good, planned=None)) == []
    assert mistakes(with_schedule(replace(gone, vanished=None), planned=None)) == []


def test_a_schedule_whose_period_is_in_steps_may_be_stepped_for_each_batch() -> None:
    plan = ScheduleFacts("StepLR", "train.py:41", 40, 100, 0.1, 0.1)
    # Of the 300 epochs none has 100 steps.
    assert mistakes(with_schedule(plan, planned=6000)) == []
    assert only(with_schedule(replace(plan, period=12), planned=6000), "schedule_per_batch")
    # A factor that is meant to be applied often.
    often = replace(plan, period=12, last_rate=0.1 * 0.99**3)
    assert mistakes(with_schedule(often, planned=6000)) == []
    assert only(with_schedule(replace(often, last_rate=0.01), planned=6000), "schedule_per_batch")
    # As `step(epoch + i / len(loader))` does.
    restarts = ScheduleFacts("CosineAnnealingWarmRestarts", "train.py:41", 40, 10, 0.1, 0.08, 1)
    assert mistakes(with_schedule(restarts)) == []
    assert only(with_schedule(replace(restarts, advanced=40)), "schedule_per_batch")


def test_a_rate_that_begins_or_ends_at_0_has_not_vanished() -> None:
    warm_up = ScheduleFacts("LambdaLR", "train.py:41", 40, None, 0.0, 0.0005)
    assert mistakes(with_schedule(warm_up)) == []
    assert mistakes(with_schedule(replace(warm_up, calls=12), steps=12)) == []
    # Down to 0 in all steps of the run.
    whole = ScheduleFacts("LambdaLR", "train.py:41", 40, None, 0.1, 0.0, vanished=39)
    assert mistakes(with_schedule(whole, planned=40)) == []
    assert mistakes(with_schedule(replace(whole, vanished=None), planned=40)) == []
    # Down to 0 in a number of steps that was meant to be one of epochs.
    found = only(with_schedule(replace(whole, vanished=11)), "schedule_per_batch")
    assert "from 0.1 to 0" in found.evidence
    # The observation has ended within the first epoch.
    short = ScheduleFacts("LambdaLR", "train.py:41", 12, None, 0.1, 1e-5)
    assert only(with_schedule(short, steps=12), "schedule_per_batch")


def test_modes() -> None:
    loss = replace(MEAN, in_evaluation_mode=9, after_training=8)
    found = only(loop("", losses=(loss,)), "trained_in_evaluation_mode")
    assert "9 of 12 losses" in found.evidence and "from the first evaluation on" in found.evidence
    seen = EvaluationFacts("train.py:50", forwards=6, passes=2, in_training_mode=6)
    assert only(loop("", evaluations=(seen,)), "evaluated_in_training_mode").where == "train.py:50"
    # At every step, as a generator gives samples to a discriminator.
    often = loop("", evaluations=(replace(seen, passes=9),))
    assert mistakes(often) == []
    # Of them, few were timed, and the others were looked at.
    longer = replace(often, anchor=replace(often.anchor, votes={"optimizer_steps": 27}))
    assert only(longer, "evaluated_in_training_mode")
    # As DCGAN samples of noise every 500 iterations, beside two optimizers.
    given = loop("", evaluations=(seen,))
    two = replace(given, facts=replace(given.facts, optimizers=(ADAM, ADAM)))
    assert mistakes(two) == []
    held_out = replace(LOADER, training=False, where="train.py:51")
    evaluates = replace(two.facts, loaders=(LOADER, held_out))
    assert only(replace(two, facts=evaluates), "evaluated_in_training_mode")
    elsewhere = Learning(evaluations=(replace(seen, is_evaluated=True),))
    assert only(replace(two, learning=elsewhere), "evaluated_in_training_mode")
    seen = EvaluationFacts("train.py:50", forwards=6, passes=2, with_gradients=6)
    assert only(loop("", evaluations=(seen,)), "evaluated_with_gradients").where == "train.py:50"
    assert mistakes(loop("", evaluations=(replace(seen, with_gradients=0),))) == []


def test_an_evaluation_in_training_mode_with_gradients() -> None:
    seen = EvaluationFacts("train.py:50", forwards=6, passes=2, in_training_mode=6, unused=6)
    given = loop("", evaluations=(seen,))
    mode, graph = mistakes(given)
    assert (mode.rule, graph.rule) == ("evaluated_in_training_mode", "evaluated_with_gradients")
    assert "no backward pass followed" in mode.evidence
    assert "no backward pass used" in graph.evidence
    # A model without dropout or batch norm.
    given = loop("", evaluations=(replace(seen, in_training_mode=0),))
    assert only(given, "evaluated_with_gradients").where == "train.py:50"
    # Samples of a generator, and a target that is taken at every step.
    two = replace(given, facts=replace(given.facts, optimizers=(ADAM, ADAM)))
    assert mistakes(two) == []
    assert mistakes(loop("", evaluations=(replace(seen, passes=9),))) == []


def test_losses() -> None:
    for word in ("softmax", "sigmoid"):
        loss = replace(MEAN, normalized_twice=word)
        assert word in only(loop("", losses=(loss,)), "normalized_twice").evidence
    given = replace(loop("", losses=(MEAN,)), losses=(1.0, float("nan"), float("inf")))
    assert only(given, "not_finite_loss").evidence.startswith("2 of 3 losses")
    assert mistakes(replace(given, losses=(1.0, 2.0))) == []
    loss = replace(MEAN, replaced=3, replaced_of=800)
    assert "3 of 800" in only(loop("", losses=(loss,)), "not_finite_loss").evidence


@pytest.mark.parametrize("given", ["softmax", "sigmoid", "layer"])
def test_a_likelihood_without_logarithms(given: str) -> None:
    loss = replace(MEAN, without_logarithm=given)
    found = only(loop("", losses=(loss,)), "missing_logarithm")
    assert found.where == MEAN.where and given in found.evidence and "nll_loss" in found.evidence


def test_a_loss_of_a_table() -> None:
    found = only(loop("", losses=(replace(MEAN, table=40),)), "broadcast_loss")
    assert found.where == MEAN.where and "a table of 40 x 40 differences" in found.evidence


def test_gradients_that_are_zeroed_before_the_step() -> None:
    empty: dict[str, Any] = {"empty_steps": 4, "looked_at_steps": 4}
    without = WithoutGradient(ADAM.where, tensors=8, of=8, steps=9, names=("fc.weight",))
    # That the parameters have no gradient follows from it.
    found = only(
        loop("bzs bzs bzs bzs", **empty, without_gradient=(without,)), "zeroed_before_step"
    )
    assert found.where == "train.py:1" and ADAM.where in found.evidence
    # Gradients of several tasks, which the script puts together itself.
    assert mistakes(loop("bbzs bbzs bbzs bbzs", empty_steps=0, looked_at_steps=4)) == []
    assert mistakes(loop("zbs zbs zbs zbs", **empty)) == []
    assert mistakes(loop("bzbs bzbs bzbs bzbs", **empty)) == []
    assert mistakes(loop("bzs bzs bzs bzs", empty_steps=1, looked_at_steps=4)) == []
    assert only(
        loop("zs zs zs", **empty, without_gradient=(without,)), "parameters_without_gradient"
    )


def test_a_seed_that_is_set_again_before_each_epoch() -> None:
    def drawn(*draws: tuple[int, int]) -> Trace:
        return trace(loaders=(replace(LOADER, draws=draws),))

    found = only(drawn((7, 1), (7, 1), (7, 1)), "repeated_seed")
    assert found.where == LOADER.where and "each of the 3 epochs" in found.evidence
    # Workers that persist draw more when they start.
    found = only(drawn((5, 1), (7, 1), (7, 1)), "repeated_seed")
    assert "each of the last 2 epochs" in found.evidence
    # Other states; one epoch; a seed that is set for another run, with an optimizer of its own.
    for draws in (((7, 1), (8, 1)), ((7, 1),), (), ((7, 1), (7, 2)), ((5, 1), (7, 2), (7, 2))):
        assert mistakes(drawn(*draws)) == []


def test_workers() -> None:
    stream = WorkerFacts("train.py:30", workers=2, repeats=4, looked_at=8)
    assert "4 of the first 8" in only(loop("", workers=(stream,)), "repeated_stream").evidence
    assert mistakes(loop("", workers=(replace(stream, repeats=0),))) == []
    copied = WorkerFacts("train.py:30", workers=2, generator="rng")
    evidence = only(loop("", workers=(copied,)), "copied_generator").evidence
    assert "each of the 2 workers has a copy of the generator `rng`" in evidence
    assert "again in every epoch" in evidence
    seeded = WorkerFacts("train.py:30", workers=2, is_seeded_alike=True, are_persistent=True)
    found = only(loop("", workers=(seeded,)), "copied_generator")
    assert found.evidence == "`worker_init_fn` sets the same seed in each of the 2 workers"


def test_parameters() -> None:
    given = trace(optimizers=(replace(ADAM, left=2, left_in="Head"),))
    assert only(given, "parameters_without_optimizer").where == ADAM.where
    without = WithoutGradient(ADAM.where, 2, 6, 9, ("aux.weight", "aux.bias"))
    found = only(loop("", without_gradient=(without,)), "parameters_without_gradient")
    assert "2 of 6" in found.evidence and "aux.weight, aux.bias" in found.evidence
    assert mistakes(loop("", without_gradient=(replace(without, steps=2),))) == []


def test_inputs_and_files() -> None:
    raw = InputFacts("train.py:31", "Linear", 72.9, 90.0, 255.0, 310.0, 80.0)
    found = only(loop("", inputs=(raw,)), "unscaled_input")
    assert "mean 72.9" in found.evidence and "310 at the first step" in found.evidence
    assert mistakes(loop("", inputs=(replace(raw, mean=0.1, std=1.2),))) == []
    # A frozen layer, or one before a norm.
    assert mistakes(loop("", inputs=(replace(raw, is_learned=False),))) == []
    # Weights that were loaded may expect pixels whose mean was subtracted, not those as they are.
    centered = replace(raw, mean=-0.4)
    assert mistakes(loop("d bsz bsz", inputs=(centered,))) == []
    assert only(loop("d bsz bsz", inputs=(raw,)), "unscaled_input")
    # What is loaded later says nothing of them.
    assert only(loop("bsz d bsz", inputs=(centered,)), "unscaled_input")
    assert only(loop("", unsafe_loads=("train.py:9",)), "unsafe_load").where == "train.py:9"
    plan = ScheduleFacts("StepLR", "train.py:41", 2, 10, 0.1, 0.1)
    saved = SavedFacts("train.py:60", optimizer=True, schedule=False, scaler=False)
    found = only(loop("", saved=(saved,), schedules=(plan,)), "incomplete_checkpoint")
    assert found.where == "train.py:60" and "StepLR" in found.evidence
    assert mistakes(loop("", saved=(replace(saved, schedule=True),), schedules=(plan,))) == []
    apart = replace(saved, optimizer=False, schedule=True)
    assert mistakes(loop("", saved=(saved, apart), schedules=(plan,))) == []
    # Weights alone, for inference.
    assert mistakes(loop("", saved=(replace(saved, optimizer=False),), schedules=(plan,))) == []


def test_what_was_learned_is_read_back() -> None:
    given = loop("bs", losses=(MEAN,), scales=True, unsafe_loads=("a.py:1",), problems=("inputs",))
    again = Trace.from_json(json.loads(json.dumps(given.to_json())))
    assert again.learning.losses == given.learning.losses and again.learning.scales
    assert again.learning.problems == ("inputs",)


def test_every_mistake_has_a_page() -> None:
    for name, rule in rules.registry().items():
        if rule.kind == "mistake":
            for head in ("What it sees", "Why it matters", "What to do", "Evidence"):
                assert head in rule.page, name
