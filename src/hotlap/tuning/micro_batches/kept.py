"""What was found of a recipe's micro-batches, in the user's cache.

One JSON file for each recipe, arguments, plan, device, limit, host and torch. It is valid as long
as the recipe and what it imports are, byte for byte, what was measured.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hotlap.host.facts import Host
from hotlap.host.kept_files import cache_folder, write_cached
from hotlap.lab.subject import RecipeRun
from hotlap.plan import Plan
from hotlap.tuning.kept_tunings import digest_of, key_of
from hotlap.tuning.micro_batches.result import MicroBatch
from hotlap.tuning.micro_batches.search import Fit

_SCHEMA = 1


@dataclass
class KeptMicroBatch:
    """What an earlier run found, and where to keep what this one finds."""

    path: Path
    found: MicroBatch | None = None
    too_large: int | None = None
    """Samples of the smallest micro-batch that ran out of memory in a run."""
    files: dict[str, str] = field(default_factory=dict)
    """The recipe's own files, and the SHA-256 of what was measured."""

    @property
    def usable(self) -> MicroBatch | None:
        """What was found, without what ran out of memory since; None if nothing is left of it."""
        found, most = self.found, self.too_large
        if found is None or most is None or most > found.largest:
            return found
        rates = {size: rate for size, rate in found.rates.items() if size < most}
        fitted = [each for each in found.trials if each.fits and each.size < most]
        if not rates or not fitted:
            return None
        largest = max(fitted, key=lambda each: each.size).size
        fastest = max(rates, key=lambda size: rates[size])
        speedup = rates[fastest] / rates[largest] if largest in rates else None
        return replace(
            found, largest=largest, fastest=fastest, speedup=speedup, trials=tuple(fitted)
        )

    def keep(self, found: MicroBatch, files: Sequence[str]) -> None:
        """Keep what was found with these files."""
        self.found = found
        self.files = {path: digest for path in files if (digest := digest_of(path)) is not None}
        self._write()

    def keep_too_large(self, size: int) -> None:
        """Remember that a step in micro-batches of that size ran out of memory."""
        if self.found is not None:
            self.too_large = min(size, self.too_large or size)
            self._write()

    def _write(self) -> None:
        assert self.found is not None
        rates = [[size, rate] for size, rate in self.found.rates.items()]
        data = {
            "schema": _SCHEMA,
            "files": self.files,
            "too_large": self.too_large,
            "found": {**asdict(self.found), "rates": rates},
        }
        write_cached(self.path, json.dumps(data))


def kept_micro_batch(
    recipe: RecipeRun,
    plan: Plan,
    host: Host,
    *,
    memory: int | None,
    techniques: Sequence[str] = (),
    again: bool = False,
) -> KeptMicroBatch:
    """Return what is kept of a recipe; nothing found if one of its files has changed.

    Args:
        recipe: what is trained.
        plan: under which plan; its micro-batches do not matter.
        host: where.
        memory: the limit that was asked for, None for what the device has.
        techniques: techniques from outside, as `module:NAME`.
        again: forget what is kept.
    """
    request: Mapping[str, Any] = {
        "plan": plan.without("micro_batch").techniques,
        "memory": memory,
        "techniques": list(techniques),
    }
    path = cache_folder() / "micro_batches" / f"{key_of(recipe, host, request)}.json"
    if again:
        return KeptMicroBatch(path)
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # There is none, or another version has written it.
        return KeptMicroBatch(path)


def _read(path: Path) -> KeptMicroBatch:
    data = json.loads(path.read_text())
    is_as_it_was = all(digest_of(each) == digest for each, digest in data["files"].items())
    if data["schema"] != _SCHEMA or not data["files"] or not is_as_it_was:
        return KeptMicroBatch(path)
    found = data["found"]
    trials = tuple(Fit(**each) for each in found["trials"])
    rates = {int(size): float(rate) for size, rate in found["rates"]}
    kept = MicroBatch(**{**found, "trials": trials, "rates": rates, "is_kept": True})
    return KeptMicroBatch(path, kept, data["too_large"], data["files"])
