"""Which peers are installed; of one that is not it is said how to get it."""

from importlib.metadata import PackageNotFoundError, version

PEERS = {
    "Lightning": "lightning",
    "Accelerate": "accelerate",
    "Trainer of Hugging Face": "transformers",
}
"""Name -> package; the Trainer runs on Accelerate."""
INSTALL = "pip install -c constraints.txt -c constraints-bench.txt -e '.[bench]'"


def versions(wanted: tuple[str, ...] = tuple(PEERS)) -> dict[str, str]:
    """Return name -> version of the wanted peers that are installed."""
    found = {}
    for name in wanted:
        try:
            found[name] = version(PEERS[name])
        except PackageNotFoundError:
            continue
    return found


def told(wanted: tuple[str, ...] = tuple(PEERS)) -> list[str]:
    """Return a line for each wanted peer: its version, or how to get it."""
    found = versions(wanted)
    return [
        f"{name} {found[name]}" if name in found else f"{name} is absent: `{INSTALL}` installs it"
        for name in wanted
    ]
