"""A listener of the broker: its name, its security protocol and its addresses."""

from __future__ import annotations

from typing import NamedTuple

HTTP = "HTTP"
"""The protocol of a listener with pages. It is no security protocol of Kafka's, and no setting may name it."""


class Listener(NamedTuple):
    """``name`` is in upper case. ``advertised``: the address that clients get; None: the one that they connect to."""

    name: str
    protocol: str
    host: str
    port: int
    advertised: tuple[str, int] | None = None

    @property
    def is_page(self) -> bool:
        """Whether it serves pages, and not Kafka's protocol."""
        return self.protocol == HTTP

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def address(self) -> str:
        """``HOST:PORT``, with an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"
