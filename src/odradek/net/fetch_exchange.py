"""The exchange of one fetch with a broker: the version, the request and the reply, with its throttle time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from odradek.net.connection import BrokerConnection, ReplySink
from odradek.net.errors import unreadable
from odradek.wire import fetch_messages
from odradek.wire.api_keys import FETCH
from odradek.wire.fetch_messages import FetchPartition, FetchReply, FetchRequestData, Limits


def version_for(connection: BrokerConnection, partitions: Iterable[FetchPartition]) -> int:
    """Returns the newest usable version of Fetch. If a topic id is unknown, this version has topic names.

    Raises UnsupportedVersion."""
    has_all_ids = all(one.topic_id is not None for one in partitions)
    return connection.version(FETCH, None if has_all_ids else fetch_messages.IDS_FROM - 1)


def send(
    connection: BrokerConnection, version: int, limits: Limits, request: FetchRequestData, reply: ReplySink
) -> None:
    """Sends a fetch; ``reply`` gets the bytes for ``read_reply``, or the error. Raises ConnectionLost."""
    packed = fetch_messages.pack(version, limits, request)
    connection.send(FETCH, version, packed, reply, held_s=limits.max_wait_ms / 1000)


def read_reply(connection: BrokerConnection, version: int, frame: memoryview, requested_count: int) -> FetchReply:
    """Reads a reply and notes its throttle time.

    ``requested_count``: the number of requested partitions, including those of the session. Closes the connection and
    raises ConnectionLost or ReplyTooLarge if the reply cannot be read."""
    try:
        reply = fetch_messages.parse_reply(version, frame, requested_count)
    except ValueError as error:
        connection.close()
        raise unreadable(connection.address, error) from error
    if reply.throttle_ms > 0:
        connection.note_throttle_time(FETCH, version, reply.throttle_ms)
    return reply


async def fetch(connection: BrokerConnection, limits: Limits, request: FetchRequestData) -> FetchReply:
    """Waits for the end of the connection's throttle time, then fetches without a session.

    Raises ConnectionLost, ReplyTooLarge, UnsupportedVersion."""
    version = version_for(connection, request.changed.values())
    if (throttle_left_s := connection.throttle_left_s) > 0:
        await asyncio.sleep(throttle_left_s)
    frame: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
    send(connection, version, limits, request, frame)
    return read_reply(connection, version, await frame, len(request.changed))
