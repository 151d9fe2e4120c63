"""Attention is written out: a product, a softmax, and another product.

What it sees   a line of the forward with a softmax whose argument is a product of matrices, and a
               later line that multiplies its result.
Why it costs   all scores, length x length for each head, are written to memory and read again, some
               times in the forward and more in the backward.
What to do     torch.nn.functional.scaled_dot_product_attention, which takes masks and dropout, and
               computes the scores block by block where a fused kernel fits.
Evidence       samples of the running line while steps were not timed, and of the backward the same
               share as of the forward. The products remain: what lies between them is taken for
               what is saved, half of it where all is one line. Medium confidence at most.
"""

import re

from hotlap.rules.forward_lines import after, assigned, forward_lines, nominate_lines, uses
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import HotLine, Trace

_PRODUCT = re.compile(r"@|\b(matmul|bmm|baddbmm|einsum)\(")
_ARGUMENT = re.compile(r"softmax\(\s*([a-zA-Z_]\w*)\b(?!\s*=)")
_CALLS = r"(?:\.\w+\([^()]*(?:\([^()]*\)[^()]*)*\))*"
_OBJECT = re.compile(rf"(\w+){_CALLS}\.softmax\(")


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each softmax between two products."""
    lines, found = forward_lines(trace), list[Nomination]()
    for line in lines:
        if "softmax(" not in line.text or "log_softmax(" in line.text:
            continue
        parts = _parts_of(lines, line)
        between = [each for each in parts if not _PRODUCT.search(each.text)]
        saved = sum(each.share for each in between) or sum(each.share for each in parts) / 2
        if parts:
            found += nominate_lines(
                trace,
                parts,
                "attention is computed in separate steps",
                f"use torch.nn.functional.scaled_dot_product_attention instead of the lines at "
                f"{', '.join(each.where for each in parts)}",
                saved=saved,
            )
    return found


def _parts_of(lines: list[HotLine], softmax: HotLine) -> list[HotLine]:
    """Return the lines of an attention, in their order; empty if the softmax belongs to none."""
    if len(_PRODUCT.findall(softmax.text)) > 1:
        return [softmax]
    # As in `softmax(scores, -1)`, and as in `scores.masked_fill(mask, low).softmax(dim=-1)`.
    given = _ARGUMENT.search(softmax.text) or _OBJECT.search(softmax.text)
    scores = given[1] if given is not None else ""
    before = [
        each for each in lines if assigned(each) == scores != "" and softmax in after(lines, each)
    ]
    behind = [
        each
        for each in after(lines, softmax)
        if uses(each, assigned(softmax)) and _PRODUCT.search(each.text)
    ]
    is_product = any(_PRODUCT.search(each.text) for each in (*before, softmax))
    return [*before, softmax, *behind] if behind and is_product else []


RULE = Rule(name="attention_by_hand", kind="speed", nominate=nominate)
