"""Sets the throttle time of a reply that a handler has made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache

from odradek.wire import schemas
from odradek.wire.api_keys import OFFSET_COMMIT, OFFSET_FETCH, PRODUCE
from odradek.wire.chunks import Chunk, joined
from odradek.wire.schemas import Kind

Packed = Mapping[str, object] | bytes | list[Chunk]


def with_throttle_time(api_key: int, version: int, reply: Packed, throttle_ms: int) -> Packed:
    """Returns the reply with its throttle time.

    ``reply`` is a mapping, a list of packed pieces, or the bytes of a hand-written encoder. A packed reply is returned
    unchanged if it has no throttle time, or none at a known position.
    """
    if isinstance(reply, Mapping):
        return {**reply, "throttle_time": throttle_ms}
    packed = throttle_ms.to_bytes(4, "big")
    if isinstance(reply, list) and api_key == PRODUCE:
        return [*reply[:-1], packed + joined(reply[-1:])[4:]]
    if isinstance(reply, list):
        at = _throttle_time_at(api_key, version)
        start = joined(reply[:1])
        return reply if at is None else [start[:at] + packed + start[at + 4 :], *reply[1:]]
    if isinstance(reply, bytes) and api_key == PRODUCE:
        end = len(reply) - (1 if version >= 9 else 0)
        return reply[: end - 4] + packed + reply[end:]
    if isinstance(reply, bytes) and api_key in {OFFSET_COMMIT, OFFSET_FETCH} and version >= 3:
        return packed + reply[4:]
    return reply


@cache
def _throttle_time_at(api_key: int, version: int) -> int | None:
    """Returns the position of the throttle time in a packed reply.

    Returns None if the reply has no throttle time, or if a field other than an error code precedes it.
    """
    names = [field.name for field in fields(schemas.message_type(api_key, version, Kind.RESPONSE))[:2]]
    if names[0] == "throttle_time":
        return 0
    return 2 if names == ["error_code", "throttle_time"] else None
