"""Texts of `hotlap explain` on words of reports, such as `noise_floor` and `undecided`."""

TERMS = {
    "at_most": """The most that a cause takes of a step.

The trace shows how much of a step the cause is part of, for example all of the time that the loop
waits for data. A remedy may save more than that: what the cause takes also slows down what comes
after it, as data does that the processor's caches no longer hold. And steps differ.""",
    "live": """Measured in one process, by switching a plan on and off between steps.

Turns of one process differ by about 1 %, so small gains show within seconds. Not everything can be
switched: allocators, DataLoader workers and CUDA graphs are measured in fresh processes, and what
gained in one process must also show in fresh ones.""",
    "noise_floor": """How far identical runs of the plain script differ from each other here.

Several processes run the plain script in turns with the plans. What they differ by is noise: a gain
is claimed only if the lower end of its interval lies above it.""",
    "not_used": """A technique that was measured and is not part of the plan.

Either it gained nothing, or its gain could not be told from noise, or it was not found to gain
anything in addition to the plan: two remedies of one cause save its time only once.""",
    "opportunity": """A setting of the whole process that saves time, as the number of threads may.

It is no line of the script, so it is listed apart from findings.""",
    "plan": """A set of techniques with their options, as `hotlap tune` writes it into a file.

`hotlap run --plan FILE SCRIPT` runs the script under it. `hotlap explain FILE` says what it
contains, what was measured and what was proven of it.""",
    "recipe": """A Python file that describes a training task for hotlap's own engine.

It defines the model, the data, the loss and the optimizer; `hotlap train RECIPE` takes the steps. A
training script needs no recipe.""",
    "speed_up": """How many times faster the steps are than those of the plain script.

`1.50x (1.42 to 1.57)` is the median of paired turns, and the interval within which that median lies
with 95 % confidence. With few turns it is the range of what was seen. Start-up and the first epoch
are not part of it: the predicted time of the whole run includes them.""",
    "technique": """One thing that hotlap can do to a run, such as keeping the data set in memory.

`hotlap explain` without a name lists all of them, and `hotlap explain NAME` says what one does.""",
    "undecided": """The measurements neither show a gain nor rule one out.

Type the same command again: it continues from what was measured. A quiet machine or a larger
`--budget` helps more than anything else; the report says what was missing.""",
}
