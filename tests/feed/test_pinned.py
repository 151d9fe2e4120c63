"""Batches that are copied ahead are those that were read, whatever the device is late with."""

import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from hotlap.device.accelerator import Cuda
from hotlap.feed.memory.place import DevicePlace, HostPlace
from hotlap.feed.memory.resident import ResidentRows
from hotlap.feed.sources.source import Source
from hotlap.feed.transfer import pinned
from hotlap.feed.transfer.pinned import PinnedFeed
from hotlap.feed.transfer.plain import DeviceTransfer, Reuse, to_device
from hotlap.techniques import FeedTarget, Refusal, get
from tests.engine.test_run import Augmented, Fixed
from tests.fake_device import FakeCuda

MIB = 2**20


def feed(device: FakeCuda, **options: Any) -> PinnedFeed:
    return PinnedFeed(device, **{"ahead": 2, "max_bytes": MIB, **options})


def epochs(source: Source, count: int = 3) -> list[Any]:
    return [step for number in range(count) for step in source.epoch(number)]


@pytest.mark.parametrize("dataset", [Fixed(), Augmented()], ids=["fixed", "augmented"])
@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("micro", [8, 3])
def test_the_same_batches_come_in_the_same_order(dataset: Any, ahead: int, micro: int) -> None:
    plain, pinned = (Source(dataset, 8, micro=micro, seed=5) for _ in range(2))
    expected = [repr(step) for step in epochs(plain)]
    pinned.transfer = feed(FakeCuda(), ahead=ahead)
    states = torch.get_rng_state()
    assert [repr(step) for step in epochs(pinned)] == expected
    assert torch.equal(torch.get_rng_state(), states)
    assert pinned.transfer.pinned_steps == 9
    assert pinned.transfer.other_steps == 0


def numbered(count: int) -> list[Any]:
    return [[(4, torch.full((4, 64), float(number)))] for number in range(count)]


