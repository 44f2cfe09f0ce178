"""``odradek.Consumer`` after leader changes, lost records, broken replies and errors, and after a member is killed."""

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
from support.insides import engine_of
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
from odradek.batches.kernels.kernel_loader import wait_for_kernels
from odradek.client import NewTopic
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.consumer.fetch_buffer import CompletedFetch
from odradek.client.consumer.records import Polled
from odradek.client.errors import CorruptRecord, KafkaError, LogTruncated, RequestTimedOut, UnsupportedVersion
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.errors import IllegalState
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


def test_the_consumer_follows_a_moved_leader_without_loss(cluster: ScriptedCluster) -> None:
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


def test_records_lost_by_an_unclean_election_are_reported(cluster: ScriptedCluster) -> None:
    cluster.fall_over()
    with make(cluster, auto_offset_reset="none") as one:
        one.seek(T0, 0)
        found: list[int] = []

        def poll_on() -> bool:
            found.extend(r.offset for r in one.poll(0.2).records())
            return False

        with pytest.raises(LogTruncated) as caught:
            eventually(poll_on, within_s=30)
        assert found == list(range(10))
        assert (caught.value.offset, caught.value.divergence_offset) == (10, 8)


def test_with_a_reset_policy_reading_continues_at_the_divergence_offset(cluster: ScriptedCluster) -> None:
    cluster.fall_over()
    end_leadership = cluster.brokers[1].answers[FETCH]

    def diverge(message: Any, version: int) -> Any:
        reply = end_leadership(message, version)
        cluster.log = [batch(0, 8), batch(8, 4, epoch=1)]  # not later: the next fetch may come before the poll returns
        return reply

    cluster.brokers[1].answers[FETCH] = diverge
    with make(cluster) as one:
        assert read(one, 10)[:10] == list(range(10))
        eventually(lambda: (one.poll(0.05), one.position(T0) == 12)[1], within_s=30)


@pytest.mark.behaviour(52, part="c")
@pytest.mark.parametrize("reset", ["none", "earliest"])
def test_truncation_is_noticed_from_the_leader_epoch_of_the_commit(cluster: ScriptedCluster, reset: str) -> None:
    """Offset 7 was committed in epoch 2. The leader of epoch 3 has records of epoch 2 only below offset 5."""
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
            with pytest.raises(LogTruncated) as caught:
                one.poll(20)
            assert (caught.value.offset, caught.value.divergence_offset) == (7, 5)
        else:
            assert read(one, 5) == list(range(5, 10))
    assert set(asked) == {(2, 3)}


def test_polls_wait_for_committed_offsets_without_a_limit(cluster: ScriptedCluster) -> None:
    """The coordinator loads for longer than the timeout of a call. As in Java, no poll raises or uses the reset
    policy. The error of ``position`` names the reason for the wait."""
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


