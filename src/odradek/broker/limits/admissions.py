"""The number of connections: of the broker, and of each address. A connection counts before its handshake.

As in Kafka, ``max.connections`` keeps no broker out if brokers connect by a listener of their own
(``inter.broker.listener.name``): their connections are admitted above the limit, and each closes the connection of
another listener that was idle for the longest time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from odradek.security.protocols import PLAINTEXT

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.limits.host_limits import HostLimits
    from odradek.broker.settings.config import BrokerConfig
    from odradek.broker.settings.listener import Listener

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class OpenConnection(Protocol):
        """A connection that can be closed in favour of a broker."""

        client_host: str
        last_active_s: float
        listener: Listener | None

        @property
        def is_closing(self) -> bool: ...

        def abort(self) -> None: ...


log = logging.getLogger("odradek.broker")

HANDSHAKE_S = 30.0
"""The longest time in seconds from the acceptance of a connection to the end of its TLS handshake and its login."""


def protected_listener(config: BrokerConfig, listeners: Sequence[Listener]) -> str:
    """Returns the name of the listener by which other brokers connect, if clients have another one; "" otherwise."""
    texts, names = config.texts, {one.name for one in listeners}
    name = texts.get("inter.broker.listener.name") or texts.get("security.inter.broker.protocol") or PLAINTEXT
    return name.upper() if len(names) > 1 and name.upper() in names else ""


class Admissions:
    """Counts connections by address. ``close`` ends the admission of further ones.

    ``connections``: the open ones after their handshake. ``protected``: as of ``protected_listener``."""

    def __init__(
        self, config: BrokerConfig, host_limits: HostLimits, connections: Collection[OpenConnection], protected: str
    ) -> None:
        self._config = config
        self._host_limits = host_limits
        self._connections = connections
        self._protected = protected
        self._addresses: Counter[str] = Counter()
        self.count = 0
        """The number of admitted connections."""
        self._is_closed = False

    def enter(self, host: str, listener: str = "") -> bool:
        """Counts a new connection from an address. Returns False if a limit is reached or the broker stops.

        ``listener``: its name; "" for that of a page."""
        is_protected = listener != "" and listener == self._protected
        if (
            self._is_closed
            or (self.count >= self._config.max_connections and not is_protected)
            or self._addresses[host] >= self._host_limits.most(host)
        ):
            log.info(
                "refused a connection from %s: max.connections or the limit of its address is reached, or the broker "
                "stops",
                host,
            )
            return False
        self.count += 1
        self._addresses[host] += 1
        self.close_excess()
        return True

    def leave(self, host: str) -> None:
        """Removes a connection that ``enter`` has counted."""
        self.count -= 1
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]

    def close(self) -> None:
        self._is_closed = True

    def close_excess(self) -> None:
        """Closes connections above ``max.connections``: those that were idle for the longest time, but no protected
        one."""
        if self.count <= self._config.max_connections:
            return
        open_ones = [one for one in self._connections if not one.is_closing]
        excess = self.count - (len(self._connections) - len(open_ones)) - self._config.max_connections
        others = [one for one in open_ones if one.listener is None or one.listener.name != self._protected]
        for one in sorted(others, key=lambda one: one.last_active_s)[: max(excess, 0)]:
            log.info("closing the connection from %s: there are more than max.connections", one.client_host)
            one.abort()
