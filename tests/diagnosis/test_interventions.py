"""What a perfect remedy would save is measured by changes that are switched between steps."""

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.attach.apply import PlanInProcess
from hotlap.diagnosis.causes import INTERVENTIONS
from hotlap.plan import Plan


class Counted(Dataset[torch.Tensor]):
    reads = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return torch.tensor(float(index))


def test_one_batch_is_served_while_it_is_on_and_the_next_ones_while_it_is_off() -> None:
    plan = PlanInProcess(Plan({"replay": {}}), extra=INTERVENTIONS)
    data = Counted()
    loader = DataLoader(data, batch_size=2)
    plan.iterator_wanted(loader)
    iterator = iter(loader)
    plan.iterator_made(loader, iterator)
    served = [next(iterator).tolist(), next(iterator).tolist()]
    plan.switch("replay", on=False)
    served.append(next(iterator).tolist())
    plan.switch("replay", on=True)
    served.append(next(iterator).tolist())
    assert served == [[0, 1], [0, 1], [4, 5], [0, 1]]
    assert data.reads == 4


def test_an_update_is_withheld_while_it_is_on() -> None:
    plan = PlanInProcess(Plan({"free_step": {}}), extra=INTERVENTIONS)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    seen: list[Any] = []
    for is_on in (True, False, True):
        weight.grad = torch.ones(1)
        plan.step_begins(optimizer)
        plan.switch("free_step", on=is_on)
        optimizer.step()
        plan.step_ends()
        seen.append(weight.item())
        assert weight.grad is not None
    assert seen == [0.0, -1.0, -1.0]
