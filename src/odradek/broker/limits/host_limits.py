"""The limit for connections from one address: ``max.connections.per.ip`` and its overrides."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from odradek.broker.loop.world import begin_thread, look_up
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.keys import ConfigSource
from odradek.broker.settings.pairs import OVERRIDES, host_counts
from odradek.core.errors import ConfigError

log = logging.getLogger("odradek.broker")

_MAPPED = bytes(10) + b"\xff\xff"


def plain_address(host: str) -> str | None:
    """Returns an address in its usual spelling without a scope, or ``None`` for a name.

    An IPv4-mapped IPv6 address becomes the IPv4 address, because both addresses belong to one host, as in Kafka.
    """
    host = host.strip("[]").partition("%")[0]
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            packed = socket.inet_pton(family, host)
            if packed.startswith(_MAPPED):
                return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
            return socket.inet_ntop(family, packed)
    return None


def is_loopback(host: str) -> bool:
    address = plain_address(host) or ""
    return address == "::1" or address.startswith("127.")


class HostLimits:
    """The limits in effect, by address. Host names in the overrides are resolved when the setting changes.

    Names in the static configuration are resolved before the broker serves. A name without an address ends the start,
    as in Kafka. A thread resolves the names of dynamic settings, because a slow resolver must not block the event loop.
    The limits of these names apply when the thread has resolved all names.

    ``look_up``, ``begin_thread``: as in ``NodeWorld``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        look_up: Callable[[str], str] = look_up,
        begin_thread: Callable[[str, Callable[[], None]], None] = begin_thread,
    ) -> None:
        self._config = config
        self._look_up = look_up
        self._begin_thread = begin_thread
        self._text = ""
        self._counts: dict[str, int] = {}
        self._unresolved: dict[str, int] = {}
        """Names that are not resolved yet, with their limits."""
        self._is_looking_up = False

    def most(self, host: str) -> int:
        """Returns the limit for connections from an address."""
        if not self._counts:
            return self._config.max_connections_per_ip
        return self._counts.get(plain_address(host) or host, self._config.max_connections_per_ip)

    def apply_settings(self, *, at_start: bool = False) -> None:
        """Applies changed settings. Raises ConfigError at the start if a name in static overrides has no address."""
        text = self._config.max_connections_per_ip_overrides
        if text == self._text:
            return
        self._text = text
        self._counts, self._unresolved = {}, {}
        is_static = at_start and self._config.source(OVERRIDES) is ConfigSource.STATIC_BROKER
        for host, count in host_counts(text).items():
            address = plain_address(host)
            if address is None and is_static:
                address = self._address(host)
            if address is None:
                self._unresolved[host] = count
            else:
                self._counts[address] = count
        self._look_up_names()

    def _address(self, name: str) -> str:
        try:
            return self._look_up(name)
        except OSError as error:
            raise ConfigError(f"{OVERRIDES}: {name}: {error}") from error

    def _look_up_names(self) -> None:
        """Starts the thread that resolves names, unless it runs: settings may change faster than a resolver replies."""
        if not self._unresolved or self._is_looking_up:
            return
        loop, names = asyncio.get_running_loop(), self._unresolved

        def run() -> None:
            counts: dict[str, int] = {}
            for name, count in names.items():
                if self._unresolved is not names:
                    break
                try:
                    counts[self._look_up(name)] = count
                except OSError as error:
                    log.warning("%s: the limit of %s is ignored: %s", OVERRIDES, name, error)
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._add_counts, names, counts)

        self._is_looking_up = True
        self._begin_thread("host names", run)

    def _add_counts(self, names: dict[str, int], counts: dict[str, int]) -> None:
        self._is_looking_up = False
        if self._unresolved is names:
            self._counts |= counts
            self._unresolved = {}
        self._look_up_names()
