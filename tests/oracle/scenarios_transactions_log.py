"""Transactions in the log: markers, the last stable offset, aborted transactions in Fetch, ListOffsets, compaction."""

from __future__ import annotations

import time

import transaction_requests
from recording import Run, Scenario
from scenarios_log import START_MS, fetch_message, produce
from transaction_requests import GAP_MS, SEGMENT_MS, initialised, log_end, offsets, opened, producers, read

from odradek.batches.header import scan
from odradek.batches.rows import iter_records
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import DELETE_RECORDS, DELETE_TOPICS, FETCH

SERIAL = True
CONFIG = transaction_requests.CONFIG | {"log.cleaner.backoff.ms": "200"}
_DAY_MS = 86_400_000
_SPECIAL_TIMES = (-1, -2, -3, -4, -5)


def transactions_interleaved(run: Run) -> None:
    """Four transactions and plain records in one partition.

    Each end moves the last stable offset, except the end of b: the transaction of a began earlier and is still open.
    """
    topic = run.topic()
    run.create(topic)
    a, b, c, d = (initialised(run, label) for label in "abcd")
    for producer in (a, b, c):
        producer.send(topic, 2)
    produce(run, topic, 1)
    a.send(topic, 1)
    read(run, topic)
    b.commit()
    read(run, topic)
    d.send(topic, 3)
    a.abort()
    read(run, topic)
    c.abort()
    read(run, topic)
    produce(run, topic, 2)
    read(run, topic)
    d.abort()
    for offset in (0, 1, 2, 5, 9, 12, 15):
        read(run, topic, offset=offset)
    read(run, topic, level=0)
    read(run, topic, max_bytes=1)
    read(run, topic, max_bytes=300)
    producers(run, (topic, 0))


def read_by_every_version(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic)
    a, b = opened(run, topic, "a"), opened(run, topic, "b")
    a.abort()
    c = opened(run, topic, "c")
    b.commit()
    c.send(topic)
    for level in (0, 1):
        for version in range(4, 13):
            read(run, topic, version=version, level=level)
        for version in range(13, 19):
            read(run, topic_id, version=version, level=level)


def read_committed_waits(run: Run) -> None:
    """Bytes above the last stable offset do not count towards min_bytes. The marker completes the waiting fetch."""
    topic = run.topic()
    run.create(topic)
    producer = opened(run, topic)
    produce(run, topic, 3)

    def fetching(max_wait_ms: int, level: int = 1, offset: int = 0) -> object:
        message = fetch_message(topic, offset, max_wait=max_wait_ms, min_bytes=1, isolation_level=level)
        return run.quietly(FETCH, 12, message, client="reader")

    def shown(reply: object) -> list[object]:
        (row,) = reply.responses[0].partitions
        ends = [row.error_code, row.high_watermark, row.last_stable_offset]
        return [*ends, [header.base_offset for _, header in scan(bytes(row.records or b""))]]

    run.note("read_committed", "in the transaction", shown(fetching(300)))
    run.note("read_uncommitted", "in the transaction", shown(fetching(300, 0)))
    message = fetch_message(topic, 0, max_wait=10_000, min_bytes=1, isolation_level=1)
    waiting = run.send(FETCH, 12, message, client="waiting")
    producer.send(topic)
    run.note("answered", "after a record", waiting.is_answered(0.3))
    producer.commit()
    run.note("answered", "after the marker", waiting.is_answered(5))
    run.disconnect("waiting")
    read(run, topic)


def offsets_with_open_transactions(run: Run) -> None:
    """ListOffsets for both isolation levels, with special timestamps (-1 to -5) and with times of records."""
    topic = run.topic()
    run.create(topic)
    producer = initialised(run)
    times = (START_MS, START_MS + 1, START_MS + 5000, START_MS + 9000)
    offsets(run, topic, *_SPECIAL_TIMES, *times)
    produce(run, topic, 2)
    producer.send(topic, 2, first_ms=START_MS + 5000)
    produce(run, topic, 1, first_ms=START_MS + 8000)
    for level in (0, 1):
        for version in (4, 7, 11):
            offsets(run, topic, -1, *times, level=level, version=version)
        offsets(run, topic, *_SPECIAL_TIMES, level=level)
    producer.abort()
    for level in (0, 1):
        offsets(run, topic, -1, -2, -4, *times, level=level)
    producer.send(topic, 1, first_ms=START_MS + 9000)
    offsets(run, topic, -1, *times)
    producer.commit()
    offsets(run, topic, -1, *times)


