"""A peer that is not installed is named, with the command that gets it."""

from importlib.metadata import PackageNotFoundError

import pytest

from benchmarks import peers


def test_absent_peers_are_not_left_out_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "lightning":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(peers, "version", version)
    told = peers.told()
    assert len(told) == len(peers.PEERS)
    assert told[0].startswith("Lightning is absent: `pip install")
    assert told[1:] == ["Accelerate 1.0", "Trainer of Hugging Face 1.0"]
    assert "Lightning" not in peers.versions()