@pytest.mark.parametrize("waits", [True, False])
def test_a_step_waits_for_its_copy(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeCuda()
    if not waits:
        monkeypatch.setattr(device, "wait", lambda event: None)
    seen = [repr(step) for step in feed(device)(iter(numbered(9)))]
    assert (seen == [repr(step) for step in numbered(9)]) is waits


@pytest.mark.parametrize("waits", [True, False])
def test_a_buffer_is_not_written_to_before_it_was_read(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeCuda()
    if not waits:
        monkeypatch.setattr(device, "wait_on_host", lambda event: None)
    # The device is behind: what its stream waits for has not happened while the host goes on.
    events: list[Any] = []
    monkeypatch.setattr(device, "wait", events.append)
    steps = list(feed(device)(iter(numbered(9))))
    stream, place = events[-1]
    stream.run_to(place)
    right = [torch.equal(s[0][1], e[0][1]) for s, e in zip(steps, numbered(9), strict=True)]
    assert all(right) is waits


def test_what_was_made_on_the_other_stream_is_handed_over() -> None:
    device = FakeCuda()
    steps = [[(2, {"a": torch.ones(2), "b": [torch.zeros(2, 3), "text"]})] for _ in range(3)]
    received = list(feed(device)(iter(steps)))
    assert device.handed_over == 6
    assert received[0][0][1]["b"][1] == "text"


def test_layouts_and_odd_tensors_arrive_as_they_are() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    odd = [image, torch.randn(6, 4).t(), torch.tensor(3), torch.empty(0, 2), torch.ones(3).bool()]
    (step,) = feed(FakeCuda())(iter([[(2, odd)]]))
    for mine, given in zip(step[0][1], odd, strict=True):
        assert torch.equal(mine, given)
        assert mine.dtype == given.dtype
        assert mine.stride() == given.stride()


def test_what_does_not_go_through_the_buffer_is_handed_over_too() -> None:
    device = FakeCuda()
    batch = [torch.randn(6, 4).t(), torch.randn(8)[::2], torch.ones(2), torch.ones(1).expand(3)]
    list(feed(device)(iter([[(2, batch)]])))
    assert device.handed_over == len(batch)


def test_pinned_memory_stays_within_its_budget() -> None:
    device = FakeCuda()
    steps = [[(1, torch.ones(MIB // 16))] for _ in range(6)]
    one = feed(device, ahead=3, max_bytes=MIB // 2)
    received = list(one(iter(steps)))
    assert all(torch.equal(step[0][1], torch.ones(MIB // 16)) for step in received)
    assert device.pinned_bytes == one.most_bytes == MIB // 2
    assert (one.pinned_steps, one.other_steps) == (4, 2)


def test_the_thread_opens_no_device_but_its_own() -> None:
    device = FakeCuda(number=1)
    list(feed(device)(iter(numbered(3))))
    assert device.opened == {1}


def test_what_is_not_pinned_is_there_until_it_was_copied() -> None:
    device = FakeCuda()
    # Nobody else holds a step; its copies are done when their event is waited for.
    given = ([(4, torch.full((4, 64), float(number)))] for number in range(4))
    received = feed(device, max_bytes=64)(given)
    assert [float(step[0][1][0, 0]) for step in received] == [0, 1, 2, 3]
    assert device.slow_copies == 4


def filled_again(memory: torch.Tensor, count: int) -> Iterator[Any]:
    """Give steps that are read into the same memory, as one that a task has pinned once."""
    for number in range(count):
        yield [(4, memory.view(torch.float32).fill_(number).view(4, 64))]


@pytest.mark.parametrize("room", [MIB, 64], ids=["fits", "does not fit"])
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_memory_that_the_task_fills_again_is_copied_before(
    room: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = PinnedFeed._send

    def send_late(*given: Any) -> Any:
        time.sleep(0.002)
        return send(*given)

    monkeypatch.setattr(PinnedFeed, "_send", send_late)
    device = FakeCuda()
    given = filled_again(device.allocate_pinned(1024), 20)
    received = feed(device, max_bytes=room, ahead=ahead)(given)
    seen = [step[0][1].clone() for step in received]
    assert [float(each.min()) for each in seen] == [float(each.max()) for each in seen]
    assert [int(each[0, 0]) for each in seen] == list(range(20))


def test_where_batches_have_memory_of_their_own_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(pinned, "_wait_for_copies", waited.append)
    mine = feed(FakeCuda())
    for _ in range(2):
        list(mine(iter(numbered(9))))
    # In the first eight steps only; before the first two of them nothing is under way.
    assert len(waited) == 8
    mine = feed(device := FakeCuda())
    list(mine(filled_again(device.allocate_pinned(1024), 20)))
    assert len(waited) == 8 + 21


@pytest.mark.parametrize("is_constant", [True, False])
def test_what_is_the_same_in_each_batch_is_not_memory_that_is_filled_again(
    is_constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(pinned, "_wait_for_copies", waited.append)
    mask = torch.ones(64)

    def steps() -> Iterator[Any]:
        for number in range(20):
            if not is_constant:
                mask[-1] = number
            yield [(4, {"x": torch.full((4, 64), float(number)), "mask": mask})]

    list(feed(FakeCuda())(steps()))
    assert len(waited) == (8 if is_constant else 21)


class Copies:
    """The copies to a device that is not there, of tensors that are said to be pinned.

    Attributes:
        non_blocking: of each copy.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.non_blocking: list[bool] = []
        plain = torch.Tensor.to

        def to(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
            if args != ("a device",):
                return plain(tensor, *args, **options)
            self.non_blocking.append(options["non_blocking"])
            return tensor.clone()

        monkeypatch.setattr(torch.Tensor, "to", to)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor, device=None: True)


@pytest.mark.parametrize("buffers", [0, 1, 7, 8])
def test_on_a_plain_path_pinned_memory_is_waited_for_only_where_it_is_filled_again(
    buffers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, weights = Copies(monkeypatch), torch.ones(3)
    memory = [torch.empty(4, 64) for _ in range(buffers)]

    def steps() -> Iterator[Any]:
        for number in range(20):
            to_fill = memory[number % buffers] if buffers else torch.empty(4, 64)
            yield [(4, [to_fill.fill_(float(number)), weights])]

    transfer = DeviceTransfer("a device")
    received = [float(step[0][1][0].min()) for step in transfer(steps())]
    assert received == list(range(20))
    # Eight buffers in turns come again in the ninth step.
    is_seen = 0 < buffers < 8
    assert copies.non_blocking == [False] * 16 + [not is_seen] * 24


def test_what_does_not_come_from_pinned_memory_is_looked_at_once_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies, is_pinned = Copies(monkeypatch), False
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor, device=None: is_pinned)
    transfer = DeviceTransfer("a device")
    list(transfer(iter(numbered(12))))
    assert copies.non_blocking == [True] * 12
    is_pinned = True
    list(transfer(filled_again(torch.empty(1024, dtype=torch.uint8), 20)))
    assert copies.non_blocking == [True] * 12 + [False] * 20


def test_tensors_of_the_first_steps_are_held_and_let_go() -> None:
    reuse = Reuse(8, lambda tensor: True)
    seen: list[Any] = []
    for _ in range(8):
        (step,) = numbered(1)
        seen.append(weakref.ref(step[0][1]))
        reuse.look_at(step)
        del step
        assert all(each() is not None for each in seen) is (len(seen) < 8)
    assert not any(each() is not None for each in seen)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(6, 4).t(),
        torch.randn(8)[::2],
        torch.tensor(3),
        torch.ones(3).bool(),
        torch.ones(3).bfloat16(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, requires_grad=True),
    ],
    ids=["transposed", "holes", "scalar", "bool", "bf16", "conjugate", "gradient"],
)
def test_what_any_tensor_holds_is_compared(tensor: torch.Tensor) -> None:
    check_compared(tensor)


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_what_a_quantized_tensor_holds_is_compared() -> None:
    check_compared(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))


def check_compared(tensor: torch.Tensor) -> None:
    reuse = Reuse(8, lambda tensor: True)
    for _ in range(3):
        reuse.look_at([(1, tensor)])
    assert not reuse._is_seen
    tensor.detach().copy_(torch.zeros(tensor.shape))
    reuse.look_at([(1, tensor)])
    assert reuse._is_seen


class Noted(torch.Tensor):
    """A tensor that notes how it is copied."""

    pinned = False
    asked: list[Any]

    def is_pinned(self, device: Any = None) -> bool:
        return self.pinned

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        self.asked.append(non_blocking)
        return self


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_copy_from_memory_that_the_task_has_pinned_is_waited_for(is_pinned: bool) -> None:
    Noted.pinned, Noted.asked = is_pinned, []
    to_device({"x": [torch.ones(2).as_subclass(Noted)]}, "cuda")
    assert Noted.asked == [not is_pinned]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch._mkldnn, torch.jagged])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_other_layouts_are_moved_as_ever(layout: Any) -> None:
    given = {
        torch.sparse_coo: lambda: torch.eye(3).to_sparse(),
        torch._mkldnn: lambda: torch.ones(3).to_mkldnn(),
        torch.jagged: lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    }[layout]()
    assert to_device(given, "cpu").layout == layout


@pytest.mark.gpu
@pytest.mark.parametrize("plan", ["plain", "pinned", "too large for pinned"])
def test_on_a_device_memory_that_is_filled_again_is_copied_before(plan: str) -> None:
    memory, device = torch.empty(2**24, pin_memory=True), Cuda("cuda")
    steps = ([(1, memory.fill_(number))] for number in range(12))
    if plan == "plain":
        received = DeviceTransfer("cuda")(steps)
    else:
        received = PinnedFeed(device, ahead=2, max_bytes=2**30 if plan == "pinned" else 1)(steps)
    # The device is behind all the time.
    busy = torch.randn(4096, 4096, device="cuda")
    found = []
    for step in received:
        busy = busy @ busy
        found.append(torch.stack([step[0][1].min(), step[0][1].max()]))
    assert torch.stack(found).tolist() == [[number, number] for number in range(12)]


def test_an_error_comes_in_its_turn_and_not_ahead_of_it() -> None:
    def steps() -> Iterator[Any]:
        yield [(1, torch.ones(1))]
        yield [(1, torch.ones(1))]
        raise ValueError("the third sample is broken")

    given = feed(FakeCuda(), ahead=4)(steps())
    next(given)
    next(given)
    with pytest.raises(ValueError, match="third"):
        next(given)


def test_an_epoch_that_is_left_early_leaves_no_thread_behind() -> None:
    import threading

    before = threading.active_count()
    given = feed(FakeCuda())(iter([[(1, torch.ones(1))] for _ in range(9)]))
    next(given)
    given.close()
    assert threading.active_count() == before


def test_the_technique_refuses_what_has_no_device_of_its_own() -> None:
    technique = get("pinned")
    source = Source(Fixed(), 8)
    from hotlap.device.accelerator import Device

    for target, words in (
        (FeedTarget(source, own_order=True, device=Device("cpu")), "no CUDA device"),
        (FeedTarget(source), "pin_memory=True"),
    ):
        with pytest.raises(Refusal, match=words):
            technique.apply(target, technique.options({}))


def rows(place: Any, dataset: Any, **options: Any) -> tuple[ResidentRows, Source]:
    source = Source(dataset, 8, seed=5)
    held = ResidentRows(dataset, options.get("max_bytes", MIB), own_order=True, place=place)
    source.wraps = [held.bind]
    return held, source


@pytest.mark.parametrize("place", [HostPlace, lambda: DevicePlace(FakeCuda())])
def test_rows_give_the_same_batches_wherever_they_are(place: Any) -> None:
    expected = [repr(step) for step in epochs(Source(Fixed(), 8, seed=5), 4)]
    held, source = rows(place(), Fixed())
    assert [repr(step) for step in epochs(source, 4)] == expected
    assert held.served == 9
    # Entering an epoch in the middle cuts its order elsewhere.
    again = [repr(step) for step in source.epoch(2, first=1)]
    assert again == expected[7:9]


def test_an_epochs_order_goes_over_the_bus_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    plain = FakeCuda.send

    def seen(device: FakeCuda, tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.numel())
        return plain(device, tensor)

    data = TensorDataset(torch.arange(64.0))
    held, source = rows(DevicePlace(FakeCuda()), data)
    epochs(source, 1)
    next(iter(source.epoch(1)))
    monkeypatch.setattr(FakeCuda, "send", seen)
    assert len(list(source.epoch(2))) == 8
    # And those of the samples that are read again, to see whether they are still the same.
    assert moved.count(64) == 1 and max(moved) == 64 and len(moved) == 2
    assert held.served == 9


def test_samples_are_read_back_beside_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[Any] = []
    plain = FakeCuda.copy

    def seen(device: FakeCuda, target: Any, source: Any, **options: Any) -> None:
        streams.append(device.stream)
        plain(device, target, source, **options)

    monkeypatch.setattr(FakeCuda, "copy", seen)
    device = FakeCuda()
    place = DevicePlace(device)
    given = torch.arange(12.0).reshape(6, 2)
    held = place.empty((6, 2), given)
    place.keep(held, torch.arange(6), given)
    index = torch.tensor([4, 1])
    for _ in range(2):
        assert torch.equal(place.read_back(held, index), given[index])
    # On one stream of its own, which nothing else is queued on.
    assert len(streams) == 2 and streams[0] is streams[1] is not None
    assert "synchronize" not in device.calls


def test_a_device_holds_what_its_memory_allows_whatever_the_hosts_limit_is() -> None:
    device = FakeCuda()
    held, source = rows(DevicePlace(device, HostPlace()), Fixed(), max_bytes=1)
    epochs(source)
    assert (held.refused, held.place.name) == (None, "the memory of cpu")
    # A quarter of all, and half of what other processes have left: the same in every arm of a race
    # as long as that is enough.
    device.total, device.free = 80 * MIB, 50 * MIB
    assert DevicePlace(device).free_bytes() == 20 * MIB
    device.free = 30 * MIB
    assert DevicePlace(device).free_bytes() == 15 * MIB


def test_rows_that_do_not_fit_go_elsewhere_or_are_refused() -> None:
    device = FakeCuda()
    device.free = 64
    held, source = rows(DevicePlace(device, HostPlace()), Fixed())
    epochs(source)
    assert held.refused is None
    assert held.place.name == "the host's memory"
    held, source = rows(DevicePlace(device), Fixed())
    epochs(source)
    assert "of the memory of cpu" in str(held.refused)


@pytest.mark.parametrize(
    ("stages", "where", "name"),
    [
        ({}, "auto", "the memory of cpu"),
        ({"transform": lambda sample: sample}, "auto", "the host's memory"),
        ({"batch_transform": lambda batch, draws: batch}, "auto", "the host's memory"),
        ({"transform": lambda sample: sample}, "host", "the host's memory"),
    ],
    ids=["none", "of samples", "of batches", "asked for the host's"],
)
def test_transforms_get_samples_in_the_hosts_memory(
    stages: dict[str, Any], where: str, name: str
) -> None:
    target = FeedTarget(Source(Fixed(), 8, **stages), own_order=True, device=FakeCuda())
    technique = get("resident")
    technique.apply(target, technique.options({"where": where}))
    assert target.notes["resident"].place.name == name
    if stages:
        with pytest.raises(Refusal, match="has a `transform` or `batch_transform`"):
            technique.apply(target, technique.options({"where": "device"}))
