"""Finds the fastest plan by measured trials, and proves what it learns. Moves only the plan.

It is decided here which plans are tried, in which order and for how long, and what is claimed in
the end. `hotlap.lab` holds the trials, the races and the proofs themselves.
"""
