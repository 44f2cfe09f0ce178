"""``odradek.Consumer`` against brokers that move, lose records, or send what is broken; and its own death."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from support.brokers import eventually
from support.scripted import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    ScriptedCluster,
    fetch_reply,
    scripted,
)  # fmt: skip

import odradek.aio
from odradek import Admin, Consumer, TopicPartition
from odradek.aio.consumer import _call
from odradek.batches.columns import DEFAULT_COLUMNS
from odradek.batches.encode import encode_batch
from odradek.client import NewTopic
from odradek.client.consumer.config import ConsumerConfig
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.consumer.errors import IllegalState
from odradek.client.consumer.fetch_buffer import Chunk
from odradek.client.consumer.records import Polled
from odradek.client.errors import CorruptRecord, KafkaError, LogTruncated, RequestTimedOut, UnsupportedVersion
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode

T0 = TopicPartition("t", 0)
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "fetch_max_wait_ms": 20, "default_api_timeout_ms": 20_000,
         "auto_offset_reset": "earliest"}  # fmt: skip


def batch(first: int, count: int, epoch: int = 0, **options: Any) -> tuple[int, bytes]:
    records = [SimpleRecord(b"k", b"v%d" % offset) for offset in range(first, first + count)]
    data = encode_batch(records, now_ms=1, base_offset=first, leader_epoch=epoch, **options)
    return first + count - 1, data


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted(2) as made:
        made.log = [batch(0, 10), batch(10, 10), batch(20, 10)]
        yield made


def make(cluster: ScriptedCluster, **settings: Any) -> Consumer:
    one = Consumer(cluster.bootstrap, **(QUICK | settings))
    one.assign([T0])
    return one


def read(one: Consumer, count: int) -> list[int]:
    found: list[int] = []
    eventually(lambda: (found.extend(r.offset for r in one.poll(0.2).records()), len(found) >= count)[1], within_s=30)
    return found


def test_a_moved_leader_is_followed_without_loss(cluster: ScriptedCluster) -> None:
    asked = 0

    def move(message: Any, version: int) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            cluster.leader = 2
        return cluster.brokers[1].answer_1(message, version)

    cluster.brokers[1].answers[FETCH] = move
    with make(cluster) as one:
        assert read(one, 30) == list(range(30))


def test_records_lost_by_an_unclean_election_are_told(cluster: ScriptedCluster) -> None:
    cluster.fall_over()
    with make(cluster, auto_offset_reset="none") as one:
        one.seek(T0, 0)
        found: list[int] = []

        def until_told() -> bool:
            found.extend(r.offset for r in one.poll(0.2).records())
            return False

        with pytest.raises(LogTruncated) as told:
            eventually(until_told, within_s=30)
        assert found == list(range(10))
        assert (told.value.offset, told.value.divergence_offset) == (10, 8)


def test_with_a_reset_policy_reading_goes_on_where_the_histories_part(cluster: ScriptedCluster) -> None:
    cluster.fall_over()
    with make(cluster) as one:
        assert read(one, 10) == list(range(10))
        cluster.log = [batch(0, 8), batch(8, 4, epoch=1)]
        eventually(lambda: (one.poll(0.05), one.position(T0) == 12)[1], within_s=30)


@pytest.mark.behaviour(52)
@pytest.mark.parametrize("reset", ["none", "earliest"])
def test_truncation_is_found_from_the_epoch_of_the_commit(cluster: ScriptedCluster, reset: str) -> None:
    """Offset 7 was committed in epoch 2; the leader of epoch 3 has records of that epoch below 5 only."""
    cluster.leader_epoch, cluster.committed_epoch = 3, 2
    cluster.log = [batch(0, 5, epoch=2), batch(5, 5, epoch=3)]
    asked: list[tuple[int, int]] = []

    def end_of_epoch(message: Any, version: int) -> Any:
        row = message.topics[0].partitions[0]
        asked.append((row.leader_epoch, row.current_leader_epoch))
        end = {"error_code": 0, "partition": 0, "leader_epoch": 2, "end_offset": 5}
        return {"throttle_time": 0, "topics": [{"topic": "t", "partitions": [end]}]}

    cluster.brokers[1].answers[OFFSET_FOR_LEADER_EPOCH] = end_of_epoch
    with make(cluster, auto_offset_reset=reset, group_id="g", enable_auto_commit=False) as one:
        if reset == "none":
            with pytest.raises(LogTruncated) as told:
                one.poll(20)
            assert (told.value.offset, told.value.divergence_offset) == (7, 5)
        else:
            assert read(one, 5) == list(range(5, 10))
    assert set(asked) == {(2, 3)}


def test_polls_wait_for_committed_offsets_however_long(cluster: ScriptedCluster) -> None:
    """The coordinator loads for longer than a call may take: as in Java, no poll raises, and none begins elsewhere.
    Who asks for the position is told what it waits for."""
    loaded = threading.Event()
    asked = 0

    def load(message: Any, version: int) -> Any:
        nonlocal asked
        asked += 1
        if loaded.is_set():
            return cluster.brokers[1].answer_9(message, version)
        code = ErrorCode.coordinator_load_in_progress.value
        group = {"group_id": "g", "topics": [], "error_code": code}
        return {"throttle_time": 0, "topics": [], "error_code": code, "groups": [group]}

    cluster.brokers[1].answers[OFFSET_FETCH] = load
    with make(
        cluster, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, default_api_timeout_ms=60,
        request_timeout_ms=50,
    ) as one:  # fmt: skip
        eventually(lambda: (one.poll(0.02), asked > 5)[1])
        with pytest.raises(RequestTimedOut, match=r"position of t-0 was not found within 60 ms \(committed offsets: "):
            one.position(T0)
        loaded.set()
        assert read(one, 23) == list(range(7, 30))


@pytest.mark.behaviour(52)
def test_a_leader_older_than_the_commit_is_none(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch 1 was committed at offset 7. Broker 1 still takes itself for the leader, of epoch 0; its log
    ends at 5: out of range there, which must not begin the partition anew. Broker 2 knows better, after a while."""
    cluster.committed_epoch = 1
    fetched, knows = [], threading.Event()

    def old(message: Any, version: int) -> Any:
        cluster.leader, cluster.leader_epoch = 1, 0
        return cluster.metadata(message)

    def new(message: Any, version: int) -> Any:
        cluster.leader, cluster.leader_epoch = (2, 1) if knows.is_set() else (1, 0)
        return cluster.metadata(message)

    def at_the_old(message: Any, version: int) -> Any:
        fetched.append(message)
        return fetch_reply(cluster, error=ErrorCode.offset_out_of_range)

    def at_the_new(message: Any, version: int) -> Any:
        cluster.leader = 2
        return cluster.brokers[2].answer_1(message, version)

    cluster.brokers[1].answers |= {METADATA: old, FETCH: at_the_old}
    cluster.brokers[2].answers |= {METADATA: new, FETCH: at_the_new}
    with make(cluster, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as one:
        one.pause([T0])
        before = cluster.brokers[1].count(METADATA)
        assert one.position(T0) == 7
        one.poll(0.02)
        one.resume([T0])
        eventually(lambda: (one.poll(0.02), cluster.brokers[1].count(METADATA) > before + 3)[1])
        assert cluster.brokers[2].count(METADATA)
        knows.set()
        assert read(one, 23) == list(range(7, 30))
        assert not fetched
    cluster.brokers[1].answers.clear()
    cluster.brokers[2].answers.clear()
    cluster.leader = 1
    # A topic made anew has epochs of its own: so it is not waited for without end.
    monkeypatch.setattr("odradek.client.consumer.position_lookups._DEPOSED_GRACE_S", 0.2)
    cluster.committed_epoch = 5
    with make(cluster, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as one:
        assert read(one, 23) == list(range(7, 30))
        monkeypatch.setattr("odradek.client.consumer.position_lookups._DEPOSED_GRACE_S", 1e9)
        one.assign([])
        one.assign([T0])  # who has waited in vain waits no more
        assert read(one, 23) == list(range(7, 30))


@pytest.mark.claim(56)
def test_a_moved_partition_keeps_its_commit(cluster: ScriptedCluster) -> None:
    cluster.leader = 2  # whereas the coordinator, which knows the commit, is broker 1
    with make(cluster, auto_offset_reset="none", group_id="g", enable_auto_commit=False) as one:
        assert read(one, 23) == list(range(7, 30))
        cluster.leader = 1
        cluster.log.append(batch(30, 5))
        assert read(one, 5) == list(range(30, 35))


@pytest.mark.claim(30, 32, 34)
def test_reading_waits_for_a_sync_commit_and_not_for_async_ones(
    cluster: ScriptedCluster,
) -> None:
    """The broker holds its answers back. Meanwhile all records are read and committed asynchronously, one by one; a
    synchronous commit keeps its caller until the answer comes."""
    answers = threading.Event()

    def held_back(message: Any, version: int) -> Any:
        answers.wait(30)
        rows = [{"partition_index": 0, "error_code": 0}]
        return {"throttle_time": 0, "topics": [{"name": "t", "partitions": rows}]}

    cluster.brokers[1].answers[OFFSET_COMMIT] = held_back
    told: list[int] = []
    with make(cluster, group_id="g", enable_auto_commit=False, max_poll_records=1) as one:
        one.seek(T0, 0)
        for offset in range(30):
            assert read(one, 1) == [offset]
            one.commit_async({T0: offset + 1}, lambda offsets, error: told.append(offsets[T0].offset))
        assert told == []
        waits = threading.Thread(target=one.commit, args=({T0: 30},))
        waits.start()
        eventually(lambda: one._owner is not None)
        assert waits.is_alive()
        with pytest.raises(IllegalState):
            one.poll(0)
        answers.set()
        waits.join(30)
        assert told == list(range(1, 31))  # answered before the synchronous one, in their order
    assert cluster.brokers[1].count(OFFSET_COMMIT) == 31


def test_a_commit_waits_for_those_that_wait_for_the_coordinator(cluster: ScriptedCluster) -> None:
    """The second is asked for while the first looks for the coordinator, the third when that is known."""
    answers = threading.Event()
    asked: list[int] = []

    def held_back(message: Any, version: int) -> Any:
        asked.append(message.topics[0].partitions[0].committed_offset)
        answers.wait(30)
        rows = [{"partition_index": 0, "error_code": 0}]
        return {"throttle_time": 0, "topics": [{"name": "t", "partitions": rows}]}

    cluster.brokers[1].answers[OFFSET_COMMIT] = held_back
    with make(cluster, group_id="g", enable_auto_commit=False) as one:
        one.commit_async({T0: 1})
        one.commit_async({T0: 2})
        eventually(lambda: bool(asked))
        one.commit_async({T0: 3})
        answers.set()
        one.commit({T0: 4})
    assert asked == [1, 2, 3, 4]


@pytest.mark.parametrize("size", [1, 20_000])
def test_a_corrupt_batch_is_raised_again_and_never_passed_over(cluster: ScriptedCluster, size: int) -> None:
    """Checksums of much are compared where it is received, those of little where it is decoded."""
    cluster.log = [
        (first + 9, encode_batch([SimpleRecord(None, b"v" * size)] * 10, now_ms=1, base_offset=first))
        for first in (0, 10, 20)
    ]
    last, data = cluster.log[1]
    cluster.log[1] = (last, data[:-2] + b"w" + data[-1:])  # in a value: nothing but the checksum tells
    with make(cluster) as one:
        assert read(one, 10) == list(range(10))
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                eventually(lambda: one.poll(0.2), within_s=30)
        assert one.position(T0) == 10
        one.seek(T0, 20)
        assert read(one, 10) == list(range(20, 30))


def in_batches_of_a_thousand(count: int, codec: str) -> tuple[list[bytes], list[tuple[int, bytes]]]:
    """Values, and a log that holds them, each batch above what is worth decoding ahead."""
    sent = [random.Random(n).randbytes(100) + b"%d" % n * 10 for n in range(count)]
    log = [
        (first + 999, encode_batch([SimpleRecord(b"k", value) for value in sent[first : first + 1000]], now_ms=1,
                                   base_offset=first, compression=codec))
        for first in range(0, count, 1000)
    ]  # fmt: skip
    assert min(len(data) for _, data in log) > 1 << 16
    return sent, log


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, bool]]:
    """Where chunks begin that were decoded ahead, and whether the client's loop did it."""
    found: set[tuple[int, bool]] = set()
    decode = Chunk.decode_ahead

    def decode_and_tell(chunk: Chunk) -> None:
        found.add((chunk.start, threading.current_thread().name == "odradek-client"))
        decode(chunk)

    monkeypatch.setattr(Chunk, "decode_ahead", decode_and_tell)
    return found


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_what_was_decoded_ahead_is_what_was_sent(
    cluster: ScriptedCluster, codec: str, helped: set[tuple[int, bool]]
) -> None:
    """More than may be ready ahead, taken in pieces and kept, by a caller who lets the loop get ahead."""
    sent, cluster.log = in_batches_of_a_thousand(12_000, codec)
    kept: list[Any] = []
    with make(cluster, max_poll_records=700, group_id=None, enable_auto_commit=False) as one:
        one.seek(T0, 0)
        eventually(lambda: one.poll(0) and len(helped) > 2, within_s=30)
        one.seek(T0, 0)

        def all_of_it() -> bool:
            kept.extend(part for parts in one.poll(0.2).values() for part in parts)
            return sum(part.num_rows for part in kept) >= len(sent)

        eventually(all_of_it, within_s=30, every_s=0)
    assert {on_loop for _, on_loop in helped} == {True}
    assert [value for part in kept for value in part.column("value").to_pylist()] == sent


