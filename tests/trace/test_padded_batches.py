"""Padding of training batches: what is seen of it, and what is left when it is cut off."""

from typing import Any

import pytest
import torch

from hotlap.diagnosis.cut_batches import CUT_BATCHES
from hotlap.techniques import FeedTarget
from hotlap.trace.padded_batches import PaddedBatches


def batch(*lengths: int, to: int = 0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids that are padded with 0, to a length or to the longest, and a class of each."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), to or max(lengths), dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, 100, (length,), generator=generator)
    return ids, torch.arange(len(lengths)) % 3


def seen(*batches: Any) -> Any:
    padded = PaddedBatches()
    for each in batches:
        padded.look(each, None)
    return padded.facts()


def test_of_a_fixed_length_what_no_batch_needs_is_avoidable() -> None:
    facts = seen(batch(10, 20, 30, to=100), batch(5, 25, 40, to=100))
    assert facts.name == "batch[0]" and facts.length == 100
    assert facts.share == pytest.approx(1 - (60 + 70) / 600)
    assert facts.avoidable == pytest.approx(1 - (30 + 40) / 200)
    assert "not to 100" in facts.remedy


def test_of_batches_that_are_as_long_as_they_must_be_all_padding_is() -> None:
    facts = seen(batch(10, 20, 30), batch(5, 25, 40))
    assert facts.avoidable == facts.share == pytest.approx(1 - 130 / (90 + 120))


def test_batches_without_padding_show_none() -> None:
    assert seen(batch(20, 20, 20)) is None
    assert seen((torch.randn(8, 16), torch.arange(8))) is None


class Broken(dict[str, Any]):
    """A batch that only its own model can read."""

    def items(self) -> Any:
        raise KeyError("not now")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_that_cannot_be_looked_at_is_no_matter_of_the_script(is_first: bool) -> None:
    padded, given = PaddedBatches(), [batch(10, 20, 30, to=100), Broken(x=1)]
    for each in reversed(given) if is_first else given:
        padded.look(each, None)
    assert padded.facts() is None
    assert padded.problems() == (
        "nothing is said of padding: to look at them failed (KeyError: 'not now')",
    )
    (done,), target = cut(given[1])
    assert done is given[1] and CUT_BATCHES.proof(target, None).state == "no_effect"


def cut(*batches: Any, off: bool = False) -> tuple[list[Any], FeedTarget]:
    target = CUT_BATCHES.apply(FeedTarget(None), None)
    (wrap,) = target.fetchers
    fetch = wrap(None, lambda number: batches[number])
    if off:
        assert CUT_BATCHES.live is not None
        CUT_BATCHES.live.off(target, None)
    return [fetch(number) for number in range(len(batches))], target


def test_batches_are_cut_to_what_the_first_remedy_leaves() -> None:
    (first, second), target = cut(batch(10, 20, 30, to=100), batch(5, 25, 40, to=100))
    assert first[0].shape == (3, 30) and second[0].shape == (3, 40)
    assert torch.equal(first[1], torch.arange(3))
    assert CUT_BATCHES.proof(target, None).state == "applied"
    (longest, _), _ = cut(batch(10, 20, 30), batch(5, 25, 40))
    # A sum of 60 positions in 3 samples.
    assert longest[0].shape == (3, 20)


def test_labels_of_each_position_and_lengths_are_cut_as_well() -> None:
    ids, _ = batch(10, 20, 30, to=100)
    given = {"ids": ids, "tags": torch.ones(3, 100), "lengths": torch.tensor([10, 20, 30])}
    (done,), _ = cut(given)
    assert done["ids"].shape == done["tags"].shape == (3, 30)
    assert done["lengths"].tolist() == [10, 20, 30]


def test_what_is_not_padded_stays_and_so_does_everything_while_it_is_off() -> None:
    whole = (torch.randn(8, 16), torch.arange(8))
    (done,), target = cut(whole)
    assert done is whole and CUT_BATCHES.proof(target, None).state == "no_effect"
    padded = batch(10, 20, 30, to=100)
    assert cut(padded, off=True)[0][0] is padded
