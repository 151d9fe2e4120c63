"""The pages of `hotlap explain`: techniques, rules, beliefs, errors, verdicts, terms, plans."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hotlap import errors, failures
from hotlap.diagnosis.interventions import PAGES as INTERVENTIONS
from hotlap.errors import MissingFile, UnknownName, unknown_name
from hotlap.plan.file import PlanFile
from hotlap.plan.outside import is_from_outside, load_object
from hotlap.report.beliefs import BELIEFS
from hotlap.report.reflow import reflow
from hotlap.report.terms import TERMS
from hotlap.report.verdicts import VERDICTS
from hotlap.rules import Rule
from hotlap.rules import registry as rules_registry
from hotlap.rules.memory import registry as memory_registry
from hotlap.techniques import ORDER, Technique, check, get

_WHITE = re.compile(r"\s")
_LONGEST = 100
"""Characters of a message that are shown again."""
_LONGEST_PATH = 255
"""Characters that a path is looked up with: systems raise for longer names."""


_MORE = ("verdicts", *TERMS)


@dataclass(frozen=True)
class Page:
    """One explanation."""

    name: str
    kind: str
    """`technique`, `finding`, `belief`, `intervention`, `failure`, `error`, `term`, `verdicts`,
    `plan` or `list`."""
    text: str

    def render(self, width: int) -> str:
        """Return the text for a terminal of so many columns."""
        # In a plan's page and in the list every line is one fact.
        return reflow(self.text, width, joins=self.kind not in ("plan", "list"))


def explain(name: str | None) -> Page:
    """Return the page on a technique, a finding, a belief, a failure, the message of one, an
    error, a word of reports or a plan file; a list if None.

    Raises:
        UnknownName: there is nothing of that name.
        MissingFile: it looks like a plan file and is not there.
    """
    if name is None:
        return Page("", "list", _overview())
    term = re.sub(r"[\s-]+", "_", name.strip())
    if term in TERMS and not _is_path(name):
        return Page(term, "term", f"{term} (term)\n\n{TERMS[term]}")
    if _WHITE.search(name.strip()) and not _is_path(name):
        return _message(name)
    if name in ORDER:
        return _technique(get(name))
    rules = rules_registry()
    if name in rules:
        return _finding(rules[name])
    of_memory = memory_registry()
    if name in of_memory:
        return Page(name, "finding", f"{name} (finding)\n\n{of_memory[name].page}")
    if is_from_outside(name):
        return _from_outside(name)
    if name in BELIEFS:
        return Page(name, "belief", f"{name} (belief)\n\n{BELIEFS[name]}")
    if name in INTERVENTIONS:
        text = f"{name} (intervention)\n\n{INTERVENTIONS[name]}"
        return Page(name, "intervention", text)
    known = failures.registry()
    if name in known:
        return Page(name, "failure", f"{name} (failure)\n\n{known[name].page}")
    if name == "verdicts":
        return Page(name, "verdicts", f"verdicts\n\n{VERDICTS}")
    if name in _errors():
        kind = _errors()[name]
        return Page(name, "error", f"{name} (error)\n\n{inspect.getdoc(kind) or ''}")
    if _is_path(name):
        return Page(name, "plan", _plan(Path(name)))
    if failures.recognize(name) is not None:
        # A message of one word, such as `Killed`.
        return _message(name)
    raise UnknownName(
        unknown_name(
            name,
            [*ORDER, *rules, *of_memory, *BELIEFS, *INTERVENTIONS, *known, *_MORE, *_errors()],
            "name",
        )
    )


def _is_path(name: str) -> bool:
    return len(name) <= _LONGEST_PATH and (name.endswith(".toml") or Path(name).is_file())


def _message(text: str) -> Page:
    known = failures.recognize(text)
    if known is None:
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        raise UnknownName(
            f"{shown!r} is not an error message that hotlap knows. Expected: the last line of a "
            f"traceback, or one of these names: {', '.join(failures.registry())}. For training "
            "that is only slow, use `hotlap diagnose SCRIPT`."
        )
    name = known.failure.name
    said = "\n".join([*known.sentences, *known.advice])
    parts = [f"{name} (failure)", known.words, said, known.failure.page]
    return Page(name, "failure", "\n\n".join(part for part in parts if part))


def _overview() -> str:
    return "\n".join(
        [
            "Techniques:  " + ", ".join(ORDER),
            "Findings:    " + ", ".join(rules_registry()),
            "Memory:      " + ", ".join(memory_registry()),
            "Beliefs:     " + ", ".join(BELIEFS),
            "Measuring:   " + ", ".join(INTERVENTIONS),
            "Failures:    " + ", ".join(failures.registry()),
            "Errors:      " + ", ".join(_errors()),
            "Proofs:      verdicts",
            "Terms:       " + ", ".join(TERMS),
            "Also the path of a plan file, or an error message in quotes.",
        ]
    )


def _errors() -> dict[str, type]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.HotlapError)
    }


def _from_outside(spec: str) -> Page:
    found = load_object(spec, "technique or rule", Rule, Technique)
    return _finding(found) if isinstance(found, Rule) else _technique(found)


def _finding(rule: Rule) -> Page:
    return Page(rule.name, "finding", f"{rule.name} (finding)\n\n{rule.page}")


def _technique(technique: Technique) -> Page:
    module = inspect.getmodule(technique.apply)
    lines = [inspect.getdoc(module) or "", "", "Options:"]
    hints = get_type_hints(technique.Options)
    lines += [_option(f, hints[f.name]) for f in fields(technique.Options)] or ["  none"]
    text = "\n".join(lines)
    return Page(technique.name, "technique", f"{technique.name} (technique)\n\n{text}")


def _option(field: Any, hint: Any) -> str:
    allowed = " or ".join(map(str, get_args(hint))) or {bool: "true or false"}.get(
        hint, {int: "a whole number", float: "a number", str: "text"}.get(hint, str(hint))
    )
    default = str(field.default).lower() or "nothing"
    default = "" if field.default is MISSING else f", {default} if not given"
    return f"  {field.name}: {allowed}{default}"


def _acts_on_steps(name: str, values: Mapping[str, Any]) -> bool:
    technique = get(name)
    return technique.seam_of(technique.options(values)) == "step"


def _plan(path: Path) -> str:
    if not path.is_file():
        raise MissingFile(
            f"plan file '{path}' was not found. Check the path, or run `hotlap tune SCRIPT` to "
            "write one."
        )
    file = PlanFile.read(path)
    check(file.plan)
    lines = [f"Plan {file.plan.hash}: {file.plan}"]
    if file.speedup is not None:
        lines.append(f"Speed-up {file.speedup}")
    if file.verdict is not None:
        lines.append(
            f"Verdict {file.verdict.tier} over {file.verdict.horizon_steps} steps: "
            f"{file.verdict.evidence}"
        )
    if file.host is not None:
        lines.append(f"Measured on {file.host.cpu}, torch {file.host.torch}")
    if not file.is_as_measured:
        lines.append(
            "The file was edited after it was measured: the lines above are for another plan."
        )
    own = [name for name, values in file.plan.techniques.items() if _acts_on_steps(name, values)]
    if own:
        lines.append(
            f"For `hotlap train` only: {', '.join(own)}. `hotlap run` does not own the training "
            "step, and uses the others."
        )
    for name, values in file.plan.techniques.items():
        technique = get(name)
        head = (inspect.getdoc(inspect.getmodule(technique.apply)) or "").splitlines()[0]
        claims = technique.numerics(technique.options(values))
        options = ", ".join(f"{key}={value}" for key, value in values.items())
        lines += ["", f"{name}{f'({options})' if options else ''}: {head}"]
        lines.append(f"  numerics {claims}: at best `{claims.best_verdict}`")
        if name in file.notes:
            lines.append(f"  {file.notes[name]}")
    return "\n".join(lines)
