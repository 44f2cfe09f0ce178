"""The other end of a connection: its address, and how large its replies may be."""

from __future__ import annotations

from typing import NamedTuple

RECEIVE_BYTES = 100_000_000
"""The default bound of one reply."""


class Address(NamedTuple):
    """Where a broker listens; prints as ``host:port``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