@pytest.mark.behaviour(52, part=True)
def test_a_leader_with_an_older_epoch_than_the_commit_is_not_used(cluster: ScriptedCluster) -> None:
    """Offset 7 was committed in epoch 1. Broker 1 still acts as the leader of epoch 0. A fetch there would get
    OFFSET_OUT_OF_RANGE and cause a reset, so the consumer must not send it. Broker 2 reports epoch 1 after a while."""
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
    # A recreated topic has its own epochs, so the wait for a newer leader has a limit.
    cluster.committed_epoch = 5
    with make(cluster, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as one:
        lookups = engine_of(one).fetcher.lookups
        lookups.former_leader_grace_s = 0.2
        assert read(one, 23) == list(range(7, 30))
        lookups.former_leader_grace_s = 1e9
        one.assign([])
        one.assign([T0])  # the consumer has waited once for the newer leader and does not wait again
        assert read(one, 23) == list(range(7, 30))


@pytest.mark.claim(56, part=True)
def test_a_moved_partition_keeps_its_commit(cluster: ScriptedCluster) -> None:
    cluster.leader = 2  # the coordinator, which has the commit, is broker 1
    with make(cluster, auto_offset_reset="none", group_id="g", enable_auto_commit=False) as one:
        assert read(one, 23) == list(range(7, 30))
        cluster.leader = 1
        cluster.log.append(batch(30, 5))
        assert read(one, 5) == list(range(30, 35))


@pytest.mark.claim(30, 32)
@pytest.mark.claim(34, part="a")
def test_reading_waits_for_a_sync_commit_but_not_for_async_commits(
    cluster: ScriptedCluster,
) -> None:
    """The broker delays its replies. Meanwhile the consumer reads all records and commits each one asynchronously. A
    synchronous commit blocks its caller until the reply."""
    answers = threading.Event()

    def held_back(message: Any, version: int) -> Any:
        answers.wait(30)
        rows = [{"partition_index": 0, "error_code": 0}]
        return {"throttle_time": 0, "topics": [{"name": "t", "partitions": rows}]}

    cluster.brokers[1].answers[OFFSET_COMMIT] = held_back
    committed: list[int] = []
    with make(cluster, group_id="g", enable_auto_commit=False, max_poll_records=1) as one:
        one.seek(T0, 0)
        for offset in range(30):
            assert read(one, 1) == [offset]
            one.commit_async({T0: offset + 1}, lambda offsets, error: committed.append(offsets[T0].offset))
        assert committed == []
        waits = threading.Thread(target=one.commit, args=({T0: 30},))
        waits.start()
        eventually(lambda: one._owner is not None)
        assert waits.is_alive()
        with pytest.raises(IllegalState):
            one.poll(0)
        answers.set()
        waits.join(30)
        assert committed == list(range(1, 31))  # the callbacks ran in order, before ``commit`` returned
    assert cluster.brokers[1].count(OFFSET_COMMIT) == 31


def test_commits_stay_in_order_while_the_coordinator_is_looked_up(cluster: ScriptedCluster) -> None:
    """The second commit begins while the first one looks up the coordinator, the third one begins after this lookup."""
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
def test_a_corrupt_batch_raises_in_each_poll_and_is_never_skipped(cluster: ScriptedCluster, size: int) -> None:
    """The consumer checks large batches when it receives them, and small batches when it decodes them."""
    cluster.log = [
        (first + 9, encode_batch([SimpleRecord(None, b"v" * size)] * 10, now_ms=1, base_offset=first))
        for first in (0, 10, 20)
    ]
    last, data = cluster.log[1]
    cluster.log[1] = (last, data[:-2] + b"w" + data[-1:])  # a changed value: only the checksum shows the damage
    with make(cluster) as one:
        assert read(one, 10) == list(range(10))
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=r"t-0 offset 10: .*CRC.* Seek to offset 20, behind it, to read on"):
                eventually(lambda: one.poll(0.2), within_s=30)
        assert one.position(T0) == 10
        one.seek(T0, 20)
        assert read(one, 10) == list(range(20, 30))


def test_a_wrong_header_is_named_and_read_past(cluster: ScriptedCluster) -> None:
    last, data = cluster.log[1]
    cluster.log[1] = (last, data[:16] + b"\x09" + data[17:])  # the magic byte
    with make(cluster) as one:
        assert read(one, 10) == list(range(10))
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=r"t-0 offset 10: .*Seek to an offset behind it to read on"):
                eventually(lambda: one.poll(0.2), within_s=30)
        one.seek(T0, 20)
        assert read(one, 10) == list(range(20, 30))


def in_batches_of_a_thousand(count: int, codec: str) -> tuple[list[bytes], list[tuple[int, bytes]]]:
    """Returns values and a log with them. Each batch is large enough to be decoded ahead."""
    sent = [random.Random(n).randbytes(100) + b"%d" % n * 10 for n in range(count)]
    log = [
        (first + 999, encode_batch([SimpleRecord(b"k", value) for value in sent[first : first + 1000]], now_ms=1,
                                   base_offset=first, compression=codec))
        for first in range(0, count, 1000)
    ]  # fmt: skip
    assert min(len(data) for _, data in log) > 1 << 16
    return sent, log


