"""Which forwards that train nothing are an evaluation."""

from hotlap.rules.mistakes.windows import has_one_optimizer
from hotlap.trace.learning import EvaluationFacts
from hotlap.trace.schema import Trace


def rare_evaluations(trace: Trace) -> list[EvaluationFacts]:
    """Return those that do not come at every step, as where one model feeds another."""
    # Forwards are also looked at in the steps after those that were timed.
    watched = max(len(trace.steps), trace.anchor.votes.get("optimizer_steps", 0))
    most = max(1, watched // 3)
    return [each for each in trace.learning.evaluations if each.passes <= most]


def sure_evaluations(trace: Trace) -> list[EvaluationFacts]:
    """Return rare ones that are no samples of a generator beside a second optimizer."""
    has_held_out = any(not loader.training for loader in trace.facts.loaders)
    is_sure = has_one_optimizer(trace) or has_held_out
    return [each for each in rare_evaluations(trace) if each.is_evaluated or is_sure]
