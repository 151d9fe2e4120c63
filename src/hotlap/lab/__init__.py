"""The parent's side of trials: starts them apart from the user's files, races and judges them.

What runs inside a trial is in `hotlap.attach.roles` for scripts and in `hotlap.engine.roles` for
recipes; what both sides share is in `hotlap.trial`. Which plans are tried, and what follows from
the results, is decided in `hotlap.tuning` and `hotlap.diagnosis`.
"""
