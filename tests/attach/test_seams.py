"""What a listener hears of a training loop, in which order, and that it can be made deaf."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.attach import closures
from hotlap.techniques import registry
from hotlap.techniques.record import OptimizerTarget

HEAR = """
import torch
from hotlap.attach import seams
from torch.utils.data import DataLoader, TensorDataset


class Ear(seams.Listener):
    wants_phases = True

    def __init__(self):
        self.heard = []

    def root_wanted(self, module):
        return True


def hears(name):
    def method(self, *args):
        self.heard.append(name)
        if name == "forward_begins":
            keywords.append(dict(seams.State.keywords))
            return args[1]
        if name == "batch_ends":
            return args[1]

    return method


keywords = []
NAMES = [
    "iterator_wanted", "iterator_made", "batch_begins", "batch_ends", "forward_begins",
    "forward_ends", "backward_begins", "backward_ends", "zeroing_begins", "zeroing_ends",
    "step_begins", "step_ends", "step_failed",
]
for name in NAMES:
    setattr(Ear, name, hears(name))
ear = Ear()
seams.install(ear)


class Outer(torch.optim.SGD):
    # Calls the inherited step, which is wrapped as well.
    def step(self, closure=None):
        if BROKEN:
            raise ValueError("mine")
        return super().step(closure)


BROKEN = False
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
optimizer = Outer(model.parameters(), lr=0.1)
assert seams.known_optimizers() == [optimizer]


def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()


for (batch,) in DataLoader(TensorDataset(torch.ones(2, 2)), batch_size=2):
    step(batch)
print(*ear.heard)
ear.heard.clear()
with torch.no_grad():
    model(batch)
model.eval()
model(batch)
model.train()
print(*ear.heard)
BROKEN = True
try:
    optimizer.step()
except ValueError:
    pass
print(*ear.heard)
ear.heard.clear()
BROKEN = False
seams.stop_looking_for_roots()
step(batch)
print(*ear.heard)
ear.heard.clear()
optimizer.zero_grad()
model(input=batch)
assert list(keywords[-1]) == ["input"] and keywords[-2] == {}, keywords
# Nothing of a batch is kept.
assert seams.State.keywords == {}
ear.heard.clear()
seams.go_inert()
step(batch)
print(*ear.heard)
"""

STEP = "zeroing_begins zeroing_ends forward_begins forward_ends backward_begins backward_ends"


def test_a_listener_hears_what_happens_in_its_order() -> None:
    done = subprocess.run([sys.executable, "-c", HEAR], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    whole, evaluated, failed, again, inert = done.stdout.split("\n")[:5]
    step = f"{STEP} step_begins step_ends"
    assert whole == (
        f"iterator_wanted iterator_made batch_begins batch_ends {step} batch_begins batch_ends"
    )
    assert evaluated == ""
    assert failed == "step_begins step_failed"
    # The root is still heard of once nobody looks for others.
    assert again == step
    assert inert == ""


MARK = """
import sys, torch
from hotlap.attach import seams
from hotlap.trace.clock import PhaseClock
from hotlap.trace.events import Events
from hotlap.trace.schema import PHASES


class Ear(seams.Listener):
    wants_phases = True
    clock, events = PhaseClock(), Events()

    def root_wanted(self, module):
        return True


ear = Ear()
seams.install(ear)
model = torch.nn.Linear(2, 1)
kind = torch.optim.LBFGS if len(sys.argv) > 1 else torch.optim.SGD
optimizer = kind(model.parameters(), lr=0.1)


def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).square().sum()
    loss.backward()
    return loss