def test_on_the_users_loop_a_thread_decodes_ahead(cluster: ScriptedCluster, helped: set[tuple[int, bool]]) -> None:
    sent, cluster.log = in_batches_of_a_thousand(12_000, "lz4")

    async def go() -> list[bytes]:
        kept: list[Any] = []
        async with odradek.aio.Consumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", max_poll_records=700
        ) as one:
            await one.assign([T0])
            await one.poll(10)
            while len(helped) <= 2:
                await one.poll(0)
                await asyncio.sleep(0.01)
            await one.seek(T0, 0)
            while sum(part.num_rows for part in kept) < len(sent):
                kept += (await one.poll(10)).record_batches()
        return [value for part in kept for value in part.column("value").to_pylist()]

    assert asyncio.run(go()) == sent
    assert {on_loop for _, on_loop in helped} == {False}


def test_read_committed_leaves_out_what_was_aborted(cluster: ScriptedCluster) -> None:
    data = b"".join(
        [
            batch(0, 2, producer_id=9, transactional=True)[1],
            batch(2, 1)[1],
            batch(3, 1, producer_id=9, transactional=True, control=True)[1],
        ]
    )

    def aborted(message: Any, version: int) -> Any:
        assert message.isolation_level == 1
        wanted = message.topics[0].partitions[0].fetch_offset
        reply = fetch_reply(cluster, data if wanted < 4 else b"")
        reply["responses"][0]["partitions"][0]["aborted_transactions"] = [{"producer_id": 9, "first_offset": 0}]
        return reply

    cluster.brokers[1].answers[FETCH] = aborted
    with make(cluster, isolation_level="read_committed") as one:
        assert read(one, 1) == [2]
        eventually(lambda: (one.poll(0.02), one.position(T0) == 4)[1])


