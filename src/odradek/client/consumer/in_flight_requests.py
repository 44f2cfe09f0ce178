"""Fetches under way, one at a time per broker: how they are sent, and what becomes of their sessions.

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
from odradek.client.consumer.fetch_buffer import FetchSession
from odradek.client.errors import error_for, unreadable
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.net import fetch_wire
from odradek.net.connection import Connection
from odradek.net.fetch_wire import Wanted
from odradek.net.node_connections import NodeConnections

logger = logging.getLogger("odradek.consumer")
REST_STEP_S = 0.5
"""So often a rest is looked at: it is over, too, when its connection is."""


@dataclass(slots=True, eq=False)
class Flight:
    """One fetch: of what, how the partitions stood then, how much at most, and how long the broker may hold it."""

    node_id: int
    wanted: dict[TopicPartition, Wanted]
    versions: dict[TopicPartition, int]
    max_bytes: int
    wait_ms: int
    of_followers: frozenset[TopicPartition] = frozenset()
    """What the broker follows in, as far as was known: its log may be shorter than the leader's."""


class _Reply:
    """Where a connection leaves a fetch's reply, or why there is none."""

    __slots__ = ("_flight", "_flights", "_version")

    def __init__(self, flights: Flights, flight: Flight, version: int) -> None:
        self._flights, self._flight, self._version = flights, flight, version

    def done(self) -> bool:
        return self._flights.under_way.get(self._flight.node_id) is not self._flight

    def set_result(self, frame: memoryview) -> None:
        self._flights.on_response(self._flight, self._version, frame)

    def set_exception(self, error: Exception) -> None:
        self._flights.on_failure(self._flight, error)


class Flights:
    """``prepare`` is awaited before the first one; ``on_reply`` takes what came and returns the topics that have to be
    looked for anew; ``on_lost`` is told of those that failed, ``on_end`` of each when another may follow, ``fail`` of
    errors that are for the user. Where the broker rests after a reply, because of a quota, ``on_end`` is told twice:
    before, with the flight still under way, and afterwards, when it has no bytes to give back any more."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        *,
        prepare: Callable[[], Awaitable[None]],
        on_reply: Callable[[Flight, fetch_wire.FetchReply], set[str]],
        on_lost: Callable[[Flight], None],
        on_end: Callable[[Flight], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.under_way: dict[int, Flight] = {}
        self._config = config
        self._cluster = cluster
        self._prepare, self._on_reply, self._on_lost, self._on_end, self._fail = (
            prepare, on_reply, on_lost, on_end, fail
        )  # fmt: skip
        self._isolation = isolation(config.isolation_level)
        self._connections = NodeConnections(cluster)
        self._sessions: dict[int, FetchSession] = {}
        self._departures: set[asyncio.Task[None]] = set()
        self._prepared = False

    async def close(self) -> None:
        self.under_way.clear()
        departures = list(self._departures)
        for task in departures:
            task.cancel()
        await asyncio.gather(*departures, return_exceptions=True)
        self._connections.close()

    def begin(self, flight: Flight) -> None:
        """Sends it, at once where a connection is open."""
        self.under_way[flight.node_id] = flight
        connection = self._connections.known(flight.node_id)
        if connection is not None and self._prepared:
            self._send(flight, connection)
            return
        task = asyncio.ensure_future(self._depart(flight))
        self._departures.add(task)
        task.add_done_callback(self._departures.discard)

    async def _depart(self, flight: Flight) -> None:
        try:
            if not self._prepared:
                await self._prepare()
                self._prepared = True
            connection = await self._connections.get(flight.node_id)
        except asyncio.CancelledError:
            self._end_later(flight)  # on the user's loop anybody may cancel it: the next one departs anew
            raise
        except Exception as error:
            self.on_failure(flight, error)
        else:
            self._send(flight, connection)

    def _send(self, flight: Flight, connection: Connection) -> None:
        session = self._sessions.get(flight.node_id)
        if session is None:
            session = self._sessions[flight.node_id] = FetchSession()
        config = self._config
        try:
            ceiling = fetch_wire.IDS_FROM - 1 if any(one.topic_id is None for one in flight.wanted.values()) else None
            version = connection.version(fetch_wire.FETCH, ceiling)
            asked = session.request(flight.wanted, by_id=version >= fetch_wire.IDS_FROM)
            limits = fetch_wire.Limits(
                flight.wait_ms, config.fetch_min_bytes, flight.max_bytes, self._isolation, config.client_rack
            )
            connection.send(
                fetch_wire.FETCH, version, fetch_wire.pack(version, limits, asked), _Reply(self, flight, version)
            )
        except Exception as error:
            self.on_failure(flight, error)

    def on_response(self, flight: Flight, version: int, frame: memoryview) -> None:
        """Its reply is here."""
        session, connection = self._sessions[flight.node_id], self._connections.known(flight.node_id)
        try:
            reply = fetch_wire.parse_reply(version, frame, len(flight.wanted))
        except ValueError as error:
            if connection is not None:
                connection.close()
            self.on_failure(flight, unreadable(f"broker {flight.node_id}", error))
            return
        if reply.throttle_ms > 0 and connection is not None:
            connection.throttled(fetch_wire.FETCH, version, reply.throttle_ms)
        if not session.on_reply(reply.error_code, reply.session_id):
            self.on_failure(flight, error_for(reply.error_code, f"broker {flight.node_id} refused the fetch"))
            return
        try:
            moved = self._on_reply(flight, reply)
        except Exception as error:
            self._fail(error)
            moved = set()
        if moved:
            self._cluster.forget_topics(moved)
            self._end_later(flight)
        elif reply.throttle_ms > 0:
            self._end_rested(flight)
        else:
            self._end(flight)

    def on_failure(self, flight: Flight, error: Exception) -> None:
        """It failed: after a while another one may be tried. What is no broker's doing, or does not pass, is the user's
        to see."""
        if not _passes(error):
            self._fail(error)
        if (session := self._sessions.get(flight.node_id)) is not None:
            session.begin_anew()
        self._cluster.forget_topics({tp.topic for tp in flight.wanted})
        self._on_lost(flight)
        logger.info("fetching from broker %d: %s", flight.node_id, error)
        self._end_later(flight)

    def _end_later(self, flight: Flight) -> None:
        asyncio.get_running_loop().call_later(self._config.retry_backoff_ms / 1000, self._end_rested, flight)

    def _end_rested(self, flight: Flight) -> None:
        """Once the broker reads from the connection again. Until then no memory is kept for what it will send."""
        connection = self._connections.known(flight.node_id)
        if connection is not None and connection.rest_s > 0 and self.under_way.get(flight.node_id) is flight:
            self._on_end(flight)
            flight.max_bytes = 0
            self._rest(flight, connection)
        else:
            self._end(flight)

    def _rest(self, flight: Flight, connection: Connection) -> None:
        """Not longer than the connection is open: the broker reads from another at once."""
        rest_s = connection.rest_s
        if rest_s > 0 and not connection.closed and self.under_way.get(flight.node_id) is flight:
            asyncio.get_running_loop().call_later(min(rest_s, REST_STEP_S), self._rest, flight, connection)
        else:
            self._end(flight)

    def _end(self, flight: Flight) -> None:
        if self.under_way.get(flight.node_id) is flight:
            del self.under_way[flight.node_id]
            self._on_end(flight)


def _passes(error: Exception) -> bool:
    """As Java's, a consumer goes on after an error that its broker cannot name."""
    if isinstance(error, KafkaError) and error.code is ErrorCode.unknown_server_error:
        return True
    return worth_retrying(error) or (isinstance(error, OdradekError) and error.retriable)