@pytest.fixture
def decoded_ahead(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, bool]]:
    """The start offsets of the completed fetches that were decoded ahead, and whether the client's loop decoded them.

    The plain decoder, which reads until the kernels are loaded, decodes nothing ahead."""
    assert wait_for_kernels(60)
    found: set[tuple[int, bool]] = set()
    decode = CompletedFetch.decode_ahead

    def decode_and_record(fetch: CompletedFetch) -> None:
        found.add((fetch.start, threading.current_thread().name == "odradek-client"))
        decode(fetch)

    monkeypatch.setattr(CompletedFetch, "decode_ahead", decode_and_record)
    return found


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_values_decoded_ahead_equal_the_sent_values(
    cluster: ScriptedCluster, codec: str, decoded_ahead: set[tuple[int, bool]]
) -> None:
    """The log has more values than may be decoded ahead. The caller polls until the loop has decoded fetches ahead.
    Then the caller seeks to the start and keeps all records."""
    sent, cluster.log = in_batches_of_a_thousand(12_000, codec)
    kept: list[Any] = []
    with make(cluster, max_poll_records=700, group_id=None, enable_auto_commit=False) as one:
        one.seek(T0, 0)
        eventually(lambda: one.poll(0) and len(decoded_ahead) > 2, within_s=30)
        one.seek(T0, 0)

        def all_of_it() -> bool:
            kept.extend(part for parts in one.poll(0.2).values() for part in parts)
            return sum(part.num_rows for part in kept) >= len(sent)

        eventually(all_of_it, within_s=30, every_s=0)
    assert {on_loop for _, on_loop in decoded_ahead} == {True}
    assert [value for part in kept for value in part.column("value").to_pylist()] == sent


def test_for_an_async_consumer_a_thread_decodes_ahead(
    cluster: ScriptedCluster, decoded_ahead: set[tuple[int, bool]]
) -> None:
    sent, cluster.log = in_batches_of_a_thousand(12_000, "lz4")

    async def go() -> list[bytes]:
        kept: list[Any] = []
        async with odradek.aio.Consumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", max_poll_records=700
        ) as one:
            await one.assign([T0])
            await one.poll(10)
            while len(decoded_ahead) <= 2:
                await one.poll(0)
                await asyncio.sleep(0.01)
            await one.seek(T0, 0)
            while sum(part.num_rows for part in kept) < len(sent):
                kept += (await one.poll(10)).record_batches()
        return [value for part in kept for value in part.column("value").to_pylist()]

    assert asyncio.run(go()) == sent
    assert {on_loop for _, on_loop in decoded_ahead} == {False}


def test_read_committed_skips_aborted_records(cluster: ScriptedCluster) -> None:
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


def test_the_consumer_reads_from_a_nearer_follower(cluster: ScriptedCluster) -> None:
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


def test_an_unknown_preferred_replica_is_looked_up(cluster: ScriptedCluster) -> None:
    """The leader names a broker that the client's metadata lacks. The client must not ask the leader forever."""
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


def test_the_consumer_returns_to_the_leader_if_a_follower_lacks_the_offset(cluster: ScriptedCluster) -> None:
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


def test_the_consumer_returns_to_the_leader_although_the_follower_replies_late(cluster: ScriptedCluster) -> None:
    """When the follower's reply arrives, the follower is no longer the preferred replica, and the client has sent a
    fetch to the leader. The follower's log is shorter, but this does not prove that the offset is out of range."""
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
        time.sleep(0.1)  # so that the client reads the follower's reply first
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
            seen += [record.offset for record in one.poll(0.02).records()]  # each poll chooses the broker to ask next
    assert seen == list(range(30))


def test_a_preferred_replica_expires(cluster: ScriptedCluster) -> None:
    """A preferred replica is valid for ``metadata_max_age_ms``. Then the client asks the leader again."""
    leader, nearer = cluster.brokers[1], cluster.brokers[2]
    leader.answers[FETCH] = lambda message, version: fetch_reply(cluster, preferred=2)
    nearer.answers[FETCH] = leader_like = lambda message, version: serve(cluster, message)
    with make(cluster, client_rack="near", metadata_max_age_ms=50) as one:
        assert read(one, 30) == list(range(30))
        asked = leader.count(FETCH)
        eventually(lambda: (one.poll(0.02), leader.count(FETCH) > asked + 1)[1])
        leader.answers[FETCH] = leader_like  # the leader no longer names the follower, which stops
        nearer.stop()
        cluster.log.append(batch(30, 5))
        assert read(one, 5) == list(range(30, 35))


def serve(cluster: ScriptedCluster, message: Any) -> Any:
    """A fetch reply with the batch at the requested offset, from the leader or a follower. Empty at the log end."""
    wanted = message.topics[0].partitions[0].fetch_offset if message.topics else cluster.end_offset
    found = [data for last, data in cluster.log if last >= wanted]
    return fetch_reply(cluster, found[0] if found else b"")


