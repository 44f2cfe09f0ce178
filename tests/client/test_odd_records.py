"""Records that other programs write, and that no reader may stop at: each reader delivers all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import odradek
from bench import raw
from odradek import Producer, aio
from odradek.batches import encode
from odradek.batches.encode import encode_batch, varint
from odradek.cli.main import run
from odradek.client import Admin, NewTopic, TopicPartition

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


@pytest.fixture
def odd_topic(bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch) -> str:
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
    monkeypatch.setattr(encode, "_encode_headers", packed)
    for one in RECORDS:
        raw.check_produced(topic, connection.call(raw.produce_request(topic, 0, encode_batch([one], now_ms=1))))
    connection.socket.close()
    return topic


OFFSETS = [0, 2, *range(4, 4 + len(RECORDS))]
"""1 and 3 are markers."""
FIRST = 4


def by_consumer(bootstrap: str, topic: str) -> list[int]:
    found: list[int] = []
    with odradek.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(found) < len(OFFSETS):
            found += [one.offset for one in consumer.poll(10).records()]
    return found


def by_loop(bootstrap: str, topic: str) -> list[int]:
    found = []
    with odradek.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for one in consumer:
            assert one.headers is not None
            found.append(one.offset)
            if len(found) == len(OFFSETS):
                break
    return found


def by_asyncio(bootstrap: str, topic: str) -> list[int]:
    async def read() -> list[int]:
        found: list[int] = []
        async with aio.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            while len(found) < len(OFFSETS):
                found += [one.offset for one in (await consumer.poll(10)).records()]
        return found

    return asyncio.run(read())


def by_table(bootstrap: str, topic: str) -> list[int]:
    columns = ["offset", "key", "value", "headers", "timestamp"]
    table = odradek.read_table(topic, bootstrap, columns=columns)
    found: list[int] = table["offset"].to_pylist()
    return found


@pytest.mark.parametrize("read", [by_consumer, by_loop, by_asyncio, by_table])
def test_no_record_stops_a_client(bootstrap: str, odd_topic: str, read: Callable[[str, str], list[int]]) -> None:
    assert read(bootstrap, odd_topic) == OFFSETS


def test_no_record_stops_the_command(
    bootstrap: str, odd_topic: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    address = ["-b", bootstrap]
    assert run(["consume", odd_topic, "--json", *address]) == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line["offset"] for line in lines] == OFFSETS
    shown = [line["headers"] for line in lines if line["offset"] in (FIRST + 4, FIRST + 5)]
    assert [one[0]["key"] for one in shown] == ["\ufffd\ufffd", "\ufffd"], "as Java decodes the names"
    assert run(["consume", odd_topic, *address]) == 0
    assert capsysbinary.readouterr().out.count(b"\n") == len(OFFSETS)
    file = tmp_path / "odd.parquet"
    assert run(["consume", odd_topic, "--output", str(file), *address]) == 0
    assert pq.read_table(file)["offset"].to_pylist() == OFFSETS
    assert run(["consume", odd_topic, "--tail", "1", "--json", *address]) == 0