def aborted_transactions_over_segments(run: Run) -> None:
    """Segments end between the records of transactions, so transactions begin and end in different segments."""
    topic = run.topic()
    run.create(topic, 1, segment_ms=SEGMENT_MS)
    long, across, short = (initialised(run, label) for label in ("long", "across", "short"))
    now = START_MS
    long.send(topic, 2, first_ms=now)
    for number in range(4):
        now += GAP_MS
        across.send(topic, 1, first_ms=now)
        now += GAP_MS
        short.send(topic, 2, first_ms=now)
        if number % 2:
            short.abort()
        else:
            short.commit()
        produce(run, topic, 1, first_ms=now + GAP_MS)
        read(run, topic)
        across.abort()
    read(run, topic)
    long.abort()
    end = log_end(run, topic, 0)
    for offset in range(0, end, 3):
        read(run, topic, offset=offset)
    read(run, topic, max_bytes=200)
    offsets(run, topic, -1, -2, -3, START_MS, START_MS + GAP_MS * 5 // 2)
    producers(run, (topic, 0))


def markers_read(run: Run) -> None:
    """The keys, values and attributes of commit and abort markers with several coordinator epochs."""
    topic = run.topic()
    run.create(topic, 1)
    for number in range(3):
        producer = opened(run, topic, f"{number}")
        for result in (True, False):
            where = (topic, 0)
            row = transaction_requests.marker(producer, result, where, coordinator_epoch=number * 70_000)
            transaction_requests.write_markers(run, row, version=1)
    read(run, topic)
    read(run, topic, level=0, version=4)


def records_deleted_in_transactions(run: Run) -> None:
    """DeleteRecords before, in and after the records of an open transaction, and in an aborted transaction."""
    topic = run.topic()
    run.create(topic)
    a = initialised(run, "a")
    produce(run, topic, 2)
    a.send(topic, 3)
    produce(run, topic, 2)

    def delete(offset: int) -> None:
        part = {"partition_index": 0, "offset": offset}
        run.call(DELETE_RECORDS, 2, {"topics": [{"name": topic, "partitions": [part]}], "timeout": 10_000})
        read(run, topic, offset=max(offset, 0))
        offsets(run, topic, -1, -2)
        producers(run, (topic, 0))

    delete(1)
    delete(3)
    delete(6)
    a.send(topic, 1)
    delete(-1)
    a.abort()
    read(run, topic, offset=8)
    b = opened(run, topic, "b")
    b.send(topic, 2)
    b.abort()
    produce(run, topic, 1)
    delete(10)
    delete(12)


def transactions_with_codecs_and_append_times(run: Run) -> None:
    topic, stamped = run.topic("a"), run.topic("stamped")
    run.create(topic)
    run.create(stamped, 1, message_timestamp_type="LogAppendTime")
    producer = initialised(run)
    for codec in ("gzip", "lz4", "snappy", "zstd"):
        producer.send(topic, 3, compression=codec)
        producer.send(stamped, 2, compression=codec)
    producer.commit()
    produce(run, topic, 1)
    read(run, topic)
    read(run, stamped)


def a_topic_of_a_transaction_is_deleted(run: Run) -> None:
    """The topic stays in the transaction, by its name. A new topic with this name gets only the marker."""
    for commit in (True, False):
        gone, stays = run.topic(f"gone{commit:d}"), run.topic(f"stays{commit:d}")
        run.create(gone)
        run.create(stays)
        producer = opened(run, gone, f"{commit:d}")
        producer.send(stays)
        run.quietly(DELETE_TOPICS, 6, {"topics": [{"name": gone, "topic_id": None}], "timeout": 10_000})
        run.wait_until_deleted(gone)
        producer.describe()
        producer.send(gone)
        run.create(gone)
        producer.describe()
        producer.send(gone)
        producers(run, (gone, 0))
        producer.end(commit)
        producer.wait_for(*transaction_requests.COMPLETE)
        read(run, gone)
        read(run, stays)
        producer.log()


def _wait_until_clean(run: Run, topic: str, left: int) -> None:
    """Waits until the partition has this number of records, markers included."""
    deadline = time.monotonic() + 60
    while True:
        offset, rows = 0, []
        while True:
            reply = run.quietly(FETCH, 12, fetch_message(topic, offset))
            (row,) = reply.responses[0].partitions
            assert row.error_code is ErrorCode.none, row
            data = bytes(row.records or b"")
            headers = [header for _, header in scan(data)]
            if not headers:
                break
            rows += list(iter_records(data))
            offset = headers[-1].last_offset + 1
        if len(rows) == left:
            return
        assert time.monotonic() < deadline, rows
        run.pass_ms(1000)


def aborted_records_are_compacted(run: Run) -> None:
    """Compaction removes aborted records, and keeps the markers until their delete horizon."""
    topic = run.topic()
    settings = {"segment_ms": SEGMENT_MS, "min_cleanable_dirty_ratio": "0.0", "delete_retention_ms": str(_DAY_MS)}
    run.create(topic, 1, cleanup_policy="compact", **settings)
    aborted, committed, running = (initialised(run, label) for label in ("a", "c", "r"))
    aborted.send(topic, 3)
    aborted.abort()
    committed.send(topic, 2, first_ms=START_MS + GAP_MS)
    committed.commit()
    aborted.send(topic, 1, first_ms=START_MS + 2 * GAP_MS)
    aborted.abort()
    produce(run, topic, 1, first_ms=int(time.time() * 1000) + GAP_MS)
    _wait_until_clean(run, topic, 6)
    read(run, topic)
    read(run, topic, level=0)
    producers(run, (topic, 0))
    running.send(topic, 2, first_ms=int(time.time() * 1000) + 2 * GAP_MS)
    offsets(run, topic, -1, -2)


SCENARIOS: tuple[Scenario, ...] = (
    transactions_interleaved,
    read_by_every_version,
    read_committed_waits,
    offsets_with_open_transactions,
    aborted_transactions_over_segments,
    markers_read,
    records_deleted_in_transactions,
    transactions_with_codecs_and_append_times,
    a_topic_of_a_transaction_is_deleted,
    aborted_records_are_compacted,
)
