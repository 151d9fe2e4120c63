"""Whether samples are read in a thread whose random states another one may be drawing from."""

import threading

IN_BACKGROUND = "samples are read in a background thread"
"""Why nothing is kept there: other random states, for a while, would be the main thread's too."""


def home_thread(*, own_order: bool) -> threading.Thread:
    """Return the thread that may read: that of hotlap's own training, of a script the main one.

    A run of hotlap's own draws in the thread that it is in, as in the ones that Ray starts.
    """
    return threading.current_thread() if own_order else threading.main_thread()


def is_in_background(home: threading.Thread | None = None) -> bool:
    """True in any other thread than `home`, or than the main one."""
    return threading.current_thread() is not (home or threading.main_thread())
