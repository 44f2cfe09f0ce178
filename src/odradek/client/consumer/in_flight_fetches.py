"""Fetches in flight, one at a time per broker, with their fetch sessions.

A fetch is sent, and its reply is read, in the tick of the loop in which that becomes possible. A task for each fetch
would delay a record by three ticks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from odradek.client.arguments import isolation
from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.errors import error_for
from odradek.client.group.config import ConsumerConfig
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.net import fetch_exchange
from odradek.net.connection import BrokerConnection
from odradek.net.node_connections import NodeConnections
from odradek.wire import fetch_messages
from odradek.wire.fetch_messages import FetchPartition
from odradek.wire.fetch_session import FetchSession

logger = logging.getLogger("odradek.consumer")
THROTTLE_CHECK_S = 0.5
"""The interval of checks during a throttle time, which also ends when the connection closes."""


@dataclass(slots=True, eq=False)
class InFlightFetch:
    """One fetch: its partitions, its maximum bytes, and the broker's maximum wait.

    ``versions``: the ``version`` of each partition's subscription state, by which an outdated reply is recognised."""

    node_id: int
    wanted: dict[TopicPartition, FetchPartition]
    versions: dict[TopicPartition, int]
    max_bytes: int
    wait_ms: int
    of_followers: frozenset[TopicPartition] = frozenset()
    """Partitions of which the broker is a follower by the cached metadata: its log may be shorter than the leader's."""


class _Reply:
    """The receiver of a fetch's reply or error from the connection."""

    __slots__ = ("_connection", "_fetch", "_in_flight", "_version")

    def __init__(
        self, in_flight: InFlightFetches, fetch: InFlightFetch, connection: BrokerConnection, version: int
    ) -> None:
        self._in_flight, self._fetch, self._connection, self._version = in_flight, fetch, connection, version

    def done(self) -> bool:
        return self._in_flight.by_node.get(self._fetch.node_id) is not self._fetch

    def set_result(self, frame: memoryview) -> None:
        self._in_flight.on_response(self._fetch, self._connection, self._version, frame)

    def set_exception(self, error: Exception) -> None:
        self._in_flight.on_failure(self._fetch, error)


