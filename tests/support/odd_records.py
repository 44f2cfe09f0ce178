"""Records that other programs write, and that no reader may stop at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from bench import raw
from odradek import Producer
from odradek.batches import encode
from odradek.batches.encode import encode_batch, varint
from odradek.client import Admin, NewTopic

Headers = Sequence[tuple[bytes, bytes | None]]


class Odd(NamedTuple):
    """A record as bytes; the names of its headers may be no UTF-8."""

    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: Headers = ()
    timestamp_ms: int | None = 1_700_000_000_000


RECORDS = [
    Odd(headers=[(b"", b"x")]), Odd(headers=[(b"a", None)]), Odd(headers=[(b"a", b"")]), Odd(headers=[(b"\0", b"\0")]),
    Odd(headers=[(b"\xff\xfe", b"\xff")]), Odd(headers=[(b"\xed\xa0\x80", b"x")]), Odd(headers=[(b"\r\x1b[3m", b"\n")]),
    Odd(headers=[(b"a", b"1"), (b"a", b"2"), (b"a", None)]), Odd(headers=[(b"g" * 70_000, b"z" * 200_000)]),
    Odd(headers=[(b"h%d" % n, b"x") for n in range(5_000)]), Odd(key=b"\xff\xc3"), Odd(key=b""),
    Odd(key=b"k" * 300_000), Odd(key=None, value=None), Odd(value=None), Odd(value=b""), Odd(value=b"\xff\0\x1b[2J"),
    Odd(timestamp_ms=-1), Odd(),
]  # fmt: skip


def packed(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        parts += (varint(len(name)), name, b"\x01" if value is None else varint(len(value)), value or b"")
    return b"".join(parts)


def write_odd_records(bootstrap: str, admin: Admin, topic: str) -> None:
    """The records, each in its own batch, an aborted and a committed transaction with their markers, and a record."""
    admin.create_topics([NewTopic(topic, 1)])
    with Producer(bootstrap, transactional_id=topic) as producer:  # waits until the partition has a leader
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"committed")
    connection = raw.Connection(bootstrap)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encode, "_encode_headers", packed)
        for one in RECORDS:
            raw.check_produced(topic, connection.call(raw.produce_request(topic, 0, encode_batch([one], now_ms=1))))
    connection.socket.close()


OFFSETS = [0, 2, *range(4, 4 + len(RECORDS))]
"""1 and 3 are markers, and 0 is in an aborted transaction."""
COMMITTED_OFFSETS = OFFSETS[1:]
FIRST = 4

NAMES = {FIRST + 4: "\ufffd\ufffd", FIRST + 5: "\ufffd"}
"""The names of headers that are no UTF-8, as Java decodes them."""
