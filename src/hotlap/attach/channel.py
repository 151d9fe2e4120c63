"""What goes between hotlap and a process it has attached to: JSON lines over one socket."""

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Role = Literal["run", "observe", "race", "verify", "reference", "seeds"]


@dataclass(frozen=True)
class Config:
    """What an attached process is told, in its environment."""

    role: Role
    fd: int | None = None
    """The child's end of the socket, None where nobody listens."""
    plan: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    techniques: tuple[str, ...] = ()
    """Techniques from outside, as `module:NAME`."""
    inject_seed: int | None = None
    """Seed every global generator with this as soon as torch is there."""
    fill_ahead: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the role needs."""

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Config":
        """Read back what `to_text` wrote."""
        data = json.loads(text)
        data["techniques"] = tuple(data["techniques"])
        return cls(**data)


class Channel:
    """One end of the socket. Sending never raises: a script must outlive whoever watches it."""

    def __init__(self, fd: int | None) -> None:
        self._socket = None if fd is None else socket.socket(fileno=fd)
        self._buffer = b""

    def send(self, kind: str, **values: Any) -> bool:
        """Send one message; return False if nobody listens any more."""
        if self._socket is None:
            return False
        try:
            self._socket.sendall(json.dumps({"kind": kind, **values}).encode() + b"\n")
        except OSError:
            self.close()
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message, None if the other end is closed.

        Raises:
            TimeoutError: nothing came in time.
        """
        if self._socket is None:
            return None
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._buffer:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionError:
                chunk = b""
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