# In a backward, as where a hook takes the step of its parameter.
handle = model.weight.register_hook(lambda _: optimizer.zero_grad())
closure()
handle.remove()
optimizer.step(closure)
print(*(PHASES[phase] for phase, _ in ear.clock.marks))
print(*(event.kind for event in ear.events.as_tuple()))
print(*(event.where.rpartition(":")[2] for event in ear.events.as_tuple()))
"""


@pytest.mark.parametrize("calls_it_often", [True, False])
def test_phases_go_back_to_those_around_them(tmp_path: Path, calls_it_often: bool) -> None:
    (tmp_path / "train.py").write_text(MARK.lstrip())
    done = subprocess.run(
        [sys.executable, "train.py", *["often"] * calls_it_often],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    phases, events, lines = done.stdout.splitlines()
    alone = "optimizer other forward backward optimizer backward other"
    if calls_it_often:
        in_step = "optimizer optimizer optimizer forward backward optimizer"
        assert phases.startswith(f"other {alone} {in_step}")
        assert events.startswith("zero_grad backward zero_grad optimizer_step zero_grad backward")
        return
    # What a closure computes once comes before the update, as in a loop without one.
    first = "optimizer other forward backward other optimizer"
    assert phases == f"other {alone} {first}"
    assert events == "zero_grad backward zero_grad zero_grad backward optimizer_step"
    assert lines == "24 26 31 24 26 34"


PICKLE = """
import threading, torch, cloudpickle
from hotlap.attach import seams


class Ear(seams.Listener):
    wants_phases = True
    lock = None

    def __init__(self):
        self.lock = threading.Lock()

    def root_wanted(self, module):
        return True


class Net(torch.nn.Linear):
    def forward(self, batch):
        return super().forward(batch)


