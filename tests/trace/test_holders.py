"""What holds memory although no variable of a running function or module leads to it directly."""

import functools
import inspect
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from hotlap.trace import frames
from hotlap.trace.growing import GrowthFinder
from hotlap.trace.holders import find_held
from hotlap.trace.memory_ledger import MemoryLedger
from hotlap.trace.memory_schema import Growth
from hotlap.trace.object_sizes import count_filled, newest_of, sizes_of

HERE = __file__


def make_closure() -> Callable[[Any], None]:
    kept: list[Any] = []

    def log(value: Any) -> None:
        kept.append(value)

    return log


def make_default() -> Callable[[Any], None]:
    def log(value: Any, kept: list[Any] = []) -> None:  # noqa: B006
        kept.append(value)

    return log


def make_keyword() -> Callable[[Any], None]:
    def log(value: Any, *, kept: list[Any] = []) -> None:  # noqa: B006
        kept.append(value)

    return log


def make_partial() -> Callable[[Any], None]:
    def log(kept: list[Any], value: Any) -> None:
        kept.append(value)

    return functools.partial(log, [])


def make_decorated() -> Callable[[Any], None]:
    log = make_closure()

    @functools.wraps(log)
    def wrapper(value: Any) -> None:
        log(value)

    return wrapper


class Slots:
    __slots__ = ("kept", "unset")

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, value: Any) -> None:
        self.kept.append(value)


class Decoy:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, value: Any) -> None:
        self.kept.append(0)


class Shared:
    kept: list[Any] = []  # noqa: RUF012

    @classmethod
    def log(cls, value: Any) -> None:
        cls.kept.append(value)


class Method:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def log(self, value: Any) -> None:
        self.kept.append(value)


def make_cached() -> Callable[[Any], Any]:
    @functools.cache
    def encode(value: Any) -> Any:
        return value

    return encode


CASES = {
    # Name: (makes a function that keeps what it is given, name of the holder).
    "a closure": (make_closure, "kept"),
    "a default argument": (make_default, "kept"),
    "a keyword's default": (make_keyword, "kept"),
    "functools.partial": (make_partial, "kept"),
    "a decorated function": (make_decorated, "kept"),
    "slots": (Slots, "log.kept"),
    "a class": (lambda: Shared.log, "Shared.kept"),
    "an object whose method is known": (lambda: Method().log, "Method.kept"),
    "a function's cache": (make_cached, "log"),
}


QUICK = ("a closure", "slots", "a class")
"""In the fast suite: each wants seconds in a process that holds many objects."""


def slow_unless_quick(name: str) -> Any:
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture
def growth_of(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Callable[[int], Any], Any], list[Growth]]]:
    """Give what grows in what an object leads to, while a function is called in each step."""

    # Looking at all objects of this process takes long, and so do the files of all other tests.
    monkeypatch.setattr("hotlap.trace.holders._hidden_roots", tuple)
    monkeypatch.setattr("hotlap.trace.holders.is_users", lambda file: file == HERE)

    def find(step: Callable[[int], Any], root: Any) -> list[Growth]:
        ledger = MemoryLedger()
        finder, found = GrowthFinder(ledger, 10), ()
        ledger.begin()
        try:
            for number in range(6):
                step(number)
                ledger.end_step()
                found = finder.find(find_held(None, [("log", HERE, root)]), None)
        finally:
            ledger.end()
        return [each for each in found if each.items]

    yield find
    Shared.kept.clear()


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return next(first + n for n, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("name", [slow_unless_quick(name) for name in CASES])
def test_what_a_function_keeps_is_found_with_its_holder(name: str, growth_of: Any) -> None:
    make, holder = CASES[name]
    log = make()
    (growth,) = growth_of(lambda _: log(torch.ones(64)), log)
    assert growth.name == holder
    assert len(growth.blocks) == 5


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (make_closure, "kept.append"),
        pytest.param(make_default, "kept.append", marks=pytest.mark.slow),
        pytest.param(Slots, "kept.append", marks=pytest.mark.slow),
    ],
)
def test_the_line_is_that_of_the_holders_own_code(make: Any, text: str, growth_of: Any) -> None:
    # Earlier lines of this file add to others of the same name.
    log = make()
    (growth,) = growth_of(lambda _: log(torch.ones(64)), log)
    assert growth.where.endswith(f"test_holders.py:{line_of(make, text)}")
    decoy = Decoy()
    (growth,) = growth_of(decoy, decoy)
    assert growth.where.endswith(f"test_holders.py:{line_of(Decoy, text)}")


