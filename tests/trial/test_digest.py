"""Digests tell bits, shapes and formats apart, and are read from a device all at once."""

import io
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.lab.run_checks import check_batches
from hotlap.lab.verdict import judge
from hotlap.techniques import Numerics
from hotlap.trial import digest
from hotlap.trial.not_read import not_read_in
from hotlap.trial.protocol import UNREAD
from tests.lab.records import STEPS, record


@pytest.fixture(params=["cpu", "any device"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Digests of a host without a GPU, and of one with a GPU, of tensors on the CPU too."""
    monkeypatch.setattr(digest, "_is_on_cpu", lambda: request.param == "cpu")
    return request.param


@dataclass
class Pair:
    left: Any
    right: Any


def values() -> Any:
    numbers = torch.arange(40, dtype=torch.float32)
    return {
        "odd": [numbers[:3], numbers[1:2], torch.tensor(2, dtype=torch.uint8)],
        "views": (numbers.view(5, 8).t(), numbers[1:].to(torch.float64), numbers[:0]),
        "rest": Pair(numbers.bool(), [numpy.arange(3), 1.5, None, "text"]),
    }


def test_digests_stay_what_they_were(way: str) -> None:
    # Records of another version would differ otherwise.
    expected = {
        "cpu": (6426614856691308308, "220350753dda6f18"),
        "any device": (9044786868864292415, "443917b4fab06fdc"),
    }
    number = digest.of_tensor(torch.arange(5, dtype=torch.int16))
    assert (number, digest.of_nested(values())) == expected[way]


def test_every_tensor_counts_and_its_order_too() -> None:
    seen = {digest.of_nested(values())}
    for change in (
        lambda v: v["odd"].reverse(),
        lambda v: v["odd"][1].add_(1),
        lambda v: v.update(views=v["views"][::-1]),
        lambda v: setattr(v["rest"], "left", v["rest"].left.int()),
    ):
        changed = values()
        change(changed)
        seen.add(digest.of_nested(changed))
    assert len(seen) == 5
    one, other = torch.ones(3), torch.zeros(9)
    assert digest.of_tensors([one, other]) == [digest.of_tensor(one), digest.of_tensor(other)]


def test_a_digest_covers_shape_dtype_and_the_last_bytes() -> None:
    of = digest.of_tensor
    assert of(torch.zeros(2, 4)) != of(torch.zeros(4, 2))
    assert of(torch.zeros(8)) != of(torch.zeros(8, dtype=torch.int32))
    assert of(torch.tensor([1, 2, 3], dtype=torch.uint8)) != of(
        torch.tensor([1, 2, 4], dtype=torch.uint8)
    )
    last = torch.zeros(5)
    last[4] = 1
    assert of(last) != of(torch.zeros(5))
    assert of(torch.arange(20.0)[1:]) == of(torch.arange(1.0, 20.0))


def pairs(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).repeat(50, 1)


SIGNS = {
    "float64": lambda: (torch.rand(100, dtype=torch.float64) + 1, lambda x: -x),
    "float64, in other places": lambda: (
        torch.tensor([1.0, -1.0] * 20, dtype=torch.float64),
        lambda x: -x,
    ),
    "float32": lambda: (torch.rand(100) + 1, lambda x: -x),
    "bfloat16": lambda: (torch.rand(100).bfloat16() + 1, lambda x: -x),
    "the second of two": lambda: (pairs(1.0, 2.0), lambda x: x * torch.tensor([1.0, -1.0])),
    "the first of two": lambda: (pairs(1.0, 2.0), lambda x: x * torch.tensor([-1.0, 1.0])),
    "opposite signs": lambda: (pairs(1.0, -2.0), lambda x: -x),
    "two numbers that change places": lambda: (pairs(1.0, -1.0), lambda x: x.flip(1)),
    "conjugates": lambda: (torch.complex(pairs(1.0, 2.0), pairs(3.0, 4.0)), torch.conj),
    "conjugates in double precision": lambda: (
        torch.complex(pairs(1.0, 2.0).double(), pairs(3.0, 4.0).double()),
        torch.conj,
    ),
    "twice as much": lambda: (torch.rand(100, dtype=torch.float64) + 1, lambda x: 2 * x),
    "integers": lambda: (torch.arange(100), lambda x: x ^ -(2**63)),
}


@pytest.mark.parametrize("name", SIGNS)
def test_top_bits_that_change_together_are_seen(name: str) -> None:
    torch.manual_seed(0)
    value, change = SIGNS[name]()
    # Whether they are many or two of them.
    for count in (2, 4, 8, len(value)):
        some = value[:count]
        assert digest.of_tensor(some) != digest.of_tensor(change(some)), count


@pytest.mark.filterwarnings("ignore:Sparse .* support is in beta:UserWarning")
def test_a_tensor_is_digested_by_what_it_holds_however_it_is_laid_out() -> None:
    dense = torch.eye(8)
    of_dense = digest.of_nested(dense)
    for given in (
        dense.to_sparse(),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        dense.to_sparse_bsr((2, 2)),
    ):
        assert digest.of_nested([given]) == digest.of_nested([dense]), given.layout
    assert digest.of_nested((2 * dense).to_sparse_csr()) != of_dense
    number = torch.complex(torch.rand(4), torch.rand(4))
    assert digest.of_tensor(number.conj()) == digest.of_tensor(number.conj().resolve_conj())
    negated = number.conj().imag
    assert negated.is_neg()
    assert digest.of_tensor(negated) == digest.of_tensor(negated.resolve_neg())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_digested_by_its_parts(layout: torch.layout) -> None:
    def nested(*numbers: int) -> torch.Tensor:
        parts = [torch.arange(float(number)) for number in numbers]
        return torch.nested.nested_tensor(parts, layout=layout)

    found = {digest.of_nested([nested(*each)]) for each in ((2, 3), (3, 2), (2, 3))}
    assert len(found) == 2


def test_objects_in_an_array_are_digested_by_their_values() -> None:
    def objects(*values: object) -> numpy.ndarray[Any, Any]:
        made = numpy.empty(len(values), dtype=object)
        for place, value in enumerate(values):
            made[place] = value
        return made

    def of(*values: object) -> str:
        return digest.of_nested({"names": objects(*values)})

    assert of("a" * 3, [1000, 2]) == of("aa" + "a", [999 + 1, 2]) != of("aaa", [1001, 2])
    assert of(torch.ones(2)) != of(torch.zeros(2))


class Held:
    """An object as libraries give batches: what it holds is in its attributes."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slots:
    __slots__ = ("x",)


def test_objects_are_digested_by_what_they_hold() -> None:
    def of(value: Any) -> str:
        found = digest.of_nested([value])
        assert not not_read_in([found]), found
        return found

    boxes = Held(boxes=torch.ones(2, 4), size=(3, 4), of=Held(classes=[1, 2]))
    again = Held(boxes=torch.ones(2, 4), size=(3, 4), of=Held(classes=[1, 2]))
    assert of(boxes) == of(again)
    again.of.classes[1] = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert of(boxes) != of(again)
    assert of(numpy.int64(1)) != of(numpy.int64(2))
    assert of({"a", "b"}) == of({"b", "a"}) != of({"a", "c"})
    assert of(deque([1])) != of(deque([2]))
    around = Held(number=1)
    around.itself = around  # pyright: ignore[reportAttributeAccessIssue]
    assert of(around) == of(around)


@pytest.mark.parametrize(
    "value",
    [Slots(), io.BytesIO(b"1"), nn.Linear(1, 1), lambda: 0, Held(core=object()), {object()}],
)
def test_what_an_object_holds_beside_its_attributes_is_said_not_to_be_read(value: Any) -> None:
    found = digest.of_nested({"x": torch.ones(2), "rest": value})
    assert not_read_in([found]) and found == digest.of_nested({"x": torch.ones(2), "rest": value})
    batch = {**record(), "batches": [found] * STEPS}
    check = check_batches(batch, batch, None)
    assert check.state == "partial" and "but not what these objects hold" in check.evidence
    verdict = judge(batch, batch, claimed=Numerics.EXACT, plain_repeats=None)
    assert verdict.tier == "exact"
    assert any(line.startswith("batches: ") for line in verdict.not_checked)
    assert "batches" not in {limit.of for limit in verdict.limits}
    # Of one rank alone, and of all that an evaluation reads.
    assert not_read_in([f"0123 {found}"]) == not_read_in([digest.of_digests(["0123", found])])


def test_a_row_of_objects_without_end_is_read_in_part() -> None:
    first: Any = Held(number=0)
    for number in range(2000):
        first = Held(number=number, before=first)
    assert not_read_in([digest.of_nested(first)]) == {f"{Held.__module__}.Held"}
    many = [Held(number=number) for number in range(2 * digest._MOST_OBJECTS)]
    assert not_read_in([digest.of_nested(many)])
    large = Held(rows=torch.zeros(digest._MOST_BYTES // 4 + 1))
    assert not_read_in([digest.of_nested([large])])
    assert not not_read_in([digest.of_nested([vars(large)])])
    # What raises where it is read ends no digest.
    assert not_read_in([digest.of_nested([Held(x=Unreadable(x=1))])])
    assert not not_read_in([digest.of_nested(values())])


class Unreadable(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)


def test_what_cannot_be_read_ends_no_script_and_proves_nothing() -> None:
    unread = digest.of_readable([Unreadable(x=1)])
    assert unread == f"{UNREAD}RuntimeError"
    assert digest.of_readable([1]) == digest.of_nested([1])
    batch = {**record(), "batches": [unread] * STEPS}
    assert check_batches(batch, batch, None).state == "not_made"
    assert check_batches(record(), record(), None).state == "passed"
    assert check_batches(record(), batch, None).state == "failed"
    # Of another rank than the first.
    batch = {**record(), "batches": [f"0123 {unread}"] * STEPS}
    assert check_batches(batch, batch, None).state == "not_made"


def test_a_tensor_may_be_resized_after_it_was_read() -> None:
    tensor = torch.zeros(3)
    digest.of_tensor(tensor)
    tensor.resize_(10)


def test_digests_for_other_hosts_are_the_same_everywhere(way: str) -> None:
    given = [torch.arange(9.0), torch.zeros(0)]
    everywhere = digest.of_tensors(given, everywhere=True)
    assert everywhere == digest._of_words(given)
    assert (everywhere == digest.of_tensors(given)) is (way == "any device")


def test_nothing_is_read_tensor_by_tensor() -> None:
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    with Reads() as reads:
        digest.of_nested([torch.randn(20) for _ in range(30)])
    assert reads.count == 0


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["any device"], indirect=True)
def test_a_device_is_waited_for_once(way: str) -> None:
    del way
    given = [torch.randn(1 + number, device="cuda") for number in range(30)]
    expected = digest.of_nested([each.cpu() for each in given])
    # Factors are copied there once.
    digest.of_nested(given)
    before = torch.cuda.get_sync_debug_mode()
    # Torch says of the mode itself that it is a prototype.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            assert digest.of_nested(given) == expected
        finally:
            torch.cuda.set_sync_debug_mode(before)
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    # The sums of whole words, and what is left of tensors that end within one.
    assert len(waits) == 2


def test_a_default_device_of_the_script_is_not_that_of_the_digests() -> None:
    given = torch.arange(41.0)
    expected = digest.of_nested([given, given[:3]])
    digest._multipliers.cache_clear()
    with torch.device("meta"):
        assert digest.of_nested([given, given[:3]]) == expected