def test_a_nearer_follower_is_read_from(cluster: ScriptedCluster) -> None:
    leader, nearer = cluster.brokers[1], cluster.brokers[2]

    def from_follower(message: Any, version: int) -> Any:
        wanted = message.topics[0].partitions[0].fetch_offset
        found = [data for last, data in cluster.log if last >= wanted]
        return fetch_reply(cluster, found[0] if found else b"")

    leader.answers[FETCH] = lambda message, version: (
        fetch_reply(cluster, preferred=2) if message.rack_id == "near" else leader.answer_1(message, version)
    )
    nearer.answers[FETCH] = from_follower
    with make(cluster, client_rack="near") as one:
        assert read(one, 30) == list(range(30))
    assert leader.count(FETCH) == 1


def test_a_nearer_follower_that_is_new_to_the_client_is_looked_up(cluster: ScriptedCluster) -> None:
    """The leader names a broker that was away when the cluster was looked at: that is no reason to ask it for ever."""
    leader, nearer = cluster.brokers[1], cluster.brokers[2]

    def metadata(message: Any, version: int) -> Any:
        reply = cluster.metadata(message)
        if not leader.count(FETCH):
            reply["brokers"] = [row for row in reply["brokers"] if row["node_id"] == 1]
        return reply

    leader.answers[METADATA] = nearer.answers[METADATA] = metadata
    leader.answers[FETCH] = lambda message, version: fetch_reply(cluster, preferred=2)
    nearer.answers[FETCH] = lambda message, version: serve(cluster, message)
    with make(cluster, client_rack="near") as one:
        assert read(one, 30) == list(range(30))
    assert leader.count(FETCH) == 1


