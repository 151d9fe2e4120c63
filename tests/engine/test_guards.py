"""What would go wrong quietly is said, before the run or as soon as it shows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, default_collate

import hotlap
from hotlap.engine.checks.mean import check_mean
from hotlap.errors import RunError, UsageError

F = nn.functional
CLASSES = 10


def network() -> nn.Module:
    layer = nn.Linear(16, CLASSES)
    with torch.no_grad():
        # As new models are: every sample costs about the same, whatever its label.
        layer.weight.mul_(0.05)
    return layer


def data(ignored: float = 0.0) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (64,), generator=generator)
    labels[torch.rand(64, generator=generator) < ignored] = -100
    return TensorDataset(torch.randn(64, 16, generator=generator), labels)


def mean(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1])


def weighted(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1], weight=torch.linspace(0.1, 5, CLASSES))


def summed(model: Any, batch: Any) -> Any:
    return model(batch[0]).square().sum() * 1e-4


def counted(model: Any, batch: Any) -> Any:
    total = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    return total, (batch[1] >= 0).sum()


def task(loss: Any = mean, ignored: float = 0.0, **given: Any) -> hotlap.Task:
    usual = {
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "batch_size": 16,
        "accumulate": 4,
        "epochs": 2,
    }
    usual |= {"model": network, "data": data(ignored)}
    return hotlap.Task(loss=loss, **(usual | given))


@pytest.mark.parametrize(("loss", "ignored"), [(mean, 0.6), (weighted, 0.0), (summed, 0.0)])
@pytest.mark.parametrize("plan", [{}, {"autocast": {}}, {"master_weights": {}}])
def test_what_is_no_mean_is_refused_on_a_model_that_is_new(
    loss: Any, ignored: float, plan: Any
) -> None:
    with pytest.raises(UsageError, match="not a mean over the batch's samples"):
        hotlap.train(task(loss, ignored), hotlap.Plan(plan))
    # In one piece it means what it says.
    hotlap.train(task(loss, ignored, batch_size=64, accumulate=1), hotlap.Plan(plan))


@pytest.mark.parametrize(("loss", "ignored"), [(mean, 0.0), (counted, 0.6)])
@pytest.mark.parametrize("plan", [{}, {"autocast": {}}, {"master_weights": {}}])
def test_means_and_sums_with_a_count_are_taken(loss: Any, ignored: float, plan: Any) -> None:
    assert hotlap.train(task(loss, ignored), hotlap.Plan(plan)).skipped_steps == 0


def test_of_a_loss_that_draws_nobody_can_tell_and_it_is_taken() -> None:
    def noisy(model: Any, batch: Any) -> Any:
        return mean(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))

    assert hotlap.train(task(noisy)).skipped_steps == 0


FP16 = hotlap.Plan({"autocast": {"dtype": "fp16"}})


@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_a_scale_that_overflows_at_first_hides_no_loss_that_is_no_mean(factor: float) -> None:
    def scaled(loss: Any) -> Any:
        return lambda model, batch: loss(model, batch) * factor

    # Whatever was left out, the scale has come down and the run has learned.
    assert hotlap.train(task(scaled(mean), epochs=16), FP16).skipped_steps < 16
    with pytest.raises(UsageError, match="not a mean over the batch's samples"):
        hotlap.train(task(scaled(weighted)), FP16)


def test_what_no_gradient_shows_the_next_step_shows() -> None:
    def broken_at_first(model: Any, batch: Any) -> Any:
        return weighted(model, batch) * (1.0 if taken else float("nan"))

    taken: list[bool] = []
    with pytest.raises(UsageError, match="not a mean over the batch's samples"):
        for step in hotlap.steps(task(broken_at_first, accumulate=2)):
            taken.append(step.is_taken)
    assert taken == [False]


class Auxiliary(nn.Linear):
    """Gives more in training than in evaluation mode, as models with auxiliary heads do."""

    def __init__(self) -> None:
        super().__init__(16, CLASSES)

    def forward(self, values: torch.Tensor) -> Any:
        found = super().forward(values)
        return {"out": found, "aux": found * 0.5} if self.training else found


def of_both(model: Any, batch: Any) -> Any:
    found = model(batch[0])
    return F.cross_entropy(found["out"], batch[1]) + F.cross_entropy(found["aux"], batch[1])


def test_a_loss_that_needs_training_mode_is_not_checked_and_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "hotlap")
    assert hotlap.train(task(of_both, model=Auxiliary)).steps == 2
    told = [each for each in caplog.messages if "is a mean is not checked" in each]
    assert len(told) == 1 and "in evaluation mode it raised IndexError" in told[0]

    def broken(model: Any, batch: Any) -> Any:
        raise KeyError("what is wrong everywhere is still raised")

    with pytest.raises(KeyError, match="wrong everywhere"):
        hotlap.train(task(broken))


class Recomputed(nn.Module):
    """Its graph gives no gradients alone, only by a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), network()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: Any = checkpoint(self.head, self.first(values), use_reentrant=True)
        return found


