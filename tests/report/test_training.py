"""What a training says while it runs and in the end, and its one document."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.engine.largest_batch import WarmUpBatch
from hotlap.engine.training_report import EpochDone, TrainingReport
from hotlap.plan import Plan
from hotlap.report import jsonout, training
from hotlap.report.page.training import page_of_training
from tests.report.shown import words
from tests.report.test_jsonout import parsed

TASK = SimpleNamespace(
    epochs=3,
    accumulate=1,
    logical_batch=64,
    budget=None,
    tokens_per_batch=None,
    total_steps=30,
    steps_per_epoch=10,
)
EPOCH = EpochDone(2, 10, 1.25, 512.4, 0.5, {"loss": 0.25, "accuracy": 0.98765}, 0.0, 3 * 2**30)
REFUSED = {"name": "resident", "state": "refused", "why": "the data set draws numbers"}
DONE = TrainingReport(
    model=None,
    epochs=(replace(EPOCH, epoch=1), EPOCH),
    steps=20,
    skipped_steps=0,
    seconds=2.5,
    samples_per_s=1234.5,
    plan=Plan({"resident": {}}),
    techniques=(REFUSED,),
    peak_memory_bytes=3 * 2**30,
    run_dir="run",
    held_out={"accuracy": 0.98765},
)


def task(**changes: Any) -> Any:
    return SimpleNamespace(**{**vars(TASK), **changes})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "30 steps of 64 samples, 10 an epoch"),
        ({"steps_per_epoch": None}, "30 steps of 64 samples"),
        ({"accumulate": 4}, "30 steps of 64 samples in 4 micro-batches, 10 an epoch"),
        (
            {"accumulate": 2, "budget": 500, "tokens_per_batch": 500},
            "30 steps of at most 1000 tokens in 2 micro-batches, 10 an epoch",
        ),
        (
            {"total_steps": None},
            "3 epochs in steps of 64 samples, until the stream ends",
        ),
        (
            {"total_steps": None, "epochs": 1},
            "1 epoch in steps of 64 samples, until the stream ends",
        ),
    ],
)
def test_it_says_first_what_will_be_trained(given: dict[str, Any], line: str) -> None:
    assert training.opening_line(task(**given)) == line


def test_an_epoch_is_one_line() -> None:
    assert training.line(EPOCH, TASK) == (
        "epoch 2 of 3: loss 0.500000, held-out loss 0.25, held-out accuracy 0.9877, "
        "512 samples/s, 1.2 s, 3,072 MiB"
    )
    more = replace(EPOCH, held_out={}, padding=0.125, skipped_steps=2, left_s=75.0)
    assert training.line(more, task(epochs=None)) == (
        "epoch 2: loss 0.500000, 512 samples/s, padding 12.5 %, 1.2 s, 3,072 MiB, "
        "2 skipped steps, 1:15 left"
    )


@pytest.mark.parametrize(
    ("seconds", "end"),
    [
        (0.0, "MiB"),
        (-1.0, "MiB"),
        (0.4, ", 0:00 left"),
        (59.6, ", 1:00 left"),
        (3599.7, ", 1:00:00 left"),
    ],
)
def test_the_time_that_is_left_is_read_from_a_clock(seconds: float, end: str) -> None:
    assert training.line(replace(EPOCH, left_s=seconds), TASK).endswith(end)


def test_who_stops_a_run_is_told_what_is_kept() -> None:
    kept = training.stop_line(DONE, "SIGTERM")
    assert kept.startswith("SIGTERM: ended after step 20, saved in 'run'. Use --resume auto")
    nothing = training.stop_line(replace(DONE, run_dir=None), "SIGINT")
    assert nothing == "SIGINT: ended after step 20, nothing was saved"


def test_the_page_says_what_came_out_and_what_each_technique_did() -> None:
    text = words(training.page, DONE)
    assert "20 steps in 2.5 s, steady 1,234 samples/s, peak memory 3,072 MiB" in text
    assert "loss 0.500000 held-out accuracy 0.98765" in text
    assert "resident refused the data set draws numbers" in text
    assert "skipped steps" not in text and "largest batch" not in text
    hostile = replace(DONE, held_out={"a\x1b]0;evil\x07": 0.5})
    assert "\x1b]" not in words(training.page, hostile)
    warmed = (WarmUpBatch(8, 512, 0.5, 2**30),)
    text = words(training.page, replace(DONE, skipped_steps=3, warmed=warmed))
    assert "3 skipped steps: the loss or the gradient norm was not finite" in text
    assert "largest batch 8 samples x 512 tokens" in text and "peak 1,024 MiB" in text


def test_a_resumed_run_tells_the_steps_that_its_seconds_are_of() -> None:
    resumed = replace(DONE, steps=5000, begun_step=4900, seconds=720.0)
    text = words(training.page, resumed)
    assert "100 of 5,000 steps, resumed from step 4,900, in 720.0 s, steady" in text
    again = replace(EPOCH, epoch=49, loss=0.31), replace(EPOCH, epoch=50, loss=0.28)
    page = page_of_training(parsed(jsonout.document(replace(resumed, epochs=again).to_json())))
    assert page.answer.startswith(
        "Trained for 100 of 5,000 steps in 12 min 00 s, resumed from step 4,900: the training "
        "loss, from 0.31 in epoch 49, is 0.28"
    )
    steps = next(fact for fact in page.facts if fact.name == "steps")
    assert (steps.value, steps.note) == ("5,000", "100 of them in 12 min 00 s")
    whole = page_of_training(parsed(jsonout.document(DONE.to_json())))
    assert whole.answer.startswith("Trained for 20 steps in 2.5 s: the training loss, from 0.5 in")
    # An older hotlap did not write where a run was resumed.
    older = parsed(jsonout.document(resumed.to_json()))
    del older["begun_step"]
    assert page_of_training(older).answer.startswith("Trained for 5,000 steps in 12 min 00 s:")


def test_a_loss_that_is_not_finite_is_not_left_out() -> None:
    lost = (EPOCH, replace(EPOCH, epoch=3, loss=math.nan))
    page = page_of_training(parsed(jsonout.document(replace(DONE, epochs=lost).to_json())))
    assert ": the training loss, from 0.5 in epoch 2, is not finite; held out" in page.answer
    nothing = replace(DONE, epochs=(), samples_per_s=math.nan).to_json()
    assert "loss" not in page_of_training(parsed(jsonout.document(nothing))).answer


def test_a_run_that_had_nothing_left_to_do_claims_no_loss_and_no_speed() -> None:
    text = words(training.page, replace(DONE, epochs=(), samples_per_s=math.nan))
    assert "nothing left to train: 20 steps were already done" in text
    assert "samples/s" not in text and "nan" not in text
    # One that was stopped in its first step did not have nothing to do.
    text = words(training.page, replace(DONE, epochs=(), is_stopped=True))
    assert "nothing left" not in text


def test_the_document_holds_the_same_and_no_number_that_json_lacks() -> None:
    lost = replace(EPOCH, loss=math.nan, samples_per_s=math.inf, held_out={"loss": -math.inf})
    found = parsed(jsonout.document(replace(DONE, epochs=(EPOCH, lost)).to_json()))
    assert found["schema"] == 1
    assert found["final"] == {"loss": None, "metrics": {"accuracy": 0.98765}}
    assert found["epochs"][0]["held_out"] == {"loss": 0.25, "accuracy": 0.98765}
    assert found["epochs"][1]["samples_per_s"] is None
    assert found["plan"] == {"resident": {}} and found["plan_hash"] == DONE.plan.hash
    assert found["techniques"] == [REFUSED]
    assert "model" not in found
    nothing = parsed(jsonout.document(replace(DONE, epochs=(), samples_per_s=math.nan).to_json()))
    assert nothing["final"]["loss"] is None and nothing["samples_per_s"] is None


def test_a_devices_memory_is_told_as_torch_and_the_driver_count_it() -> None:
    assert "peak memory 3,072 MiB loss" in words(training.page, DONE)
    counted = {"allocated": 3 * 2**30, "reserved": 4 * 2**30, "used": 5 * 2**30}
    text = words(training.page, replace(DONE, device_memory=counted))
    assert "3,072 MiB of tensors (4,096 MiB reserved by torch, 5,120 MiB used on the" in text
    assert replace(DONE, device_memory=counted).to_json()["device_memory"] == counted
