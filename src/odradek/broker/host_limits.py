"""How many connections one host may have: ``max.connections.per.ip`` and its overrides."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress

from odradek.broker.config import BrokerConfig
from odradek.broker.config_keys import Source
from odradek.broker.config_pairs import OVERRIDES, host_counts
from odradek.core.errors import ConfigError

log = logging.getLogger("odradek.broker")

_MAPPED = bytes(10) + b"\xff\xff"


def plain_address(host: str) -> str | None:
    """An address in its usual spelling, without a scope; ``None`` for a name.

    An IPv4 address that came over IPv6 is an IPv4 address: both are one host, as in Kafka.
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
    """The limits in effect. Addresses are compared; names of the overrides are looked up when they are set.

    A name that was set at the start is looked up before the broker serves, and one without an address stops the
    start, as in Kafka. A name that is set while running is looked up by a thread, since a slow resolver must not hold
    up the event loop; the limit holds from then on.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._text = ""
        self._counts: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        """Names that wait for their address."""
        self._thread: threading.Thread | None = None

    def most(self, host: str) -> int:
        """The connections that an address may have."""
        if not self._counts:
            return self._config.max_connections_per_ip
        return self._counts.get(plain_address(host) or host, self._config.max_connections_per_ip)

    def take(self, *, at_start: bool = False) -> None:
        """To be called when settings may have changed. Raises ConfigError where a start names a host that is none."""
        text = self._config.max_connections_per_ip_overrides
        if text == self._text:
            return
        self._text = text
        self._counts, self._wanted = {}, {}
        look_up_now = at_start and self._config.source(OVERRIDES) is Source.STATIC_BROKER
        for host, count in host_counts(text).items():
            address = plain_address(host)
            if address is None and look_up_now:
                address = _address(host)
            if address is None:
                self._wanted[host] = count
            else:
                self._counts[address] = count
        self._look_up_wanted()

    def _look_up_wanted(self) -> None:
        """One thread at a time: settings may change faster than a resolver answers."""
        if not self._wanted or self._thread is not None:
            return
        loop, wanted = asyncio.get_running_loop(), self._wanted

        def run() -> None:
            found: dict[str, int] = {}
            for name, count in wanted.items():
                if self._wanted is not wanted:
                    break
                try:
                    found[_look_up(name)] = count
                except OSError as error:
                    log.warning("%s: %s: %s", OVERRIDES, name, error)
            with suppress(RuntimeError):  # the broker has ended
                loop.call_soon_threadsafe(self._take_found, wanted, found)

        self._thread = threading.Thread(target=run, name="host names", daemon=True)
        self._thread.start()

    def _take_found(self, wanted: dict[str, int], found: dict[str, int]) -> None:
        self._thread = None
        if self._wanted is wanted:
            self._counts |= found
            self._wanted = {}
        self._look_up_wanted()


def _look_up(name: str) -> str:
    """The address of a name that Java would take: an IPv4 one if there is any. Raises OSError."""
    if not name:
        return "127.0.0.1"
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            return str(socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)[0][4][0])
    raise OSError("the name has no address")


def _address(name: str) -> str:
    try:
        return _look_up(name)
    except OSError as error:
        raise ConfigError(f"{OVERRIDES}: {name}: {error}") from error
