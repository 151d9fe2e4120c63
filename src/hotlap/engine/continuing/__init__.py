"""Continues a run that a plain PyTorch script began: its optimizer, scheduler and position.

The first step is `hotlap.checkpoint.foreign_run`, which reads the file. Here its parts are checked
against the recipe and put into a run that was just built.
"""