def test_a_follower_that_lacks_the_offset_sends_back_to_the_leader(cluster: ScriptedCluster) -> None:
    leader, nearer = cluster.brokers[1], cluster.brokers[2]
    first = [True]

    def once(message: Any, version: int) -> Any:
        if first:
            first.clear()
            return fetch_reply(cluster, preferred=2)
        return leader.answer_1(message, version)

    leader.answers[FETCH] = once
    nearer.answers[FETCH] = lambda message, version: fetch_reply(cluster, error=ErrorCode.offset_out_of_range)
    with make(cluster, client_rack="near") as one:
        assert read(one, 30) == list(range(30))


def test_a_follower_that_answers_late_sends_back_to_the_leader_too(cluster: ScriptedCluster) -> None:
    """It does not count as preferred any more by then, and the leader was asked: that its log is shorter says nothing
    of the partition."""
    leader, nearer = cluster.brokers[1], cluster.brokers[2]
    asked: list[int] = []
    asked_again, answered = threading.Event(), threading.Event()

    def by_turns(message: Any, version: int) -> Any:
        asked.append(1)
        if len(asked) == 1:
            return fetch_reply(cluster, cluster.log[0][1])
        if len(asked) == 2:
            return fetch_reply(cluster, preferred=2)
        asked_again.set()
        assert answered.wait(20)
        time.sleep(0.1)  # so that the other one is read first
        return leader.answer_1(message, version)

    def late(message: Any, version: int) -> Any:
        assert asked_again.wait(20)
        answered.set()
        return fetch_reply(cluster, error=ErrorCode.offset_out_of_range)

    leader.answers[FETCH] = by_turns
    nearer.answers[FETCH] = late
    seen: list[int] = []
    with make(cluster, client_rack="near", metadata_max_age_ms=50) as one:
        until = time.monotonic() + 20
        while len(seen) < 30 and time.monotonic() < until:
            seen += [record.offset for record in one.poll(0.02).records()]  # each looks whom to ask next
    assert seen == list(range(30))


