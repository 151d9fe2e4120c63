"""Batches of other types than lists are served, and judged, as what they are."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.attach.entry import Script
from hotlap.feed.sources.source import Source
from hotlap.feed.transfer.pinned import PinnedFeed
from hotlap.feed.transfer.plain import to_device
from hotlap.lab.observing import watch
from hotlap.lab.proving import Prover
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import registry
from tests.attach.batches import Encoded, Encoding
from tests.fake_device import FakeCuda

RESIDENT, FUSED = Plan({"resident": {}}), Plan({"optimizer": {"implementation": "fused"}})
SCRIPT = Path(__file__).parent / "batches.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["named", "encoding"])
def test_a_script_gets_the_verdict_that_it_deserves(kind: str) -> None:
    script = Script(path=SCRIPT.name, args=(kind,), cwd=str(SCRIPT.parent))
    with Lab(script) as lab:
        prover = Prover(lab, 24, registry())
        prover.run_plain()
        assert watch(lab, RESIDENT, seconds=9, epochs=2).techniques[0]["state"] == "applied"
        exact = prover.prove(RESIDENT)
        assert exact.tier == "exact", exact.evidence
        rounding = prover.prove(FUSED)
        assert rounding.tier == "rounding", rounding.evidence
        assert "sampled steps" in rounding.evidence


def test_an_encoding_is_one_on_a_device_too() -> None:
    source = Source(Encoded(), 8, seed=3)
    plain = [batch for step in source.epoch(0) for _, batch in step]
    source.transfer = PinnedFeed(FakeCuda(), ahead=2, max_bytes=2**20)
    moved = [batch for step in source.epoch(0) for _, batch in step]
    assert source.transfer.pinned_steps == 8
    for one, other in zip(plain, moved, strict=True):
        assert type(other) is Encoding
        assert other.sequences == 1
        assert torch.equal(one.input_ids, other.input_ids)
    assert type(to_device(plain[0], "meta")) is Encoding
    assert to_device(plain[0], "meta").labels.device.type == "meta"


def test_a_recipe_keeps_them_in_memory() -> None:
    from hotlap.engine.build import build
    from hotlap.engine.steps import steps_of
    from hotlap.task import Task

    def loss(model: Any, batch: Any) -> torch.Tensor:
        assert type(batch) is Encoding
        return torch.nn.functional.cross_entropy(model(batch.input_ids), batch.labels)

    def trained(plan: Plan) -> tuple[list[float], list[dict[str, str]]]:
        task = Task(
            model=lambda: torch.nn.Linear(6, 3),
            loss=loss,
            data=Encoded(),
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            batch_size=8,
            epochs=3,
        )
        built = build(task, plan)
        losses = [step.loss.item() for step in steps_of(built)]
        return losses, built.applied.proofs()

    losses, proofs = trained(RESIDENT)
    assert proofs[0]["state"] == "applied", proofs
    assert losses == trained(Plan())[0]
