"""Looks in a script's process at how it learns, for rules about mistakes: one file, one subject.

What is found is kept in the dataclasses of `hotlap.trace.learning`.
"""
