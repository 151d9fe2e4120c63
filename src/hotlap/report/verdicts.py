"""What a verdict says, and what each of its checks sees: `hotlap explain verdicts`."""

VERDICTS = """A verdict says whether a run learns the same under a plan as without it.

`exact`: batches, losses, weights, buffers and what evaluation gives were equal to the plain run's,
bit for bit, after every step of the horizon.

`rounding`: not equal in every bit, and every check below passed: the same mathematics in the same
formats, summed in another order.

`statistical`: narrower formats or other random numbers. Gradients are right in the mean, and from
several seeds the loss is no larger than the plain run's, by a margin that was set before.

`unproven`: a check could not be made. `changed`: a check failed. Neither is used unless you insist.

What is followed at every step:

fed: the batches that reached the model have the plain run's bits.

numbers: every hyperparameter is the plain run's, and each update moves the weights.

start: what is trained begins with the plain run's bits, and takes gradients where that does.

custody: each update finds weights and optimizer's state as the one before has left them. What the
script itself moves in between, it must move at the same updates.

participation: the same parameters have a gradient.

random: the random generators are where they are in the plain run. Where a plan draws other numbers
its verdict is `statistical` at best.

updates: each update is repeated in float64 on drawn elements, from the gradient and the state that
the optimizer got. Learning rate and weight decay are estimated from all of them. Optimizers that do
not treat each element by itself are checked at sampled steps only.

averages: copies of the model, as for an exponential moving average, move as in the plain run.

What is looked at in sampled steps, drawn anew for each proof, and in those whose gradient suddenly
leaves the plain run's:

gradient: from the same weights, batch and random numbers, against a repetition in float64; each
tensor by itself too. Its limit is a multiple of the error that the plain step has. The batch is
handed to the script by its DataLoader. Where none hands it out, or the step hangs on counters of
the script's own, the script comes to the step by itself, and begins it with the captured weights.

update: all of the update, with the plain run's hyperparameters.

buffers: what the step changes in the model's buffers, as batch norm's statistics.

evaluation: the same is evaluated at the same times; some forwards are repeated with their weights.

losses: the mean of the later half of the losses is the plain run's, within its noise.

seeds, for `statistical` alone: plain run and plan are trained from two more seeds, and the plan's
mean loss may be larger by 1 % of the loss at the start at most. A script that fixes its seeds is
given others: each seed that it sets is moved.

A verdict names its horizon in steps, which parts of the run were within it, the smallest change of
each kind that would have been seen on this run, and what was not checked."""