@pytest.mark.slow
def test_a_functions_cache_is_named_by_its_function_and_bounded_by_its_length(
    growth_of: Any,
) -> None:
    encode = make_cached()
    (growth,) = growth_of(lambda _: encode(torch.ones(64)), encode)
    assert (growth.kind, growth.maxlen) == ("lru_cache", None)
    assert growth.where.endswith(f"test_holders.py:{line_of(make_cached, '@functools.cache')}")
    short = functools.lru_cache(maxsize=50)(encode.__wrapped__)  # pyright: ignore
    (growth,) = growth_of(lambda _: short(torch.ones(64)), short)
    assert growth.maxlen == 50
    assert len(growth.blocks) == 5


def test_what_a_generator_keeps_is_found_while_it_is_alive() -> None:
    def batches() -> Generator[int, None, None]:
        kept_by_generator = [1, 2]
        yield from kept_by_generator
        yield 3

    alive = batches()
    next(alive)
    (held,) = [each for each in find_held(None) if each.name == "kept_by_generator"]
    assert held.owner == (HERE, alive.gi_code.co_qualname)
    alive.close()
    assert "kept_by_generator" not in {each.name for each in find_held(None)}


class Cached(Dataset[torch.Tensor]):
    def __init__(self, store: Any) -> None:
        self.store = store

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self.store[index] = torch.ones(64)
        return self.store[index]


class Plain:
    """A dataset that is none of torch's."""

    def __init__(self) -> None:
        self.store: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self.store[index] = torch.ones(64)
        return self.store[index]


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: Cached({}), lambda: Cached([None] * 20), Plain])
def test_the_cache_of_a_dataset_is_known_as_one(make: Any, growth_of: Any) -> None:
    data = make()
    (growth,) = growth_of(lambda number: data[number + 3], data)
    assert (growth.name, growth.samples, growth.items) == ("log.store", 20, 1.0)
    assert len(growth.blocks) == 5


@pytest.mark.slow
def test_what_a_dataset_keeps_beyond_its_samples_is_no_cache(growth_of: Any) -> None:
    keys = Cached({})
    (growth,) = growth_of(lambda n: [keys[10 * n + k] for k in range(10)], keys)
    assert growth.samples is None
    # A log, not one place for each sample.
    log: list[int] = []
    (growth,) = growth_of(log.append, Cached(log))
    assert growth.samples is None


def test_a_dataset_that_only_a_library_holds_is_found() -> None:
    alone = Cached({0: torch.ones(1)})
    names = {each.name for each in find_held(None) if each.value is alone.store}
    assert names == {"Cached.store"}


def test_places_that_hold_nothing_do_not_count() -> None:
    places: list[Any] = [None] * 9
    places[4] = places[2] = "x"
    assert (count_filled(places), newest_of(places, 1)) == (2, ["x"])
    assert (count_filled([1, 2]), newest_of([1, 2, 3], 2)) == (2, [3, 2])
    assert count_filled({1: None}) == 1


def test_slots_and_links_of_a_cache_are_part_of_a_size() -> None:
    log = Slots()
    log(torch.ones(3))
    seen: list[torch.Tensor] = []
    assert sizes_of(log, seen.append) > 0 and len(seen) == 1


def test_reading_the_variables_of_a_function_keeps_none_of_them() -> None:
    def train() -> tuple[Any, Any]:
        output = torch.ones(3)
        known = dict(frames.variables_of(inspect.currentframe()))  # pyright: ignore
        assert known.pop("output") is output
        gone = weakref.ref(output)
        output = None
        return gone(), output

    assert train() == (None, None)


def test_what_a_script_has_of_its_variables_stays() -> None:
    def train() -> dict[str, Any]:
        rate = 3
        settings = locals()
        frames.variables_of(inspect.currentframe())  # pyright: ignore
        return {**settings, "rate": settings["rate"], "own": rate}

    assert train()["rate"] == 3


def test_a_proxy_is_not_asked_for_its_class() -> None:
    class Proxy:
        @property
        def __class__(self) -> Any:
            raise AssertionError

    proxies = [Proxy()]
    assert any(each.value is proxies for each in find_held(None, [("proxies", HERE, proxies)]))
