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


class TokenPrincipal(Principal):
    """The owner of a delegation token by which a client has logged in. It equals the owner itself, as in Kafka."""

    __slots__ = ()


def may_use_tokens(principal: Principal, protocol: str) -> bool:
    """Returns whether a client may make and change delegation tokens: it has logged in, and not by a token.

    ``protocol``: the security protocol of its listener."""
    if isinstance(principal, TokenPrincipal) or protocol == "PLAINTEXT":
        return False
    return protocol != "SSL" or principal != ANONYMOUS
