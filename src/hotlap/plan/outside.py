"""Imports techniques and rules that are not part of the package, given as `module:NAME`."""

import importlib
from typing import Any

from hotlap.errors import SignalExit, UsageError


def is_from_outside(name: str) -> bool:
    """True if a name has the form `module:NAME`."""
    module_name, _, attribute = name.partition(":")
    is_path = all(part.isidentifier() for part in module_name.split("."))
    return is_path and attribute.isidentifier()


def load_object(spec: str, what: str, *kinds: type) -> Any:
    """Import an object from outside.

    Args:
        spec: `module:NAME`.
        what: what it is called in messages.
        kinds: the classes of which it must be an instance of one.

    Raises:
        UsageError: the text has another form, the module cannot be imported, or the object is
            missing or of another class.
    """
    if not is_from_outside(spec):
        raise UsageError(
            f"{what} '{spec}' is not of the form module:NAME. Expected: an importable module, a "
            "colon, and the name of an object in the module, as in `mypackage.fast:TECHNIQUE`."
        )
    module_name, _, attribute = spec.partition(":")
    expected = " or ".join(kind.__name__ for kind in kinds)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{what} '{spec}': no module named '{error.name}' was found. Check the name, or add "
            "the folder that contains it to PYTHONPATH."
        ) from error
    except SignalExit:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{what} '{spec}': importing '{module_name}' raised {type(error).__name__}: {error}. "
            f"Run `python -c 'import {module_name}'`, and correct what it reports."
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise UsageError(
            f"{what} '{spec}': module '{module_name}' has no '{attribute}'. Expected: an instance "
            f"of {expected} under this name. Define it in the module, or check the name after the "
            "colon."
        )
    if not isinstance(found, kinds):
        raise UsageError(
            f"{what} '{spec}' has type {type(found).__name__}. Expected: an instance of {expected}."
        )
    return found