@pytest.mark.parametrize("code", ["not_leader_or_follower", "unknown_topic_id", "fenced_leader_epoch"])
def test_the_consumer_returns_to_the_leader_if_a_follower_refuses(cluster: ScriptedCluster, code: str) -> None:
    leader, nearer = cluster.brokers[1], cluster.brokers[2]
    redirected: list[bool] = []

    def once(message: Any, version: int) -> Any:
        if not redirected:
            redirected.append(True)
            return fetch_reply(cluster, preferred=2)
        return leader.answer_1(message, version)

    leader.answers[FETCH] = once
    nearer.answers[FETCH] = lambda message, version: fetch_reply(cluster, error=ErrorCode[code])
    with make(cluster, client_rack="near") as one:
        assert read(one, 30) == list(range(30))
    assert nearer.count(FETCH) == 1


@pytest.mark.claim(10, 45, part=True)
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_are_read_in_pieces_with_little_memory(
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


# --- errors and timeouts -------------------------------------------------------------------------------------------


def test_each_poll_raises_for_a_topic_that_may_not_be_read(cluster: ScriptedCluster) -> None:
    """The error is like Java's TopicAuthorizationException. The consumer reads on once it has access."""
    broker, refused = cluster.brokers[1], fetch_reply(cluster, error=ErrorCode.topic_authorization_failed)
    broker.answers[FETCH] = lambda message, version: refused
    with make(cluster) as one:
        for _ in range(2):
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: t-0"):
                eventually(lambda: one.poll(0.2), within_s=30)
        del broker.answers[FETCH]
        found: list[int] = []
        with suppress(KafkaError):  # one more refusal may arrive in between
            found += [record.offset for record in one.poll(0.2).records()]
        assert found + read(one, 30 - len(found)) == list(range(30))


def test_a_broker_with_unsupported_fetch_versions_is_an_error(cluster: ScriptedCluster) -> None:
    """Without this error, polls would return no records and the caller would not know why."""
    cluster.brokers[1].ranges[FETCH] = (99, 99)
    with make(cluster) as one, pytest.raises(UnsupportedVersion, match="only versions 99 to 99 of fetch"):
        eventually(lambda: one.poll(0.2), within_s=30)


def test_an_unknown_server_error_is_retried(cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture) -> None:
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

    async def async_table() -> pa.Table:
        async with odradek.aio.Consumer(cluster.bootstrap, columns=columns or DEFAULT_COLUMNS) as one:
            await one.assign([T0])
            return (await one.poll(0)).table()

    assert asyncio.run(async_table()).schema == full.schema
    assert Polled().table().column_names == list(DEFAULT_COLUMNS)


def test_the_watch_for_new_topics_pauses_between_lookups_and_survives_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks: list[float] = []

    class FailingEngine(ConsumerEngine):
        """A step fails, as with a broken assignor."""

        async def _match(self) -> None:
            looks.append(time.monotonic())
            raise RuntimeError("the user's assignor failed")

    async def go() -> None:
        settings = {"bootstrap_servers": "127.0.0.1:1", "metadata_max_age_ms": 0, "retry_backoff_ms": 40}
        engine = FailingEngine(ConsumerConfig.of(settings), _call)
        engine.watch_task = asyncio.ensure_future(engine.watch())
        while len(looks) < 4:
            await asyncio.sleep(0.001)
            assert not engine.watch_task.done()
        await engine.close(1_000)

    asyncio.run(go())
    assert looks[3] - looks[0] >= 0.11
    assert "the user's assignor failed" in caplog.text


def test_a_closed_consumer_refuses_calls(cluster: ScriptedCluster) -> None:
    one = make(cluster)
    one.close()
    calls: list[Callable[[], object]] = [
        one.assignment, one.subscription, one.paused, lambda: one.pause([]), lambda: one.resume([]),
        lambda: one.poll(0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(IllegalState, match="closed"):
            call()


def test_lookups_keep_their_timeouts(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.answers[LIST_OFFSETS] = broker.answers[OFFSET_FETCH] = lambda message, version: b""  # no reply
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


@pytest.mark.claim(70, part="a")
@pytest.mark.claim(35, 38, part=True)
def test_a_killed_member_is_replaced_and_no_record_is_skipped(
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
        assert rest[0] == 10  # records after the commit come again; none is skipped
        assert rest == list(range(10, 10 + len(rest)))