def test_the_nearest_replica_is_looked_for_again_after_a_while(cluster: ScriptedCluster) -> None:
    """A preferred replica counts for ``metadata_max_age_ms``; then the leader is asked whether it still is."""
    leader, nearer = cluster.brokers[1], cluster.brokers[2]
    leader.answers[FETCH] = lambda message, version: fetch_reply(cluster, preferred=2)
    nearer.answers[FETCH] = leader_like = lambda message, version: serve(cluster, message)
    with make(cluster, client_rack="near", metadata_max_age_ms=50) as one:
        assert read(one, 30) == list(range(30))
        asked = leader.count(FETCH)
        eventually(lambda: (one.poll(0.02), leader.count(FETCH) > asked + 1)[1])
        leader.answers[FETCH] = leader_like  # the follower is gone, or no nearer any more
        nearer.stop()
        cluster.log.append(batch(30, 5))
        assert read(one, 5) == list(range(30, 35))


def serve(cluster: ScriptedCluster, message: Any) -> Any:
    """The log from the asked offset on, whoever leads."""
    wanted = message.topics[0].partitions[0].fetch_offset if message.topics else cluster.end_offset
    found = [data for last, data in cluster.log if last >= wanted]
    return fetch_reply(cluster, found[0] if found else b"")


@pytest.mark.parametrize("code", ["not_leader_or_follower", "unknown_topic_id", "fenced_leader_epoch"])
def test_a_follower_that_refuses_sends_back_to_the_leader(cluster: ScriptedCluster, code: str) -> None:
    leader, nearer = cluster.brokers[1], cluster.brokers[2]
    told: list[bool] = []

    def once(message: Any, version: int) -> Any:
        if not told:
            told.append(True)
            return fetch_reply(cluster, preferred=2)
        return leader.answer_1(message, version)

    leader.answers[FETCH] = once
    nearer.answers[FETCH] = lambda message, version: fetch_reply(cluster, error=ErrorCode[code])
    with make(cluster, client_rack="near") as one:
        assert read(one, 30) == list(range(30))
    assert nearer.count(FETCH) == 1


