"""Prints a verdict with its checks in a terminal; the text of `hotlap explain verdicts`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from hotlap.lab.verdict import Verdict
from hotlap.report.printable import printable

VERDICTS = """A verdict says whether a run learns the same under a plan as without it.

`exact`: batches, losses, weights, buffers and evaluation outputs were bit-equal to the plain run's
after every step of the horizon.

`rounding`: not bit-equal, and every check below passed: the same mathematics in the same dtypes,
summed in another order.

`statistical`: narrower dtypes or other random numbers. Gradients are right on average, and over
several seeds the loss is not larger than the plain run's, within a margin that was set before.

`unproven`: a check could not be made. `changed`: a check failed. Plan files with either verdict are
not used.

Checked at every step:

batches: the batches that reached the model are bit-equal to the plain run's.

hyperparameters: every hyperparameter is the plain run's, and each update changes the weights. Where
a held-out loss may have decided, of weights that are rounded in another way, when the learning rate
falls or the run ends, the check is not made.

start: parameters and buffers start bit-equal to the plain run's, and parameters require gradients
where those do. Modules that no optimizer trains, a teacher or a target network, are compared when
they are first called, if that is before the first update; the optimizers' state, before their first
updates.

custody: each update starts from the weights and the optimizer state that the previous one left.
What the script itself changes in between, it must change at the same updates, and each weight by
about as much (within a factor of 1.5 on average); weights that it leaves alone stay. Buffers,
frozen parameters and modules that no optimizer trains change between two steps only where they do
in the plain run, and no step changes others of them than its steps do. What is evaluated or saved
has the weights that the last update left, unless the plain run has others there, too. An optimizer
that replaces an earlier one begins with a state only where it does so in the plain run.

delivery: each update gets the gradients that backward computed since the last one, on sampled
elements. If the plain run clips or scales them in between, they must follow from the same clipping
or factor. Any other change of the script's own cannot be checked at every step.

participation: the same parameters have a gradient.

random: the RNG states are the plain run's. If a plan uses other random numbers, its verdict is
`statistical` at best, and it must draw the same count of them at all updates at which the plain run
does so: dropout that is switched off in some steps is `changed`.

updates: each update is repeated in float64 on sampled elements, from the gradient and the state
that the optimizer got. Learning rate and weight decay are estimated from all updates. Optimizers
that do not treat each element by itself are checked at sampled steps only.

averages: copies of the model or of a part of it, as for an exponential moving average, change as in
the plain run: on sampled elements, and in every bit where the weights have the plain run's bits.
So do their buffers, unless their own forwards change them. What exists before the first update
starts as in the plain run.

saves: what the script saves with `torch.save` holds as many of the trained parameters, bit by bit,
as in the plain run. If all weights are bit-equal, so are all saved tensors, names and numbers; how
objects are pickled is not looked at.

Checked at sampled steps, which are sampled again for each proof, and at steps whose gradient
suddenly differs from the plain run's:

gradient: with the same weights, batch and random numbers, against a repetition in float64; also for
each tensor by itself. Its limit is a multiple of the plain step's own error, and counts for the
median of the steps; one step must not be off by a quarter, nor two by 3%. The batch is supplied
through the script's DataLoader. Without one, or if the step depends on the script's own counters,
the script runs to the step by itself, and starts it from the captured weights.

update: the whole update, and the optimizer's state after it, with the plain run's hyperparameters.

buffers: how the step changes buffers, such as batch norm's statistics.

evaluation: the model is called after the same updates, and what a loader hands out reaches it as in
the plain run. Other inputs may be computed from the weights; how many differ is said. Three
forwards are repeated with their weights. In training mode, where they are mostly part of a step,
forwards without gradients are compared as long as the weights are bit-equal.

losses: the mean of the second half of the losses is the plain run's, within its noise; in a run
of fewer than 8 updates each one is, within 1e-4 of itself.

late, only for techniques that do nothing in the first steps of a run (`flush_denormal`), where the
horizon ends before they act: six steps of the process that was raced, thousands of steps old, are
kept under the plan and repeated in float64. The steps in between are not checked.

seeds, only for `statistical`: plain run and plan are trained from two more seeds, and the plan's
mean loss may be larger by at most 1 % of the initial loss. If a script sets its seeds, each of them
is shifted.

A verdict names its horizon in steps, which parts of the run were within it, the smallest change of
each kind that would have been detected on this run, and what was not checked."""


def page_of_verdict(verdict: Verdict, console: Console) -> None:
    """Print a verdict with each of its checks, what it covers and what it says nothing of."""
    words = "" if verdict.checks else f" {printable(verdict.evidence)}."
    console.print(f"\nVerdict: {verdict.tier} over {verdict.horizon_steps} steps.{words}")
    for check in verdict.checks:
        state = check.state.replace("_", " ")
        console.print(f"  {check.name} {state}: {printable(check.evidence)}")
    console.print(f"Covers: {', '.join(_covered(verdict.covers))}.")
    if verdict.limits:
        console.print("The smallest changes that would have been detected:")
        for limit in verdict.limits:
            console.print(f"  {limit}")
    console.print("Not checked:")
    for line in verdict.not_checked:
        console.print(f"  {printable(line)}")
    console.print("`hotlap explain verdicts` says what each check compares.")


def _singular(words: str) -> str:
    first, space, rest = words.partition(" ")
    return ("copy" if first == "copies" else first.removesuffix("s")) + space + rest


def _covered(covers: Mapping[str, Any]) -> list[str]:
    """Return in words what was within the horizon, see `coverage.covers`."""
    words = {
        "epochs": "epochs begun",
        "evaluations": "forwards in evaluation",
        "averages": "copies of the model",
        "saved": "saves",
    }
    found = []
    for name, value in covers.items():
        if isinstance(value, bool):
            found.append(f"{'a' if value else 'no'} change of the {name}")
        elif value is not None:
            counted = words.get(name, name)
            found.append(f"{value} {_singular(counted) if value == 1 else counted}")
    return found
