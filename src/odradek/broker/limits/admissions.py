"""The number of connections: of the broker, and of each address. A connection counts before its handshake."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.broker.limits.host_limits import HostLimits
    from odradek.broker.settings.config import BrokerConfig

log = logging.getLogger("odradek.broker")

HANDSHAKE_S = 30.0
"""The longest time in seconds from the acceptance of a connection to the end of its TLS handshake and its login."""


class Admissions:
    """Counts connections by address. ``close`` ends the admission of further ones."""

    def __init__(self, config: BrokerConfig, host_limits: HostLimits) -> None:
        self._config = config
        self._host_limits = host_limits
        self._addresses: Counter[str] = Counter()
        self.count = 0
        """The number of admitted connections."""
        self._is_closed = False

    def enter(self, host: str) -> bool:
        """Counts a new connection from an address. Returns False if a limit is reached or the broker stops."""
        if (
            self._is_closed
            or self.count >= self._config.max_connections
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
        return True

    def leave(self, host: str) -> None:
        """Removes a connection that ``enter`` has counted."""
        self.count -= 1
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]

    def close(self) -> None:
        self._is_closed = True