class WithoutGraph(nn.Module):
    """Has no graph in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.head = network()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.training):
            return self.head(values)


@pytest.mark.parametrize(
    ("model", "words"), [(Recomputed, "incompatible with .grad()"), (WithoutGraph, "require grad")]
)
def test_a_model_that_gives_no_gradient_in_evaluation_mode_is_not_checked(
    model: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hotlap")
    assert hotlap.train(task(model=model)).steps == 2
    told = [each for each in caplog.messages if "is a mean is not checked" in each]
    assert len(told) == 1 and words in told[0]


def test_a_loss_without_a_graph_is_still_refused_by_its_step() -> None:
    with pytest.raises(UsageError, match="does not depend on any parameter"):
        hotlap.train(task(lambda model, batch: mean(model, batch).detach()))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RunError("a rank is gone")])
def test_what_does_not_come_from_the_mode_is_raised_by_the_check(error: Exception) -> None:
    def forward(batch: Any) -> Any:
        raise error

    layer = network()
    with pytest.raises(type(error)):
        check_mean(
            layer, forward, torch.ones(4, 16), 4, parameters=[*layer.parameters()], is_narrow=False
        )


def test_a_batch_that_holds_one_number_for_all_samples_is_not_checked() -> None:
    def collate(samples: Any) -> Any:
        return [*default_collate(samples), torch.tensor(0.5)]

    def scaled(model: Any, batch: Any) -> Any:
        return mean(model, batch) * batch[2]

    assert hotlap.train(task(scaled, collate=collate)).steps == 2


def test_a_run_in_which_nothing_is_learned_ends_with_an_error() -> None:
    with pytest.raises(RunError, match="all 1 updates were skipped"):
        hotlap.train(task(lambda model, batch: mean(model, batch) * float("nan")))


def test_the_mean_loss_is_that_of_the_updates_that_were_taken() -> None:
    steps = []

    def broken(model: Any, batch: Any) -> Any:
        steps.append(None)
        return mean(model, batch) * (float("nan") if len(steps) % 2 else 1.0)

    still = {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.0)}
    options = {"batch_size": 16, "accumulate": 1, "epochs": 1, "shuffle": False, **still}
    done = hotlap.train(task(broken, **options))
    assert done.epochs[0].skipped_steps == 2
    whole = hotlap.train(task(**options)).epochs[0].loss
    assert done.epochs[0].loss == pytest.approx(whole, rel=0.05)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, batch: None, "not a tensor"),
        (lambda model, batch: 1.0, "not a tensor"),
        (lambda model, batch: model(batch[0]), "more than one number"),
        (lambda model, batch: mean(model, batch).detach(), "does not depend on any parameter"),
        (lambda model, batch: (mean(model, batch), 1, 2), "more than two"),
    ],
)
def test_what_is_no_loss_is_told(loss: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        hotlap.train(task(loss, batch_size=64, accumulate=1))


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("loss", [mean, counted])
def test_a_loss_of_one_number_in_a_row_is_that_number(loss: Any, accumulate: int) -> None:
    def in_a_row(model: Any, batch: Any) -> Any:
        value = loss(model, batch)
        return tuple(each[None] for each in value) if loss is counted else value[None]

    given = {"accumulate": accumulate, "batch_size": 64 // accumulate, "held_out": data()}
    expected, found = (hotlap.train(task(each, **given)) for each in (loss, in_a_row))
    for one, other in zip(expected.epochs, found.epochs, strict=True):
        assert (one.loss, one.held_out) == (other.loss, other.held_out)
    (step, *_) = hotlap.steps(task(in_a_row, **given))
    assert step.loss.shape == ()


def test_a_folder_that_holds_a_run_is_not_written_into(tmp_path: Path) -> None:
    hotlap.train(task(), run_dir=tmp_path)
    before = sorted(path.name for path in (tmp_path / "ckpt").iterdir())
    with pytest.raises(UsageError, match="already holds a run"):
        hotlap.train(task(epochs=1), run_dir=tmp_path)
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == before
    hotlap.train(task(epochs=3), run_dir=tmp_path, resume="auto")


def test_a_wrong_task_leaves_no_folder_behind(tmp_path: Path) -> None:
    broken = task(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=-1))
    with pytest.raises(UsageError, match="learning rate"):
        hotlap.train(broken, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_hold_a_run_is_told_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    seen: list[Any] = []
    with pytest.raises(UsageError, match="checkpoints cannot be saved in"):
        hotlap.train(task(), run_dir=tmp_path / "file", progress=seen.append)
    assert not seen


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schedule": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o)}, "whose metric"),
        (
            {
                "schedule": lambda o: torch.optim.lr_scheduler.StepLR(
                    torch.optim.SGD(network().parameters(), lr=1.0), 1
                )
            },
            "another optimizer",
        ),
        ({"optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=-1)}, "learning rate"),
        ({"optimizer": lambda m: torch.optim.LBFGS(m.parameters())}, "LBFGS.*needs.*`closure`"),
    ],
)
def test_what_the_task_makes_must_fit(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        hotlap.train(task(**given))


@pytest.mark.parametrize("name", ["data", "held_out"])
def test_a_loader_is_not_taken_for_its_data_set(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} is a DataLoader.*{name}=loader\.dataset"):
        task(**{name: DataLoader(data(), batch_size=8)})


@pytest.mark.parametrize("given", [{"metrics": {"error": counted}}, {"evaluate": counted}])
def test_measures_need_samples_to_measure_on(given: Any) -> None:
    with pytest.raises(UsageError, match=r"without held_out.*held_out=DATASET"):
        task(**given)
    task(held_out=data(), **given)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True])
def test_seeds_are_whole_numbers_that_generators_take(seed: Any) -> None:
    with pytest.raises(UsageError, match="seed="):
        task(seed=seed)


def test_a_loop_of_ones_own_ends_with_the_trained_weights_in_their_own_format() -> None:
    plan = hotlap.Plan({"master_weights": {}})
    model: Any = None
    for step in hotlap.steps(task(), plan):
        model = step.model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    expected = hotlap.train(task(), plan).model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


class Shared(nn.Module):
    """Two of its parameters have one gradient, one has a gradient that is one number expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = network()
        self.left, self.right, self.alone = (nn.Parameter(torch.zeros(16)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * (1 + self.left + self.right))


def with_penalty(model: Any, batch: Any) -> Any:
    return mean(model, batch) + model.alone.sum()


def test_a_mean_is_one_where_parameters_share_a_gradient() -> None:
    hotlap.train(task(with_penalty, model=Shared, epochs=1), device="cpu")
    with pytest.raises(UsageError, match="not a mean over the batch's samples"):
        hotlap.train(task(summed, model=Shared, epochs=1), device="cpu")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": network()}, "is already a model.*model=lambda"),
        ({"loss": lambda model: model}, r"loss cannot be called with \(model, batch\)"),
        ({"optimizer": lambda: None}, "optimizer cannot be called"),
        ({"held_out": data(), "metrics": {"loss": mean}}, "an entry 'loss'"),
        (
            {"held_out": data(), "metrics": {"right": lambda model: 1}},
            r"metrics\['right'\] cannot be called",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_task(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        task(**given)


def elsewhere(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(network().parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": elsewhere}, "no trainable parameter of the model"),
        ({"loss": lambda m, b: (torch.zeros(1, requires_grad=True) * 2).sum()}, "no gradient"),
        ({"loss": lambda m, b: mean(m, b) * 1j}, "a complex number"),
        ({"loss": lambda m, b: (summed(m, b), torch.ones(3))}, r"a count of shape \(3,\)"),
        ({"loss": lambda m, b: (summed(m, b), -3)}, "negative count reverses"),
        ({"loss": lambda m, b: (summed(m, b), 0)}, "return a count above 0"),
        ({"transform": lambda sample, generator: None}, "transform returned None for sample"),
    ],
)
def test_what_would_learn_nothing_is_refused(given: Any, words: str) -> None:
    with pytest.raises((UsageError, RunError), match=words):
        hotlap.train(task(**{"accumulate": 1, **given}))


def test_others_may_be_trained_where_the_model_is_frozen() -> None:
    shift = nn.Parameter(torch.zeros(CLASSES))

    def shifted(model: Any, batch: Any) -> Any:
        return F.cross_entropy(model(batch[0]) + shift, batch[1])

    done = hotlap.train(
        task(
            shifted,
            model=lambda: network().requires_grad_(False),
            optimizer=lambda model: torch.optim.SGD([shift], lr=0.1),
        )
    )
    assert done.steps == 2 and shift.abs().sum() > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metrics": {"right": lambda m, b: m(b[0]).argmax(1) == b[1]}}, r"'right' is.*\(16,\)"),
        (
            {"metrics": {"right": lambda m, b: (1, 2, 3)}},
            r"'right' is a tuple of 3, with elements of type int, of type int",
        ),
        ({"metrics": {"right": lambda m, b: None}}, "'right' is of type NoneType"),
        ({"metrics": {"right": lambda m, b: 1 / 0}}, "division by zero"),
        ({"evaluate": lambda m, b: None}, "Expected: a dict"),
        (
            {"held_out": TensorDataset(torch.ones(4, 16), torch.full((4,), 99))},
            "label 99 is out of range",
        ),
    ],
)
def test_a_measure_that_fails_shows_before_the_first_step(
    given: Any, words: str, tmp_path: Path
) -> None:
    taken: list[int] = []

    def loss(model: Any, batch: Any) -> Any:
        taken.append(torch.is_grad_enabled())
        return mean(model, batch)

    with pytest.raises((UsageError, ZeroDivisionError), match=words):
        hotlap.train(task(loss, **{"held_out": data(), **given}), run_dir=tmp_path)
    assert not any(taken) and not (tmp_path / "ckpt").exists()


class Late(TensorDataset):
    """Its last sample cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 63:
            raise OSError("the file is gone")
        return super().__getitem__(index)


def test_what_was_trained_outlives_an_evaluation_that_fails(tmp_path: Path) -> None:
    held_out = Late(*data().tensors)
    with pytest.raises(OSError, match="the file is gone") as caught:
        hotlap.train(task(held_out=held_out), run_dir=tmp_path)
    assert any("the trained state is saved in" in note for note in caught.value.__notes__)
    again = hotlap.train(task(held_out=data()), run_dir=tmp_path, resume="auto")
    whole = hotlap.train(task(held_out=data()))
    assert torch.equal(again.model.weight, whole.model.weight)


def narrow_inside(model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(batch[0])
    return F.cross_entropy(scores.float(), batch[1])


def test_rounding_of_a_loss_that_casts_itself_is_no_other_mean() -> None:
    assert hotlap.train(task(narrow_inside)).steps == 2

    def narrow(model: Any, batch: Any) -> Any:
        return F.cross_entropy(model(batch[0].bfloat16()).float(), batch[1])

    assert hotlap.train(task(narrow, model=lambda: network().bfloat16())).steps == 2

    def narrow_and_weighted(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return weighted(model, batch)

    with pytest.raises(UsageError, match="not a mean over the batch's samples"):
        hotlap.train(task(narrow_and_weighted))


def test_a_plateau_follows_what_evaluate_gives_or_is_refused() -> None:
    given = {
        "held_out": data(),
        "evaluate": lambda m, b: {"right": (1, 1)},
        "schedule": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        "schedule_per": "epoch",
    }
    with pytest.raises(UsageError, match=r"a `loss` from evaluate\(\)"):
        hotlap.train(task(**given))