@pytest.mark.claim(10, 45)
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_in_pieces_and_little_memory(
    bootstrap: str, admin: Admin, publish: Any, topic: str, codec: str
) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    publish(topic, {0: 700, 1: 700}, **{"compression.type": codec, "batch.num.messages": 100})
    small = {"max_partition_fetch_bytes": 2_000, "fetch_max_bytes": 4_000, "buffer_memory": 8_000}
    with Consumer(bootstrap, max_poll_records=33, **(QUICK | small)) as one:
        one.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        found: dict[int, list[int]] = {0: [], 1: []}

        def more() -> bool:
            polled = one.poll(0.5)
            assert polled.num_rows <= 33
            for record in polled.records():
                assert record.value == f"{record.partition}:{record.offset}".encode()
                found[record.partition].append(record.offset)
            return sum(map(len, found.values())) == 1_400

        eventually(more, within_s=30)
    assert found == {0: list(range(700)), 1: list(range(700))}


# --- what is told, and what is waited for --------------------------------------------------------------------------


def test_a_topic_that_may_not_be_read_is_told_by_each_poll(cluster: ScriptedCluster) -> None:
    """As Java's TopicAuthorizationException; one who is let in later reads on."""
    broker, refused = cluster.brokers[1], fetch_reply(cluster, error=ErrorCode.topic_authorization_failed)
    broker.answers[FETCH] = lambda message, version: refused
    with make(cluster) as one:
        for _ in range(2):
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: t-0"):
                eventually(lambda: one.poll(0.2), within_s=30)
        del broker.answers[FETCH]
        found: list[int] = []
        with suppress(KafkaError):  # one refusal may have come meanwhile
            found += [record.offset for record in one.poll(0.2).records()]
        assert found + read(one, 30 - len(found)) == list(range(30))


def test_a_broker_that_we_cannot_fetch_from_is_told_of(cluster: ScriptedCluster) -> None:
    """Before, a poll came back empty for ever."""
    cluster.brokers[1].ranges[FETCH] = (99, 99)
    with make(cluster) as one, pytest.raises(UnsupportedVersion, match="only versions 99 to 99 of fetch"):
        eventually(lambda: one.poll(0.2), within_s=30)


