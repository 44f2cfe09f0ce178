"""A listener of the broker: its name, its security protocol and its addresses."""

from __future__ import annotations

from typing import NamedTuple

CLIENT, AT_CONTROLLER = "client", "controller"
"""The kinds of listeners, as ``handlers`` names them: a broker's, and a controller's."""
HTTP = "HTTP"
"""The protocol of a listener with pages. It is no security protocol of Kafka's, and no setting may name it."""
WILDCARDS = ("", "0.0.0.0", "::")
"""The hosts of a listener at every address of its machine."""


class Listener(NamedTuple):
    """``name`` is in upper case. ``advertised``: the address that clients get; None: the one that they connect to.

    ``kind``: CLIENT, or AT_CONTROLLER for a listener in ``controller.listener.names``."""

    name: str
    protocol: str
    host: str
    port: int
    advertised: tuple[str, int] | None = None
    kind: str = CLIENT

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
