"""What `commit` asks of older steps, for tests that need no more than this."""

from pathlib import Path

from hotlap.checkpoint.read import read
from hotlap.errors import CheckpointCorrupt


def is_whole(path: Path) -> bool:
    """True if a committed step is what its manifest says."""
    try:
        read(path)
    except CheckpointCorrupt:
        return False
    return True
