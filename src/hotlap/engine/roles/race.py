"""Role `race` of a recipe: the engine trains in turns of as many steps as it is told."""

from hotlap.engine.roles.trial import Trial, leave
from hotlap.engine.steps import steps_of
from hotlap.trial.turns import Turns


def race(trial: Trial) -> None:
    """Train as many steps a turn as told, for as long as there are turns.

    The first step is taken before the gate: it fills the feed and compiles. A task that comes to
    its end is gone through again, at the rate that its schedule ended with.
    """
    built = trial.build(trial.task)
    started = trial.config.options["started"]
    turns = Turns(trial.channel, started, built.applied.proofs, leave)
    while True:
        for _ in steps_of(built):
            if turns.is_open:
                turns.step_done()
            else:
                turns.gate()
        built.stop_schedule()
