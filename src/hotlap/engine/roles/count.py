"""Role `count` of a recipe: what one of its steps computes."""

from hotlap.engine.roles.trial import Trial
from hotlap.engine.steps import steps_of
from hotlap.trace.arithmetic import StepCounter


def count(trial: Trial) -> None:
    """Count some steps, and end.

    Options: `seconds`, after which one step is enough.
    """
    built = trial.build(trial.task)
    counter, taken = StepCounter(trial.config.options["seconds"]), 0
    for step in steps_of(built):
        taken = step.number
        counter.note_gradients(built.optimizer)
        if counter.step_ends():
            break
    costs = counter.costs(built.device.partition(":")[0])
    trial.report(built, steps=taken, costs=None if costs is None else costs.to_json())
