"""The lines of `hotlap diagnose` about how fast a step could be at most."""

from hotlap.diagnosis.limits import Limits
from hotlap.report.page.wording import least_ms

_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def lines(limits: Limits) -> list[str]:
    """Return what is printed, sentence by sentence."""
    found = []
    costs, flops = limits.costs, limits.flops
    if costs is not None and flops is not None:
        formats = " and ".join(f"{_amount(n)}FLOP in {name}" for name, n in costs.flops.items())
        found.append(
            f"A step computes {formats} (a multiply-add is 2), and has "
            f"{costs.state_bytes / 2**20:.1f} MiB of weights, gradients and optimizer state to "
            "read and write."
        )
    if limits.least_ms is not None:
        found.append(_distance(limits, limits.least_ms))
    if costs is not None and costs.uncounted and flops is not None:
        names = ", ".join(costs.uncounted)
        found.append(f"Not counted, so the true figures are higher: {names}.")
    if limits.why:
        found.append(f"The limits of this machine are not known: {limits.why}.")
    return found


def _distance(limits: Limits, least: float) -> str:
    what = "computing" if least == limits.computing_ms else "reading and writing memory"
    words = (
        f"In these formats it could not run faster than {least_ms(least)} on this machine ({what}, "
        f"at the highest rate measured here); it takes {limits.step_ms:.2f} ms."
    )
    if limits.utilization is not None:
        words += f" FLOPs utilization: {limits.utilization:.1%} of the measured rate of products."
    return words


def _amount(count: int) -> str:
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} "