class InFlightFetches:
    """The fetches in flight. ``prepare`` is awaited before the first fetch. ``on_reply`` handles a reply and returns
    the topics whose metadata must be looked up again. ``on_lost`` is called after a failed fetch, ``fail`` with errors
    for the user.

    ``on_end`` is called at the end of a fetch, failed or not: its memory is free, and the next fetch may follow. If the
    broker throttles then, there are two calls: the first one frees the memory, with the fetch still in ``by_node``; the
    second one, after the throttle time and with ``max_bytes`` 0, lets the next fetch follow."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        *,
        prepare: Callable[[], Awaitable[None]],
        on_reply: Callable[[InFlightFetch, fetch_messages.FetchReply], set[str]],
        on_lost: Callable[[InFlightFetch], None],
        on_end: Callable[[InFlightFetch], None],
        fail: Callable[[Exception], None],
        connections: NodeConnections | None = None,
    ) -> None:
        """``connections``: own ones by default."""
        self.by_node: dict[int, InFlightFetch] = {}
        self._config = config
        self._cluster = cluster
        self._prepare, self._on_reply, self._on_lost, self._on_end, self._fail = (
            prepare, on_reply, on_lost, on_end, fail
        )  # fmt: skip
        self._isolation = isolation(config.isolation_level)
        self._connections = connections or NodeConnections(cluster)
        self._sessions: dict[int, FetchSession] = {}
        self.connecting: set[asyncio.Task[None]] = set()
        self._prepared = False

    async def close(self) -> None:
        self.by_node.clear()
        connecting = list(self.connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        self._connections.close()

    def begin(self, fetch: InFlightFetch) -> None:
        """Sends a fetch, at once if a connection is open."""
        self.by_node[fetch.node_id] = fetch
        connection = self._connections.known(fetch.node_id)
        if connection is not None and self._prepared:
            self._send(fetch, connection)
            return
        task = asyncio.ensure_future(self._connect_and_send(fetch))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    async def _connect_and_send(self, fetch: InFlightFetch) -> None:
        try:
            if not self._prepared:
                await self._prepare()
                self._prepared = True
            connection = await self._connections.get(fetch.node_id)
        except asyncio.CancelledError:
            self._end_later(fetch)  # code on the user's loop may cancel this task; the next fetch must follow
            raise
        except Exception as error:
            self.on_failure(fetch, error)
        else:
            self._send(fetch, connection)

    def _send(self, fetch: InFlightFetch, connection: BrokerConnection) -> None:
        session = self._sessions.get(fetch.node_id)
        if session is None:
            session = self._sessions[fetch.node_id] = FetchSession()
        config = self._config
        try:
            version = fetch_exchange.version_for(connection, fetch.wanted.values())
            request = session.request(fetch.wanted, by_id=version >= fetch_messages.IDS_FROM)
            limits = fetch_messages.Limits(
                fetch.wait_ms, config.fetch_min_bytes, fetch.max_bytes, self._isolation, config.client_rack
            )
            fetch_exchange.send(connection, version, limits, request, _Reply(self, fetch, connection, version))
        except Exception as error:
            self.on_failure(fetch, error)

    def on_response(self, fetch: InFlightFetch, connection: BrokerConnection, version: int, frame: memoryview) -> None:
        """Handles the reply of a fetch."""
        try:
            reply = fetch_exchange.read_reply(connection, version, frame, len(fetch.wanted))
        except OdradekError as error:
            self.on_failure(fetch, error)
            return
        if not self._sessions[fetch.node_id].on_reply(reply.error_code, reply.session_id):
            self.on_failure(fetch, error_for(reply.error_code, f"broker {fetch.node_id} refused the fetch"))
            return
        try:
            outdated = self._on_reply(fetch, reply)
        except Exception as error:
            self._fail(error)
            outdated = set()
        if outdated:
            self._cluster.forget_topics(outdated)
            self._end_later(fetch)
        elif reply.throttle_ms > 0:
            self._end_after_throttle(fetch)
        else:
            self._end(fetch)

    def on_failure(self, fetch: InFlightFetch, error: Exception) -> None:
        """Handles a failed fetch: another one may follow after a backoff. A poll raises a non-retriable error."""
        if not _is_retriable(error):
            self._fail(error)
        if (session := self._sessions.get(fetch.node_id)) is not None:
            session.restart()
        self._cluster.forget_topics({tp.topic for tp in fetch.wanted})
        self._on_lost(fetch)
        logger.info("fetching from broker %d: %s", fetch.node_id, error)
        self._end_later(fetch)

    def _end_later(self, fetch: InFlightFetch) -> None:
        asyncio.get_running_loop().call_later(self._config.retry_backoff_ms / 1000, self._end_after_throttle, fetch)

    def _end_after_throttle(self, fetch: InFlightFetch) -> None:
        """Ends a fetch after the throttle time. During that time the fetch reserves no memory."""
        connection = self._connections.known(fetch.node_id)
        if connection is not None and connection.throttle_left_s > 0 and self.by_node.get(fetch.node_id) is fetch:
            self._on_end(fetch)
            fetch.max_bytes = 0
            self._wait_for_throttle_end(fetch, connection)
        else:
            self._end(fetch)

    def _wait_for_throttle_end(self, fetch: InFlightFetch, connection: BrokerConnection) -> None:
        """Ends the fetch when the throttle time is over or the connection is closed.

        The broker does not throttle a new connection."""
        throttle_left_s = connection.throttle_left_s
        if throttle_left_s > 0 and not connection.closed and self.by_node.get(fetch.node_id) is fetch:
            asyncio.get_running_loop().call_later(
                min(throttle_left_s, THROTTLE_CHECK_S), self._wait_for_throttle_end, fetch, connection
            )
        else:
            self._end(fetch)

    def _end(self, fetch: InFlightFetch) -> None:
        if self.by_node.get(fetch.node_id) is fetch:
            del self.by_node[fetch.node_id]
            self._on_end(fetch)


def _is_retriable(error: Exception) -> bool:
    """Returns whether the consumer retries after an error. As in Java, it does after UNKNOWN_SERVER_ERROR."""
    if isinstance(error, KafkaError) and error.code is ErrorCode.unknown_server_error:
        return True
    return worth_retrying(error) or (isinstance(error, OdradekError) and error.retriable)
