"""Fetches in flight, one at a time per broker: how they are sent, and what becomes of their sessions.

A fetch is sent, and its reply read, in the turn of the loop in which that becomes possible: with a task for each, a
record would be three turns on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from odradek.client.arguments import isolation
from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.consumer.config import ConsumerConfig
from odradek.client.errors import error_for, unreadable
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.net import fetch_wire
from odradek.net.connection import BrokerConnection
from odradek.net.fetch_session import FetchSession
from odradek.net.fetch_wire import FetchPartition
from odradek.net.node_connections import NodeConnections
from odradek.wire.api_keys import FETCH

logger = logging.getLogger("odradek.consumer")
REST_STEP_S = 0.5
"""So often a rest is looked at: it is over, too, when its connection is."""


@dataclass(slots=True, eq=False)
class InFlightFetch:
    """One fetch: of what, how the partitions stood then, how much at most, and how long the broker may hold it."""

    node_id: int
    wanted: dict[TopicPartition, FetchPartition]
    versions: dict[TopicPartition, int]
    max_bytes: int
    wait_ms: int
    of_followers: frozenset[TopicPartition] = frozenset()
    """What the broker follows in, as far as was known: its log may be shorter than the leader's."""


class _Reply:
    """Where a connection leaves a fetch's reply, or why there is none."""

    __slots__ = ("_fetch", "_in_flight", "_version")

    def __init__(self, in_flight: InFlightFetches, fetch: InFlightFetch, version: int) -> None:
        self._in_flight, self._fetch, self._version = in_flight, fetch, version

    def done(self) -> bool:
        return self._in_flight.by_node.get(self._fetch.node_id) is not self._fetch

    def set_result(self, frame: memoryview) -> None:
        self._in_flight.on_response(self._fetch, self._version, frame)

    def set_exception(self, error: Exception) -> None:
        self._in_flight.on_failure(self._fetch, error)


class InFlightFetches:
    """``prepare`` is awaited before the first one; ``on_reply`` takes what came and returns the topics that have to be
    looked for anew; ``on_lost`` is told of those that failed, ``on_end`` of each when another may follow, ``fail`` of
    errors that are for the user. Where the broker rests after a reply, because of a quota, ``on_end`` is told twice:
    before, with the fetch still under way, and afterwards, when it has no bytes to give back any more."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        *,
        prepare: Callable[[], Awaitable[None]],
        on_reply: Callable[[InFlightFetch, fetch_wire.FetchReply], set[str]],
        on_lost: Callable[[InFlightFetch], None],
        on_end: Callable[[InFlightFetch], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.by_node: dict[int, InFlightFetch] = {}
        self._config = config
        self._cluster = cluster
        self._prepare, self._on_reply, self._on_lost, self._on_end, self._fail = (
            prepare, on_reply, on_lost, on_end, fail
        )  # fmt: skip
        self._isolation = isolation(config.isolation_level)
        self._connections = NodeConnections(cluster)
        self._sessions: dict[int, FetchSession] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._prepared = False

    async def close(self) -> None:
        self.by_node.clear()
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        self._connections.close()

    def begin(self, fetch: InFlightFetch) -> None:
        """Sends it, at once where a connection is open."""
        self.by_node[fetch.node_id] = fetch
        connection = self._connections.known(fetch.node_id)
        if connection is not None and self._prepared:
            self._send(fetch, connection)
            return
        task = asyncio.ensure_future(self._connect_and_send(fetch))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect_and_send(self, fetch: InFlightFetch) -> None:
        try:
            if not self._prepared:
                await self._prepare()
                self._prepared = True
            connection = await self._connections.get(fetch.node_id)
        except asyncio.CancelledError:
            self._end_later(fetch)  # on the user's loop anybody may cancel it: the next one is sent again
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
            ceiling = fetch_wire.IDS_FROM - 1 if any(one.topic_id is None for one in fetch.wanted.values()) else None
            version = connection.version(FETCH, ceiling)
            asked = session.request(fetch.wanted, by_id=version >= fetch_wire.IDS_FROM)
            limits = fetch_wire.Limits(
                fetch.wait_ms, config.fetch_min_bytes, fetch.max_bytes, self._isolation, config.client_rack
            )
            connection.send(FETCH, version, fetch_wire.pack(version, limits, asked), _Reply(self, fetch, version))
        except Exception as error:
            self.on_failure(fetch, error)

    def on_response(self, fetch: InFlightFetch, version: int, frame: memoryview) -> None:
        """Its reply is here."""
        session, connection = self._sessions[fetch.node_id], self._connections.known(fetch.node_id)
        try:
            reply = fetch_wire.parse_reply(version, frame, len(fetch.wanted))
        except ValueError as error:
            if connection is not None:
                connection.close()
            self.on_failure(fetch, unreadable(f"broker {fetch.node_id}", error))
            return
        if reply.throttle_ms > 0 and connection is not None:
            connection.throttled(FETCH, version, reply.throttle_ms)
        if not session.on_reply(reply.error_code, reply.session_id):
            self.on_failure(fetch, error_for(reply.error_code, f"broker {fetch.node_id} refused the fetch"))
            return
        try:
            moved = self._on_reply(fetch, reply)
        except Exception as error:
            self._fail(error)
            moved = set()
        if moved:
            self._cluster.forget_topics(moved)
            self._end_later(fetch)
        elif reply.throttle_ms > 0:
            self._end_rested(fetch)
        else:
            self._end(fetch)

    def on_failure(self, fetch: InFlightFetch, error: Exception) -> None:
        """It failed: after a while another one may be tried. What is no broker's doing, or does not pass, is the user's
        to see."""
        if not _passes(error):
            self._fail(error)
        if (session := self._sessions.get(fetch.node_id)) is not None:
            session.begin_anew()
        self._cluster.forget_topics({tp.topic for tp in fetch.wanted})
        self._on_lost(fetch)
        logger.info("fetching from broker %d: %s", fetch.node_id, error)
        self._end_later(fetch)

    def _end_later(self, fetch: InFlightFetch) -> None:
        asyncio.get_running_loop().call_later(self._config.retry_backoff_ms / 1000, self._end_rested, fetch)

    def _end_rested(self, fetch: InFlightFetch) -> None:
        """Once the broker reads from the connection again. Until then no memory is kept for what it will send."""
        connection = self._connections.known(fetch.node_id)
        if connection is not None and connection.rest_s > 0 and self.by_node.get(fetch.node_id) is fetch:
            self._on_end(fetch)
            fetch.max_bytes = 0
            self._rest(fetch, connection)
        else:
            self._end(fetch)

    def _rest(self, fetch: InFlightFetch, connection: BrokerConnection) -> None:
        """Not longer than the connection is open: the broker reads from another at once."""
        rest_s = connection.rest_s
        if rest_s > 0 and not connection.closed and self.by_node.get(fetch.node_id) is fetch:
            asyncio.get_running_loop().call_later(min(rest_s, REST_STEP_S), self._rest, fetch, connection)
        else:
            self._end(fetch)

    def _end(self, fetch: InFlightFetch) -> None:
        if self.by_node.get(fetch.node_id) is fetch:
            del self.by_node[fetch.node_id]
            self._on_end(fetch)


def _passes(error: Exception) -> bool:
    """As Java's, a consumer goes on after an error that its broker cannot name."""
    if isinstance(error, KafkaError) and error.code is ErrorCode.unknown_server_error:
        return True
    return worth_retrying(error) or (isinstance(error, OdradekError) and error.retriable)
