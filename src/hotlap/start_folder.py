"""The folder that a process was in before the user's code ran, which may change to another one."""

import os


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


FOLDER = _current_folder()
"""Absolute; empty if it had been removed."""
