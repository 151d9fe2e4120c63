"""The command line: options and help of each command; `main`, which runs one and shows its errors.

One file per command, beside files for what several of them share. What a command does is in other
packages.
"""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from hotlap.cli.stopping import leave_on_signals
from hotlap.errors import (
    DoesNotFit,
    HotlapError,
    TrialError,
    UnknownName,
    UsageError,
    unknown_name,
)

COMMANDS: dict[str, str] = {
    "demo": "The whole story on real data: why it is slow, made faster, proven, and run.",
    "diagnose": "Why is it slow? Where each millisecond of a step goes, and what each cause costs.",
    "tune": "Find the fastest plan by measured trials, prove it, and write the plan file.",
    "verify": "Does a script learn the same under one plan as under another?",
    "check": "Does a plan still apply to a script, hold and gain? For continuous integration.",
    "run": "Run an unedited script under a plan.",
    "train": "Train a recipe with hotlap's own engine.",
    "search": "Find better hyperparameters of a recipe, and stop trials early that promise little.",
    "runs": "List past runs, compare two, or open one as a page.",
    "export": "Write a trained model as a state dict, torch.export program or ONNX.",
    "report": "One self-contained page of a stored result, of a run, or of two runs compared.",
    "explain": "A technique, a finding, an error or a plan file, explained.",
    "env": "What this machine can do, its measured ceilings, and what is wrong with its set-up.",
}
"""Command -> one line on it. `hotlap.cli.NAME` holds its `COMMAND`; it is imported to be run."""

_DEFECT = "This is a bug in hotlap, not in your input. Please report it with the lines above."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        argv: the tokens behind `hotlap`, those of this process if None.

    Returns:
        What the command returns; 2 if something that the user gave is wrong, 130 if Ctrl-C was
        pressed, 1 for anything else that went wrong.
    """
    _print_whatever_comes()
    leave_on_signals()
    tokens = list(sys.argv[1:] if argv is None else argv)
    name = f"hotlap {tokens[0]}" if tokens and tokens[0] in COMMANDS else "hotlap"
    try:
        return _dispatch(tokens)
    except UsageError as error:
        _show_cause(error)
        _complain(f"{name}: {error}\nRun `{name} --help` for its options.")
        _explain_cause(name, error)
        return 2
    except TrialError as error:
        if error.shown:
            _complain(error.shown)
        _complain(f"{name}: {error.why}")
        if error.meaning:
            _complain(f"{name}: {error.meaning}")
        _explain_cause(name, error)
        return 1
    except HotlapError as error:
        _show_cause(error)
        _complain(f"{name}: {error}")
        _explain_cause(name, error)
        return 1
    except KeyboardInterrupt:
        _complain(f"{name}: interrupted.")
        return 130
    except Exception as error:
        # Python 3.11 wraps what is raised while a class is made, as in an import.
        if isinstance(error.__cause__, KeyboardInterrupt):
            _complain(f"{name}: interrupted.")
            return 130
        whose = _origin_of_error()
        if isinstance(error, BrokenPipeError) and whose == _DEFECT:
            # Whoever read our output went away; without this Python complains when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        import traceback

        _complain(f"{traceback.format_exc()}{name}: {whose}")
        # A note is advice already, with figures.
        _explain(name, error, advises=not getattr(error, "__notes__", ()))
        return 1


def _show_cause(error: HotlapError) -> None:
    """Show the traceback of the user's code that one of hotlap's exceptions was made of."""
    cause = error.__cause__
    # Python shows nothing of a SystemExit either.
    if cause is None or isinstance(cause, SystemExit):
        return
    import traceback

    from hotlap.usercode import is_users

    place = cause.__traceback__
    while place is not None and not is_users(place.tb_frame.f_code.co_filename):
        place = place.tb_next
    if place is not None:
        _complain("".join(traceback.format_exception(type(cause), cause, place)).rstrip())


def _explain_cause(name: str, error: HotlapError) -> None:
    """Say what the exception means that one of hotlap's was made of, and what was noted on it."""
    for note in getattr(error, "__notes__", ()):
        _complain(note)
    if error.__cause__ is not None:
        # What does not fit, however it was split, is not to be split.
        _explain(name, error.__cause__, advises=not isinstance(error, DoesNotFit))


def _explain(name: str, error: BaseException, *, advises: bool = True) -> None:
    """Say what an exception means, if it is one that training often dies of."""
    from hotlap.failures import recognize_exception

    known = recognize_exception(error)
    if known is not None:
        _complain(f"{name}: {known.line if advises else known.facts_line}")


def _origin_of_error() -> str:
    """Say whose code raised the exception at hand, as far as its traceback shows it."""
    import traceback

    from hotlap.usercode import is_users

    frames = traceback.extract_tb(sys.exc_info()[2])
    users = [frame for frame in frames if is_users(frame.filename)]
    if not users:
        return _DEFECT
    return f"raised by your code, at {users[-1].filename}:{users[-1].lineno}."


def _dispatch(tokens: Sequence[str]) -> int:
    if not tokens or tokens[0] in ("--help", "-h", "--version"):
        _root(tokens or ["--help"])
        return 0
    if tokens[0] not in COMMANDS:
        if tokens[0].startswith("-"):
            known = [*COMMANDS, "--help", "--version"]
            message = unknown_name(tokens[0], known, "command or option")
            message += " Write the options of a command after it, as in `hotlap env --json`."
            raise UnknownName(message)
        raise UnknownName(unknown_name(tokens[0], COMMANDS, "command"))
    from hotlap.cli.invoking import invoke

    command = importlib.import_module(f"hotlap.cli.{tokens[0]}").COMMAND
    return invoke(command, tokens[1:])


def _root(tokens: Sequence[str]) -> None:
    from cyclopts import App

    import hotlap
    from hotlap.cli.command import EXIT_CODES

    app = App(
        name="hotlap",
        help="Makes PyTorch training fast, and proves it.",
        help_format="plaintext",
        help_epilogue="Examples:\n  hotlap env\n  hotlap COMMAND --help\n\n"
        f"Exit codes: {EXIT_CODES}",
        version=hotlap.__version__,
        result_action="return_value",
    )
    for name, summary in COMMANDS.items():
        app.command(f"hotlap.cli.{name}:COMMAND", name=name, help=summary)
    app(list(tokens[:1]))


def _print_whatever_comes() -> None:
    """A character that the terminal's encoding lacks is shown escaped instead of ending the run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(text: str) -> None:
    from hotlap.report.printable import printable

    if sys.stderr is not None:
        sys.stderr.write(printable(text) + "\n")
