"""The client of a request that another node has forwarded, or that is to be forwarded: a view of a connection."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from odradek.security.principal import Principal

if TYPE_CHECKING:
    from odradek.broker.handlers.api import Abandonable, AbandonableTask, Client

log = logging.getLogger("odradek.broker")


class ClientView:
    """``api.Client`` that passes everything on to a connection. ``principal``, ``client_host``: the request's."""

    def __init__(self, connection: Client, principal: Principal, client_host: str) -> None:
        self.client_host = client_host
        self.listener = connection.listener
        self.local_host = connection.local_host
        self.principal = principal
        self.sends_files = connection.sends_files
        self.parked = connection.parked
        self.parked_partitions = 0
        self._connection = connection

    def mute(self, duration_ms: int) -> None:
        self._connection.mute(duration_ms)

    def allow_requests(self, most_bytes: int) -> None:
        self._connection.allow_requests(most_bytes)

    def hang_up(self, reason: str, logger: logging.Logger = log) -> None:
        self._connection.hang_up(reason, logger)

    def begin_long_reply(self) -> None:
        self._connection.begin_long_reply()

    def grow_reply(self, size: int) -> None:
        self._connection.grow_reply(size)

    def count_reply(self, size: int) -> None:
        self._connection.count_reply(size)

    def pause_for(self, task: AbandonableTask) -> None:
        self._connection.pause_for(task)

    def release(self, task: Abandonable) -> None:
        self._connection.release(task)

    def serve_waiting(self) -> None:
        self._connection.serve_waiting()

    def abort(self) -> None:
        self._connection.abort()
