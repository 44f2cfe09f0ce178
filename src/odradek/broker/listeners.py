"""The listeners of a running broker: the protocols of their sockets, and TLS that follows changed files."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

from odradek.broker.front_end.bound_sockets import AcceptedFactory, BoundSockets, OwnerFactory, ProtocolFactory
from odradek.broker.front_end.connection import Connection

if TYPE_CHECKING:
    from odradek.broker.loop.scheduler import Scheduler
    from odradek.broker.node.node import Node
    from odradek.broker.settings.listener import Listener
    from odradek.broker.tls.listener_tls import ListenerTls

TLS_CHECK_S = 2.0
"""How often the files of key stores are looked at."""


class BrokerListeners:
    """``bind``, then ``open`` when the node can serve, then ``close``; ``release`` after a start that has failed.

    ``open_others`` comes before ``open``: the controller in a broker's process serves while the broker starts."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sockets = BoundSockets(node.config.socket_listen_backlog_size)
        self._tls: dict[str, ListenerTls] = {}
        self._owners: dict[str, OwnerFactory] = {}
        self._pages: dict[Listener, AcceptedFactory] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, listener: Listener, make: AcceptedFactory) -> None:
        """Adds a listener that serves something else than Kafka's protocol, before ``bind``. No reply names it."""
        self._pages[listener] = make

    @property
    def pages(self) -> tuple[Listener, ...]:
        """The added listeners, after ``bind`` with the ports that the system has chosen."""
        return tuple(self._pages)

    def bind(self) -> None:
        """Reads certificates and binds the addresses. Raises ConfigError, ListenError."""
        node = self._node
        secured = [one for one in (*node.listeners, *node.other_listeners, *self._pages) if one.has_tls]
        if secured:
            from odradek.broker.settings.listener_settings import ListenerSettings
            from odradek.broker.tls.listener_tls import ListenerTls

            self._tls = {
                one.name: ListenerTls(ListenerSettings(node.config, one), one.name, node.in_thread) for one in secured
            }
        self._sockets.bind((*node.listeners, *node.other_listeners, *self._pages))
        bound, count = self._sockets.listeners, len(node.listeners)
        end = count + len(node.other_listeners)
        node.listeners, node.other_listeners = bound[:count], bound[count:end]
        self._pages = dict(zip(bound[end:], self._pages.values(), strict=True))

    async def open_others(self) -> None:
        """Accepts connections at the listeners of a controller in the process of a broker."""
        if self._node.other_listeners:
            await self._open(self._node.other_listeners)

    async def open(self) -> None:
        await self._open((*self._node.listeners, *self._pages))
        if self._tls:
            self._refresh_tls()

    async def _open(self, listeners: tuple[Listener, ...]) -> None:
        node = self._node
        others = node.other_listeners
        self._owners |= {
            one.name: node.connection_owners(one)
            for one in listeners
            if not one.is_page and (one.has_sasl or one.has_tls or one in others)
        }
        if any(one.has_sasl for one in listeners):
            await node.logins.prepare()
        await self._sockets.open(self._protocols, listeners)

    def release(self) -> None:
        self._sockets.release()
        for tls in self._tls.values():
            tls.abort()

    def close(self) -> None:
        """Accepts no more connections, and ends those that are within their TLS handshake."""
        self._sockets.close()
        self._node.admissions.close()
        if self._timer is not None:
            self._timer.cancel()
        for tls in self._tls.values():
            tls.abort()

    def _refresh_tls(self) -> None:
        """Looks for changed certificates, now and then."""
        for tls in self._tls.values():
            tls.refresh()
        self._timer = self._node.loop.call_later(TLS_CHECK_S, self._refresh_tls)

    def _protocols(self, listener: Listener) -> ProtocolFactory:
        """Returns the factory of the protocols of a listener's sockets."""
        node, make = self._node, self._pages.get(listener)
        if make is None:
            if listener.name not in self._owners:
                return lambda: Connection(node, listener)
            make = self._connections(listener)
        if listener.has_tls:
            return self._tls[listener.name].protocols(self, make)
        return cast(ProtocolFactory, partial(make, None))

    def _connections(self, listener: Listener) -> AcceptedFactory:
        make_owner = self._owners[listener.name]
        return lambda accepted_s: Connection(make_owner(accepted_s), listener)

    # --- the gate of connections --------------------------------------------------------------------------------

    @property
    def scheduler(self) -> Scheduler:
        return self._node.scheduler

    def enter(self, host: str, listener: str = "") -> bool:
        """Counts a new connection from an address. Returns False if a limit is reached or the broker stops."""
        return self._node.admissions.enter(host, listener)

    def leave(self, host: str) -> None:
        """Removes a connection that ``enter`` has counted."""
        self._node.admissions.leave(host)

    def hold_ms(self, host: str) -> int:
        """Counts towards the quota of new connections. Returns for how many ms a connection above it is held."""
        return self._node.quotas.count_connection(host)
