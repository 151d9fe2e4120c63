"""A likelihood is given probabilities or scores instead of their logarithms.

What it sees   the output of a softmax, a sigmoid or a layer that goes into `nll_loss`.
Why it matters `nll_loss` takes logarithms of probabilities and applies none itself. Of
               probabilities the loss lies between -1 and 0, and its gradients are small where the
               model is wrong; of scores it has no lower limit: they only grow.
What to do     `log_softmax` before `nll_loss`, or `cross_entropy`, which applies it itself.
Evidence       the graph of the loss. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

_GIVEN = {
    "softmax": "the probabilities of a softmax go",
    "sigmoid": "the output of a sigmoid goes",
    "layer": "the scores of a layer go",
}
_REMEDIES = {
    "softmax": "`log_softmax` instead of the softmax",
    "sigmoid": "scores without the sigmoid, and `cross_entropy` instead of `nll_loss`",
    "layer": "`cross_entropy` instead of `nll_loss`, or `log_softmax` before it",
}


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of a likelihood that is given no logarithms."""
    return [
        mistake(
            loss.where,
            f"{_GIVEN[loss.without_logarithm]} into the negative log-likelihood (`nll_loss`), "
            "which takes logarithms of probabilities",
            _REMEDIES[loss.without_logarithm],
        )
        for loss in trace.learning.losses
        if loss.without_logarithm
    ]


RULE = Rule(name="missing_logarithm", kind="mistake", nominate=nominate)
