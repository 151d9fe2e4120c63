"""Vectors of zeros with a single one are made in the forward, and multiplied by weights.

What it sees   `one_hot(...)` in a line of the forward, and lines that use its result.
Why it costs   such a product reads every row of the weights to find one; forward and backward hold
               and move tensors that are almost all zeros.
What to do     look the rows up by their numbers: nn.Embedding, or `weight[index]`; for a loss,
               cross_entropy, which takes class numbers.
Evidence       samples of the running line while steps were not timed, and of the backward the same
               share as of the forward; medium confidence at most.
"""

from hotlap.rules.forward_lines import after, assigned, forward_lines, nominate_lines, uses
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each line that makes such vectors, with the lines that use them."""
    lines, found = forward_lines(trace), list[Nomination]()
    for line in lines:
        if "one_hot(" not in line.text:
            continue
        users = [each for each in after(lines, line) if uses(each, assigned(line))]
        found += nominate_lines(
            trace,
            [line, *users],
            "one-hot vectors are made and multiplied",
            f"look rows up by their numbers at {line.where}: nn.Embedding or `weight[index]`, or "
            "a loss that takes class numbers",
        )
    return found


RULE = Rule(name="one_hot_products", kind="speed", nominate=nominate)
