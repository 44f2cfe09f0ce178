"""Two threads decode fetched records: the result equals that of one thread, and broken batches raise the same
errors."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.batches.arrow import RECORD_BATCH_BYTES, RecordSet
from odradek.batches.columns import COLUMNS, DEFAULT_COLUMNS
from odradek.batches.compression import NAMES
from odradek.batches.encode import encode_batch
from odradek.client.consumer.ahead_decoder import AheadDecoder
from odradek.client.consumer.fetch_buffer import FREE, RESERVED, TAKEN, CompletedFetch, FetchBuffer
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.subscription import SubscriptionState
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord
from odradek.core.ids import TopicPartition

SMALL = 20_000
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def made(seed: int, codecs: tuple[str, ...]) -> tuple[bytes, int]:
    """Record batches, and the end of their offsets. The end may follow a gap."""
    chance, parts, offset = random.Random(seed), [], 0
    for _ in range(chance.randrange(1, 12)):
        records = [
            SimpleRecord(chance.choice([None, b"key"]), chance.randbytes(4) * chance.choice((0, 1, 30, 2000)), offset)
            for _ in range(chance.randrange(1, 40))
        ]
        more = {"producer_id": 9, "producer_epoch": 0, "transactional": True} if chance.random() < 0.3 else {}
        codec = chance.choice(codecs)
        parts.append(encode_batch(records, now_ms=1, base_offset=offset, compression=codec, **more))
        offset += len(records) + chance.choice((0, 0, 5))
    return b"".join(parts), offset


def rows(batches: list[Any]) -> list[dict[str, object]]:
    return pa.Table.from_batches(batches).to_pylist() if batches else []


@pytest.mark.parametrize("codecs", [("none",), ("lz4",), ("zstd",), ("gzip", "lz4"), NAMES])
def test_a_thread_continues_where_another_thread_stopped(codecs: tuple[str, ...]) -> None:
    switches = 0
    with ThreadPoolExecutor(1) as other:
        for seed in range(40):
            chance = random.Random(seed)
            data, end = made(seed, codecs)
            for how in (
                {},
                {"start": chance.randrange(end), "end": chance.randrange(end + 1)},
                {"aborted": (AbortedTransaction(9, chance.randrange(end)),)},
            ):
                records = RecordSet(data, SMALL)  # the decoder makes several RecordBatches of one part
                expected = list(records.record_batches("t", 1, columns=COLUMNS, **how))
                batches = RecordSet(data, SMALL).record_batches("t", 1, columns=COLUMNS, **how)
                found = []
                while True:
                    ahead = chance.random() < 0.5
                    switches += ahead
                    batch = other.submit(next, batches, None).result() if ahead else next(batches, None)
                    if batch is None:
                        break
                    batch.validate(full=True)
                    found.append(batch)
                assert batches.is_over
                assert rows(found) == rows(expected), (seed, how)
    assert switches > 50


def completed(tp: TopicPartition, data: bytes, batch_bytes: int = RECORD_BATCH_BYTES, **more: Any) -> CompletedFetch:
    records = RecordSet(data, batch_bytes)
    return CompletedFetch(tp, 1, 0, records.next_offset, 0, (), records, len(data), **more)


def test_a_broken_fetch_is_left_to_the_poll_that_returns_it() -> None:
    sent = [encode_batch([SimpleRecord(None, b"v" * 30_000)] * 100, now_ms=1, base_offset=n * 100) for n in range(3)]
    broken = bytearray(b"".join(sent))
    broken[-5] ^= 1
    one = completed(T0, bytes(broken))
    one.state = RESERVED
    one.begin(DEFAULT_COLUMNS, check_crcs=False)
    one.decode_ahead()
    assert (len(one.ready), one.state, one.is_over) == (1, RESERVED, False)
    one = completed(T0, bytes(broken))
    one.state = RESERVED
    one.begin(DEFAULT_COLUMNS, check_crcs=True)
    for ready in (1, 2):  # the batches before the broken one
        one.decode_ahead()
        assert (len(one.ready), one.state) == (ready, RESERVED)
    one.decode_ahead()
    assert (len(one.ready), one.state, one.decoded) == (0, TAKEN, None)
    for _ in range(2):
        one.begin(DEFAULT_COLUMNS, check_crcs=True)
        assert [one.next().column("offset")[0].as_py() for _ in range(2)] == [0, 100]
        with pytest.raises(CorruptRecord, match="t-0 offset 200: batch at offset 200: its CRC"):
            one.next()


def test_records_before_a_broken_batch_are_returned_first() -> None:
    sent = [encode_batch([SimpleRecord(None, b"v" * 300)] * 100, now_ms=1, base_offset=n * 100) for n in range(3)]
    broken = bytearray(b"".join(sent))
    # the first record of the third batch claims a length beyond the batch
    broken[len(sent[0]) + len(sent[1]) + 61] = 0xFF
    one = completed(T0, bytes(broken), SMALL)
    one.begin(DEFAULT_COLUMNS, check_crcs=False)
    for _ in range(3):
        one.decode_ahead()
    assert not one.ready, "the poll that returns the fetch decodes it again"
    one.begin(DEFAULT_COLUMNS, check_crcs=False)
    assert [one.next().num_rows for _ in range(2)] == [100, 100]
    with pytest.raises(CorruptRecord, match="batch at offset 200"):
        one.next()


def test_a_fetch_is_decoded_again_if_other_columns_were_decoded_ahead() -> None:
    data = encode_batch([SimpleRecord(b"k", b"v")] * 5, now_ms=1)
    one = completed(T0, data)
    one.begin(DEFAULT_COLUMNS, check_crcs=True)
    one.decode_ahead()
    one.begin(COLUMNS, check_crcs=True)
    assert (one.next().schema.names, one.next()) == (list(COLUMNS), None)
    assert one.is_over


def reserve(buffer: FetchBuffer, **how: Any) -> Callable[[], CompletedFetch | None]:
    return lambda: buffer.reserve_for_decoding(
        how.get("paused", ()), least_bytes=how.get("least", 1), most_ready=how.get("most", 9)
    )


def test_only_fetches_after_the_next_one_are_reserved() -> None:
    data = encode_batch([SimpleRecord(b"k", b"v")] * 5, now_ms=1)
    buffer = FetchBuffer(1 << 20)
    first, second, third, deep = (completed(tp, data) for tp in (T0, T1, T2, T1))
    assert reserve(buffer)() is None
    buffer.put(first)
    assert reserve(buffer)() is None, "a poll would have to wait for the decoder"
    for one in (second, third, deep):
        buffer.put(one)
    assert buffer.bytes_of(T1) == 2 * len(data)
    assert reserve(buffer, least=1 << 16)() is None, "decoding a small fetch takes less time than handing it over"
    assert reserve(buffer)() is second
    assert reserve(buffer)() is third
    assert reserve(buffer)() is deep
    assert reserve(buffer)() is None
    assert buffer.front() is first
    assert buffer.front(take=True) is first
    buffer.remove_returned(first)
    assert buffer.front() is None, "every fetch is reserved"
    buffer.release_reserved(third)
    assert buffer.front(take=True) is third
    buffer.release_reserved(second)
    buffer.release_reserved(deep)
    assert (second.state, third.state, deep.state) == (FREE, TAKEN, FREE)
    assert buffer.front() is second
    assert buffer.front(paused=[T1]) is third
    assert reserve(buffer)() is deep
    buffer.release_reserved(deep)
    assert reserve(buffer, paused=[T1])() is None
    buffer.drop(T1)
    assert (buffer.bytes_of(T1), buffer.size) == (0, len(data))


class FailingBuffer(FetchBuffer):
    def reserve_for_decoding(self, *_: Any, **__: Any) -> Any:
        raise MemoryError("no memory")


@pytest.mark.parametrize("on_loop", [False, True])
def test_an_error_of_the_decoder_itself_reaches_a_poll(on_loop: bool) -> None:
    failures: list[Exception] = []

    async def decode() -> None:
        buffer = FailingBuffer(1 << 20)
        config = ConsumerConfig(bootstrap_servers="localhost:1")
        decoder = AheadDecoder(config, buffer, SubscriptionState(config), changed=lambda: None, fail=failures.append)
        decoder.on_loop = on_loop
        decoder.schedule()
        async with asyncio.timeout(10):
            while not failures:
                await asyncio.sleep(0.001)

    asyncio.run(decode())
    assert [str(one) for one in failures] == ["no memory"]


@pytest.mark.parametrize("returned", [0, 2, 3])
@pytest.mark.parametrize("helped", [False, True])
def test_records_in_other_memory_do_not_keep_their_fetch_reply(returned: int, helped: bool) -> None:
    data = b"".join(encode_batch([SimpleRecord(b"k", b"%d" % n)], now_ms=1, base_offset=n) for n in range(4))
    reply = np.zeros(1 << 20, np.uint8)
    reply[100 : 100 + len(data)] = np.frombuffer(data, np.uint8)
    seen, buffer = weakref.ref(reply), FetchBuffer(1 << 22)
    buffer.put(completed(T0, memoryview(reply)[100 : 100 + len(data)].toreadonly()))
    del reply
    taken = buffer.front(take=returned > 0)
    assert taken is not None
    if returned or helped:
        taken.begin(COLUMNS, check_crcs=True)
    if returned:
        taken.rest = taken.next()
        taken.rest, taken.start = taken.rest.slice(returned), returned
    elif helped:
        taken.decode_ahead()
    assert seen() is not None
    buffer.copy_from_replies(T0)
    gc.collect()
    assert seen() is None
    assert buffer.size == len(data)
    taken.begin(COLUMNS, check_crcs=True)
    values = []
    while (batch := taken.next()) is not None:
        values += batch.column("value").to_pylist()
    assert values == [b"%d" % n for n in range(returned, 4)]


def test_a_fetch_that_is_being_decoded_is_not_moved() -> None:
    data = encode_batch([SimpleRecord(b"k", b"v")] * 5, now_ms=1)
    reply = memoryview(bytes(1 << 20) + data)
    buffer = FetchBuffer(1 << 22)
    first, second = completed(T0, reply[1 << 20 :]), completed(T0, reply[1 << 20 :])
    buffer.put(first)
    buffer.put(second)
    assert reserve(buffer)() is second
    before = second.records
    buffer.copy_from_replies(T0)
    assert second.records is before
    assert first.records.memory_bytes == len(data)


def test_the_number_of_decoded_fetches_is_limited() -> None:
    data = encode_batch([SimpleRecord(b"k", b"v")] * 5, now_ms=1)
    buffer = FetchBuffer(1 << 20)
    for _ in range(5):
        buffer.put(completed(T0, data))
    helped = []
    while (one := reserve(buffer, most=2)()) is not None:
        one.begin(DEFAULT_COLUMNS, check_crcs=True)
        one.decode_ahead()
        buffer.release_reserved(one)
        helped.append(one)
    assert len(helped) == 2
    assert reserve(buffer, most=0)() is None
    assert reserve(buffer, most=3)() not in (None, *helped), "a fetch that is decoded completely is not reserved again"
