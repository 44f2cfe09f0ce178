"""The address of a broker and the default limit of a reply's size."""

from __future__ import annotations

from typing import NamedTuple

RECEIVE_BYTES = 100_000_000
"""The default maximum size of one reply."""


class Address(NamedTuple):
    """The host and port of a listener; prints as ``host:port``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