class Descent(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


seams.install(Ear())
model = Net(2, 1)
optimizer = Descent(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
again = cloudpickle.loads(cloudpickle.dumps((model, optimizer)))
print(type(again[0]).__name__, type(again[1]).__name__)
"""


def test_classes_of_a_script_can_still_be_written_by_value() -> None:
    pytest.importorskip("cloudpickle")
    ran = subprocess.run([sys.executable, "-c", PICKLE], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["Net", "Descent"], ran.stderr


FOLDS = """
import torch
from hotlap.attach import seams

heard = []


class Ear(seams.Listener):
    wants_phases = True

    def root_wanted(self, module):
        known = {id(p) for each in seams.known_optimizers() for p in each.param_groups[0]["params"]}
        return any(id(p) in known for p in module.parameters())

    def forward_begins(self, root, inputs):
        heard.append(root.out_features)
        return inputs


seams.install(Ear())
for fold in range(1, 4):
    model = torch.nn.Linear(2, fold)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        seams.stop_looking_for_roots()
print(*heard)
"""


def test_the_models_of_later_folds_are_heard() -> None:
    ran = subprocess.run([sys.executable, "-c", FOLDS], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["1", "1", "2", "2", "3", "3"], ran.stderr


EVALUATED = (
    FOLDS[: FOLDS.index("for fold")]
    + """
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(teacher(torch.ones(1, 1))).sum().backward()
        optimizer.step()
        seams.stop_looking_for_roots()
    model.eval()(torch.ones(1, 1))


teacher = torch.nn.Linear(1, 1).eval()
if TRAINED:
    model = torch.nn.Linear(1, 3).eval()
    model(torch.ones(1, 1))
    train(model.train())
else:
    train(torch.nn.Linear(1, 2).eval())
print(*heard)
"""
)


@pytest.mark.parametrize(
    ("trained", "heard"),
    [(False, ["2", "2", "2"]), (True, ["3", "3", "3"])],
)
def test_a_model_may_be_trained_in_evaluation_mode(trained: bool, heard: list[str]) -> None:
    script = f"TRAINED = {trained}\n{EVALUATED}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    # Of the second model the first forward is missed: its mode says evaluation. The last one, of
    # an evaluation, cannot be told from those before it.
    assert ran.stdout.split() == heard, ran.stderr


OTHERS = """
import threading, torch
from hotlap.attach import seams
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

heard = []


class Ear(seams.Listener):
    wants_phases = wants_others = True

    def root_wanted(self, module):
        return isinstance(module, Net)

    def other_wanted(self, module):
        return True

    def other_forward_begins(self, module, inputs):
        heard.append(module.name)
        return inputs


class Part(torch.nn.Linear):
    def __init__(self, name):
        super().__init__(2, 2)
        self.name = name


class Data(Dataset):
    normalize = Part("sample")

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.normalize(torch.ones(2)).detach()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.frozen = torch.nn.Linear(2, 2), Part("frozen")

    def forward(self, x):
        return checkpoint(lambda x: self.frozen(self.first(x)), x, use_reentrant=False)


seams.install(Ear())
net, teacher, aside = Net(), Part("teacher"), Part("thread")
for batch in DataLoader(Data()):
    with torch.no_grad():
        teacher(batch)
    other = threading.Thread(target=aside, args=(batch,))
    other.start()
    other.join()
    net(batch).sum().backward()
print(*heard)
"""


def test_what_makes_samples_or_is_computed_again_is_no_module_beside_the_training() -> None:
    ran = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["teacher", "teacher"], ran.stderr


OWN_CALL = """
import inspect
import torch
from hotlap.attach import seams


class Ear(seams.Listener):
    wants_phases = wants_evaluation = True

    def __init__(self):
        self.heard = self.evaluated = 0

    def root_wanted(self, module):
        return bool(list(module.parameters()))

    def forward_begins(self, root, inputs):
        self.heard += 1
        return inputs

    def evaluation_forward_ends(self, *told):
        self.evaluated += 1


ear = Ear()
seams.install(ear)
calls = 0


class Own(torch.nn.Linear):
    def __call__(self, batch):
        global calls
        calls += 1
        return super().__call__(batch["x"] / 2)


class Base(torch.nn.Linear):
    pass


class Derived(Base):
    pass


model, base, derived = Own(2, 1), Base(2, 1), Derived(2, 1)
optimizer = torch.optim.SGD([*model.parameters(), *base.parameters(), *derived.parameters()], 0.1)
given = torch.ones(3, 2)
expected = torch.nn.functional.linear(given / 2, model.weight, model.bias)
for number in range(1, 4):
    assert torch.equal(model({"x": given}), expected)
    assert calls == ear.heard == number, (calls, ear.heard, number)
for number in range(1, 4):
    base(given)
    derived(given)
    assert ear.heard == 3 + 2 * number, (ear.heard, number)
with torch.no_grad():
    for module, batch in ((model, {"x": given}), (base, given), (derived, given)):
        module.eval()
        module(batch)
assert ear.evaluated == 3, ear.evaluated
for method in (optimizer.zero_grad, torch.Tensor.backward, torch.optim.Optimizer.__init__):
    assert "args" not in inspect.signature(method).parameters
assert "set_to_none" in inspect.signature(optimizer.zero_grad).parameters
"""


def test_a_class_with_a_call_of_its_own_is_called_and_heard_once() -> None:
    code = [sys.executable, "-c", OWN_CALL]
    done = subprocess.run(code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_closure_runs_first_whatever_hooks_of_ours_an_optimizer_has() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen: list[str] = []

    def closure() -> torch.Tensor:
        seen.append("closure")
        loss = weight.square().sum()
        loss.backward()
        return loss

    def given(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = closures.run_first(optimizer, args, kwargs)
        assert args == () and kwargs["closure"]().item() == pytest.approx(2.0)
        return len(seen)

    assert given(closure) == 1 and given(closure=closure) == 2
    technique = registry()["optimizer"]
    technique.apply(OptimizerTarget(optimizer), technique.options({"implementation": "foreach"}))
    optimizer.step()
    assert optimizer._optimizer_step_pre_hooks
    weight.data.fill_(1.0)
    assert given(closure) == 3
    # One of the script's own may prepare what the closure computes.
    optimizer.register_step_pre_hook(lambda *_: None)
    assert closures.run_first(optimizer, (closure,), {}) == ((closure,), {})
    often = torch.optim.LBFGS([weight])
    assert closures.run_first(often, (closure,), {}) == ((closure,), {})
    assert closures.run_first(optimizer, (), {}) == ((), {}) and len(seen) == 3
