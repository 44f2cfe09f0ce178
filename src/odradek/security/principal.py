"""Who sends a request: the principal of a connection (Kafka's KafkaPrincipal)."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """The kind (``User``) and the name of the owner of a connection. ``str`` gives Kafka's text, ``User:name``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of a client that has not authenticated."""
