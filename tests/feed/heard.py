"""A DataLoader whose iterators a plan hears of, without a script that is attached."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader

from hotlap.attach.apply import PlanInProcess


class Heard(DataLoader[Any]):
    """Tells a plan of its iterators, as the seams do."""

    plan: PlanInProcess
    with_workers: Sequence[bool] = ()
    """Of each iterator, whether it had worker processes."""

    def _get_iterator(self) -> Any:
        make = self.plan.iterator_wanted(self)
        original = super()._get_iterator
        iterator = original() if make is None else make(self, original)
        self.plan.iterator_made(self, iterator)
        self.with_workers = [*self.with_workers, hasattr(iterator, "_workers")]
        return iterator
