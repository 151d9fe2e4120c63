"""Words for the outcomes of a tuning and of its techniques, in the terminal and on the page."""

WITHOUT_PLAN = {
    "nothing_to_gain": "Nothing to gain",
    "could_not_tell": "Undecided, and no plan was confirmed",
    "not_proven": "Nothing that could be proven",
}
"""Outcome without a plan -> how its sentence begins."""
STATES = {"not_tried": "not tried", "no_effect": "not used"}
"""State of a technique -> its words. One without effect was measured: its row says the result."""
