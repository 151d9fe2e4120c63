"""`lab_of`: the `Lab` of a command that holds trials; checks `--hide` and `HOTLAP_OFF`."""

import os

from hotlap.attach.entry import is_off
from hotlap.errors import UsageError
from hotlap.lab.subject import Subject
from hotlap.lab.trial import Lab


def lab_of(
    subject: Subject, *, hide: tuple[str, ...] = (), techniques: tuple[str, ...] = ()
) -> Lab:
    """Return the lab for a command's trials.

    Raises:
        UsageError: a pattern of `hide` leads out of the working folder.
    """
    if is_off():
        raise UsageError(
            "the environment variable `HOTLAP_OFF` is set, which switches hotlap off, so nothing "
            "can be measured. Unset it, as by `unset HOTLAP_OFF`."
        )
    for pattern in hide:
        if os.path.isabs(pattern) or ".." in pattern.split(os.sep):
            raise UsageError(
                f"--hide '{pattern}' is not allowed. Expected: a relative path or pattern of files "
                "below the working folder, as in `--hide '*.pt'` or `--hide runs`."
            )
    return Lab(subject, hide=hide, techniques=techniques)
