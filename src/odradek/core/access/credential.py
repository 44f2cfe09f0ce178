"""The stored form of a password for SCRAM (RFC 5802), in the metadata log and in a login."""

from __future__ import annotations

from typing import NamedTuple


class Credential(NamedTuple):
    """The stored form of a password. ``repr`` does not show the secrets."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"