def test_an_error_that_the_broker_cannot_name_is_tried_again(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker = cluster.brokers[1]

    def answer(message: Any, version: int) -> Any:
        if broker.count(FETCH) % 2:
            return fetch_reply(cluster, error=ErrorCode.unknown_server_error)
        return broker.answer_1(message, version)

    broker.answers[FETCH] = answer
    with make(cluster) as one:
        assert read(one, 30) == list(range(30))
    assert "fetching t-0 at offset 10: UNKNOWN_SERVER_ERROR" in caplog.text


@pytest.mark.parametrize("columns", [None, ("offset", "key", "headers")])
def test_an_empty_poll_is_a_table_without_rows(cluster: ScriptedCluster, columns: tuple[str, ...] | None) -> None:
    with make(cluster, max_poll_records=10, **({} if columns is None else {"columns": columns})) as one:
        full = eventually(lambda: one.poll(0.2), within_s=30).table()
        read(one, 20)
        empty = one.poll(0).table()
    assert (full.num_rows, empty.num_rows) == (10, 0)
    assert empty.schema == full.schema

    async def of_a_loop() -> pa.Table:
        async with odradek.aio.Consumer(cluster.bootstrap, columns=columns or DEFAULT_COLUMNS) as one:
            await one.assign([T0])
            return (await one.poll(0)).table()

    assert asyncio.run(of_a_loop()).schema == full.schema
    assert Polled().table().column_names == list(DEFAULT_COLUMNS)


def test_looking_for_new_topics_rests_between_two_looks_and_outlives_any_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks: list[float] = []

    async def go() -> None:
        settings = {"bootstrap_servers": "127.0.0.1:1", "metadata_max_age_ms": 0, "retry_backoff_ms": 40}
        engine = ConsumerEngine(ConsumerConfig.of(settings), _call)

        async def match() -> None:
            looks.append(time.monotonic())
            raise RuntimeError("an assignor of the user's")

        engine._match = match  # type: ignore[method-assign]  # one that fails
        engine._watch_task = asyncio.ensure_future(engine._watch())
        while len(looks) < 4:
            await asyncio.sleep(0.001)
            assert not engine._watch_task.done()
        await engine.close(1_000)

    asyncio.run(go())
    assert looks[3] - looks[0] >= 0.11
    assert "an assignor of the user's" in caplog.text


def test_a_closed_consumer_is_closed_for_all_calls(cluster: ScriptedCluster) -> None:
    one = make(cluster)
    one.close()
    calls: list[Callable[[], object]] = [
        one.assignment, one.subscription, one.paused, lambda: one.pause([]), lambda: one.resume([]),
        lambda: one.poll(0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(IllegalState, match="closed"):
            call()


def test_lookups_take_as_long_as_they_may(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.answers[LIST_OFFSETS] = broker.answers[OFFSET_FETCH] = lambda message, version: b""  # silence
    with Consumer(cluster.bootstrap, group_id="g", **QUICK) as one:
        calls: list[Callable[[float], object]] = [
            lambda timeout: one.committed([T0], timeout),
            lambda timeout: one.beginning_offsets([T0], timeout=timeout),
            lambda timeout: one.end_offsets([T0], timeout=timeout),
            lambda timeout: one.offsets_for_times({T0: 0}, timeout=timeout),
        ]
        for call in calls:
            with pytest.raises(RequestTimedOut, match="within 150 ms"):
                call(0.15)
            with pytest.raises(ValueError, match="timeout: expected seconds, at least 0"):
                call(-1)

    async def go() -> None:
        async with odradek.aio.Consumer(cluster.bootstrap, group_id="g", **QUICK) as one:
            calls: list[Awaitable[object]] = [
                one.committed([T0], 0.15), one.beginning_offsets([T0], 0.15), one.end_offsets([T0], 0.15),
                one.offsets_for_times({T0: 0}, 0.15),
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(RequestTimedOut, match="within 150 ms"):
                    await call

    asyncio.run(go())


_MEMBER = """
import sys
from odradek import Consumer
bootstrap, group, topic = sys.argv[1:]
one = Consumer(bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
               max_poll_records=5, session_timeout_ms=6_000, heartbeat_interval_ms=500)
one.subscribe([topic])
done = 0
while True:
    for record in one.poll(0.2).records():
        print(record.partition, record.offset, flush=True)
        done += 1
        if done == 10:
            one.commit({record.topic_partition: record.next_offset})
"""


@pytest.mark.claim(35, 38, 70)
def test_a_killed_member_is_replaced_and_nothing_is_skipped(
    bootstrap: str, admin: Admin, publish: Any, topic: str, group: str
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 30})
    victim = subprocess.Popen(
        [sys.executable, "-c", _MEMBER, bootstrap, group, topic], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    seen = [int(victim.stdout.readline().split()[1]) for _ in range(15)]
    victim.kill()
    victim.wait()
    victim.stdout.close()
    assert seen == list(range(15))
    with Consumer(bootstrap, group_id=group, **QUICK) as heir:
        heir.subscribe([topic])
        rest = eventually(lambda: [r.offset for r in heir.poll(0.5).records()], within_s=60)
        assert rest[0] == 10  # what was read after the commit comes again, nothing is left out
        assert rest == list(range(10, 10 + len(rest)))
