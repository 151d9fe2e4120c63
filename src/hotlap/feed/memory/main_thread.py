"""Whether samples are read in the main thread, whose random states nobody else may exchange."""

import threading

IN_BACKGROUND = "samples are read in a background thread"
"""Why nothing is kept there: other random states, for a while, would be the main thread's too."""


def is_in_background() -> bool:
    """True in any other thread than the main one."""
    return threading.current_thread() is not threading.main_thread()
