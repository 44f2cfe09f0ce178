"""Each record once and in order: single cases that ``test_consumer_random_faults.py`` found or could find."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.insides import engine_of
from support.simulated_cluster import NODES, ChanceCluster, simulated_cluster

from odradek import Consumer, TopicPartition
from odradek.batches.columns import COLUMNS
from odradek.client import offset_requests
from odradek.client.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster, worth_retrying
from odradek.client.config import ClientConfig
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.in_flight_fetches import InFlightFetch
from odradek.client.consumer.records import Record
from odradek.client.errors import LogTruncated
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.subscription import PartitionState, SubscriptionState
from odradek.client.metadata_wire import Metadata, TopicMetadata
from odradek.client.model import EpochEnd, ListedOffset, PartitionDescription, TopicDescription
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EARLIEST, LATEST
from odradek.wire.fetch_messages import FetchPartition
from odradek.wire.fetch_session import FetchSession

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
POLLS = 200


@contextmanager
def reading(partitions: int = 2, batches: int = 5, **settings: Any) -> Iterator[tuple[ChanceCluster, Consumer]]:
    """A consumer of a cluster without faults."""
    with simulated_cluster(1, {"t": partitions}, settings.pop("versions", {})) as cluster:
        for index in range(partitions):
            for _ in range(batches):
                cluster.append(TopicPartition("t", index))
        cluster.end_faults()
        settings = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "retry_backoff_max_ms": 10} | settings
        with Consumer(settings | {"bootstrap_servers": cluster.bootstrap}) as consumer:
            consumer.assign([TopicPartition("t", index) for index in range(partitions)])
            yield cluster, consumer


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s, "the condition stayed false"
        time.sleep(0.005)


def poll_until_offsets(consumer: Consumer, tp: TopicPartition, count: int) -> list[int]:
    """The offsets that polls return from one partition, at least ``count`` of them."""
    found: list[int] = []
    for _ in range(POLLS):
        found += [record.offset for record in consumer.poll(0.1).records() if record.topic_partition == tp]
        if len(found) >= count:
            break
    return found


@pytest.mark.claim(18, 58, part=True)
def test_an_iteration_continues_at_a_seek_in_its_loop() -> None:
    with reading(1) as (cluster, consumer):
        end = cluster.lead(FIRST).log.end
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 4:
                consumer.seek(FIRST, 1)
            if len(seen) > 4 and record.offset == end - 1:
                break
        assert seen == [0, 1, 2, 3, *range(1, end)]


def test_an_iteration_returns_no_record_of_paused_or_unassigned_partitions() -> None:
    with reading(2) as (cluster, consumer):
        ends = [cluster.lead(tp).log.end for tp in (FIRST, SECOND)]
        seen: dict[TopicPartition, list[int]] = {FIRST: [], SECOND: []}
        paused = None
        for record in consumer:
            tp = record.topic_partition
            assert tp != paused
            seen[tp].append(record.offset)
            if paused is None:
                paused = tp
                consumer.pause([tp])
            elif record.offset == ends[tp.partition] - 1:
                break
        assert paused is not None
        assert consumer.position(paused) == 1
        consumer.resume([paused])
        kept = SECOND if paused == FIRST else FIRST
        for record in consumer:
            seen[record.topic_partition].append(record.offset)
            if record.topic_partition == paused:
                consumer.assign([kept])
                consumer.seek(kept, 0)
                break
        after = next(iter(consumer))
        assert (after.topic_partition, after.offset) == (kept, 0)
        assert seen[paused] == [0, 1]


def test_an_iteration_returns_all_columns_after_a_poll_of_fewer() -> None:
    with reading(1, columns=("offset", "value"), max_poll_records=1) as (cluster, consumer):
        assert poll_until_offsets(consumer, FIRST, 1) == [0]
        record = next(iter(consumer))
        written = cluster.history[FIRST, 1][0].row
        assert (record.offset, record.key, record.value) == (1, written.key, written.value)
        assert record.timestamp_ms == written.timestamp_ms
        polled = consumer.poll(1.0)
        assert {tuple(batch.schema.names) for batch in polled.record_batches()} == {("offset", "value")}


def test_paused_partitions_leave_memory_for_others() -> None:
    with reading(2, buffer_memory=1, max_poll_records=1) as (cluster, consumer):
        log = cluster.lead(FIRST).log
        buffer = engine_of(consumer).fetcher.buffer
        consumer.pause([SECOND])
        for _ in range(POLLS):
            polled = consumer.poll(0.05)
            if polled and buffer.partitions():
                break
        consumer.pause([FIRST])
        consumer.resume([SECOND])
        end = cluster.lead(SECOND).log.end
        assert poll_until_offsets(consumer, SECOND, end) == list(range(end))
        consumer.resume([FIRST])
        position = consumer.position(FIRST)
        assert poll_until_offsets(consumer, FIRST, log.end - position) == list(range(position, log.end))


@pytest.mark.claim(96, part=True)
def test_a_partition_without_a_leader_does_not_delay_others() -> None:
    with reading(2) as (cluster, consumer):
        cluster.move(FIRST, -1)
        cluster.spread()
        consumer.seek_to_beginning()
        end = cluster.lead(SECOND).log.end
        assert poll_until_offsets(consumer, SECOND, end) == list(range(end))
        cluster.end_faults()
        assert poll_until_offsets(consumer, FIRST, 1)[0] == 0


def test_a_deleted_topic_does_not_delay_others() -> None:
    with simulated_cluster(1, {"t": 1, "u": 1}, {}) as cluster:
        for topic in ("t", "u"):
            cluster.append(TopicPartition(topic, 0))
        cluster.end_faults()
        del cluster.topics["u"]
        cluster.spread()
        settings = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "retry_backoff_max_ms": 10}
        with Consumer(settings | {"bootstrap_servers": cluster.bootstrap}) as consumer:
            consumer.assign([TopicPartition("u", 0), FIRST])
            end = cluster.lead(FIRST).log.end
            assert poll_until_offsets(consumer, FIRST, end) == list(range(end))


def test_a_fetch_session_by_names_keeps_a_recreated_topic() -> None:
    """A broker adds new topics to a session and then drops forgotten ones. By name, it would drop the new topic."""
    old, new = (FetchPartition(UUID(int=number), 5, 0, 100) for number in (1, 2))
    for by_id, forgotten in ((True, [(FIRST, UUID(int=1))]), (False, [])):
        session = FetchSession()
        session.request({FIRST: old}, by_id=by_id)
        assert session.on_reply(ErrorCode.none, 7)
        asked = session.request({FIRST: new}, by_id=by_id)
        assert [one.topic_id for one in asked.changed.values()] == [UUID(int=2)]
        assert asked.forgotten == forgotten


@pytest.mark.parametrize("versions", [{1: 12, 3: 99}, {1: 99, 3: 99}])
def test_a_topic_that_is_recreated_quickly_is_read_on(versions: dict[int, int]) -> None:
    with reading(1, batches=1, versions=versions, metadata_max_age_ms=10) as (cluster, consumer):
        end = cluster.lead(FIRST).log.end
        assert len(poll_until_offsets(consumer, FIRST, end)) == end
        cluster.make("t", 1)
        for _ in range(end + 3):
            cluster.append(FIRST)
        cluster.end_faults()
        consumer.list_topics()
        consumer.partitions_for("t")
        after = cluster.lead(FIRST).log.end
        assert poll_until_offsets(consumer, FIRST, after - end) == list(range(end, after))


def metadata(epoch: int, leader: int, topic_id: UUID | None) -> Metadata:
    """A metadata reply with the partition t-0."""
    row = PartitionDescription(0, leader, epoch)
    topic = TopicMetadata(TopicDescription("t", topic_id, False, (row,)), {0: row}, {0: time.monotonic()})
    return Metadata(controller_id=1, cluster_id="c", topics={"t": topic})


def test_a_lagging_broker_does_not_lead_back_to_the_old_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the old leader may lack records that were read. A fetch there would cause a reset."""
    now_s = 100.0
    monkeypatch.setattr("odradek.client.cluster.time.monotonic", lambda: now_s)
    for topic_id in (UUID(int=1), None):
        cluster = Cluster(ClientConfig(bootstrap_servers="127.0.0.1:1"))
        cluster.update_metadata(metadata(5, 2, topic_id), everything=False)
        cluster.forget_topics(["t"])
        assert cluster.leader(FIRST) == -1
        cluster.update_metadata(metadata(4, 1, topic_id), everything=False)
        assert (cluster.leader(FIRST), cluster.leader_epoch(FIRST)) == (2, 5)
        cluster.update_metadata(metadata(6, 3, topic_id), everything=True)
        assert (cluster.leader(FIRST), cluster.leader_epoch(FIRST)) == (3, 6)
        now_s += UNKNOWN_TOPIC_GRACE_MS / 1000
        cluster.update_metadata(metadata(0, 1, topic_id), everything=False)
        # Without topic ids, only time shows that a topic was recreated.
        assert cluster.leader(FIRST) == (3 if topic_id else 1)
        cluster.update_metadata(metadata(0, 1, UUID(int=9)), everything=False)
        assert (cluster.leader(FIRST), cluster.leader_epoch(FIRST)) == (1, 0)


def test_a_divergence_lookup_has_the_leader_epoch() -> None:
    """Without a leader epoch the broker would report no divergence. So the request has the epoch although the client
    forgot the topic."""
    asked: list[Any] = []

    class Broker:
        async def call(self, api_key: int, message: Any) -> Any:
            asked.append(message["topics"][0]["partitions"][0])
            row = SimpleNamespace(partition=0, error_code=ErrorCode.none, leader_epoch=3, end_offset=8)
            return SimpleNamespace(topics=[SimpleNamespace(topic="t", partitions=[row])])

    async def go() -> None:
        cluster = Cluster(ClientConfig(bootstrap_servers="127.0.0.1:1"))
        cluster.update_metadata(metadata(5, 2, UUID(int=1)), everything=False)

        async def connection(node_id: int) -> Any:
            cluster.forget_topics(["t"])
            return Broker()

        cluster.connection = connection  # returns the fake broker
        assert await offset_requests.divergence(cluster, FIRST, 9, 3) == (3, 8)
        assert asked == [{"partition": 0, "current_leader_epoch": 5, "leader_epoch": 3}]

    asyncio.run(go())


def test_with_little_memory_brokers_are_asked_in_turn() -> None:
    class TwoBrokers:
        def leader(self, tp: TopicPartition) -> int:
            return tp.partition + 1

        def leader_epoch(self, tp: TopicPartition) -> int:
            return 0

        def node(self, node_id: int) -> None: ...
        def known_topic(self, name: str) -> None: ...
        def forget_topics(self, names: set[str]) -> None: ...

    async def go() -> list[int]:
        subscription = SubscriptionState()
        config = ConsumerConfig.of({"bootstrap_servers": "127.0.0.1:1", "buffer_memory": 1})
        fetcher = Fetcher(config, TwoBrokers(), subscription, lambda: None)  # a fake cluster
        subscription.set_assigned([FIRST, SECOND])
        for state in subscription.partitions.values():
            state.set_position(0)
        asked: list[int] = []

        def begin(fetch: InFlightFetch) -> None:
            asked.append(fetch.node_id)
            fetcher.is_closed = len(asked) == 6
            fetcher.in_flight.by_node[fetch.node_id] = fetch
            asyncio.get_running_loop().call_soon(fetcher.in_flight._end, fetch)

        fetcher.in_flight.begin = begin  # records the fetches
        fetcher.schedule_fetches()
        while fetcher.in_flight.by_node:
            await asyncio.sleep(0)
        return asked

    assert asyncio.run(go()) == [1, 2, 1, 2, 1, 2]


def test_replies_for_an_old_position_change_nothing() -> None:
    """The event loop and the caller's thread both change a partition's position. Each passes the version that it has
    seen. If the position has another version by then, the call changes nothing."""
    state, again = PartitionState(), PartitionState()
    state.set_position(5)
    again.set_position(5)
    assert state.version != again.version, "a partition that is unassigned and assigned again"
    before = state.version
    assert state.note_fetched(before, 5, 9, 3)
    assert not state.note_fetched(before, 5, 9, 3), "the fetch offset has moved on"
    assert state.truncate(before, 7, 2)
    assert (state.position, state.fetch_offset, state.fetch_epoch) == (5, 5, 2), "no record beyond 7 was returned"
    assert not state.advance(before, 9, 3)
    assert not state.note_fetched(before, 9, 12, 3)
    assert not state.truncate(before, 0, 0)
    assert state.advance(state.version, 6, 2)
    assert state.note_fetched(state.version, 5, 8, 2)
    state.fetch_again()
    assert (state.position, state.fetch_offset) == (6, 6)


def cut_log(cluster: ChanceCluster, cut: int) -> int:
    """An unclean election: from ``cut`` on the log gets other records. Returns the new log end."""
    cluster.move(FIRST, 1 + cluster.lead(FIRST).leader % len(NODES), cut)
    for _ in range(5):
        cluster.append(FIRST)
    cluster.end_faults()
    return cluster.lead(FIRST).log.end


@pytest.mark.behaviour(52, part=True)
@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_truncation_above_the_returned_records_loses_and_raises_nothing(policy: str) -> None:
    """The lost records were fetched but not returned. The consumer fetches again, without an error or a reset."""
    with reading(1, auto_offset_reset=policy, max_poll_records=1) as (cluster, consumer):
        cut = cluster.lead(FIRST).log.bounds(0, 1 << 40)[1]
        consumer.seek(FIRST, 0)
        assert poll_until_offsets(consumer, FIRST, 1) == [0]
        state = engine_of(consumer).subscription.state(FIRST)
        wait_until(lambda: state.fetch_offset == cluster.lead(FIRST).log.end)
        before = state.version
        end = cut_log(cluster, cut)
        wait_until(lambda: state.version != before)
        assert state.position == 1
        records: list[Record] = []
        while not records or records[-1].offset < end - 1:
            records += consumer.poll(5.0).records()
        assert [record.offset for record in records] == list(range(1, end))
        for record in records:
            assert record.timestamp_ms == cluster.history[FIRST, record.offset][-1].row.timestamp_ms


@pytest.mark.behaviour(52, part=True)
def test_after_a_truncation_of_returned_records_each_poll_raises_until_a_seek() -> None:
    with reading(1, auto_offset_reset="none") as (cluster, consumer):
        cut = cluster.lead(FIRST).log.bounds(0, 1 << 40)[1]
        consumer.seek(FIRST, 0)
        old_end = cluster.lead(FIRST).log.end
        assert len(poll_until_offsets(consumer, FIRST, old_end)) == old_end
        end = cut_log(cluster, cut)
        for _ in range(2):
            with pytest.raises(LogTruncated) as caught:
                poll_until_offsets(consumer, FIRST, 1)
            assert (caught.value.offset, caught.value.divergence_offset) == (old_end, cut)
            assert consumer.position(FIRST) == old_end
        consumer.seek(FIRST, cut)
        assert poll_until_offsets(consumer, FIRST, end - cut) == list(range(cut, end))


@pytest.mark.claim(58, part=True)
def test_an_iteration_returns_its_fetched_records_although_the_next_fetch_is_out_of_range() -> None:
    """Retention deletes the fetched records while the loop has not returned most of them."""
    with reading(1) as (cluster, consumer):
        fetcher, state = engine_of(consumer).fetcher, engine_of(consumer).subscription.state(FIRST)
        log = cluster.lead(FIRST).log
        old_end = log.end
        wait_until(lambda: state.fetch_offset == old_end)
        records = iter(consumer)
        seen = [next(records).offset]
        version = state.version
        with cluster.changed:
            cluster.append(FIRST)
            start = log.end
            cluster.append(FIRST)
            log.start, log.batches, log.high_watermark = start, log.batches[-1:], log.end
            cluster.changed.notify_all()
        wait_until(lambda: FIRST in fetcher.out_of_range or state.version != version)
        while seen[-1] < start:
            seen.append(next(records).offset)
        assert seen == [*range(old_end), start]


@pytest.mark.claim(58, part=True)
def test_returned_records_count_although_later_fetched_ones_are_dropped() -> None:
    """After a poll has taken records, an iteration or a failed block sets the position to the end of the records that
    were really returned, even if fetched records were dropped meanwhile. After a seek it leaves the position alone."""
    state = PartitionState()
    state.set_position(0)
    taken = state.version
    assert state.note_fetched(taken, 0, 9, 3)
    assert state.advance(taken, 5, 3)
    state.fetch_again()
    assert state.set_returned(taken, 2, 3), "only records fetched beyond it are dropped"
    assert state.truncate(state.version, 4, 2)
    assert state.set_returned(taken, 3, 3)
    assert state.position == 3
    assert state.set_returned(taken, 5, 3), "the log ends at 4"
    assert (state.position, state.position_epoch) == (4, 3)
    state.fetch_again(taken)
    assert state.advance(state.version, 8, 4), "the log has grown again"
    assert state.set_returned(taken, 7, 4)
    assert state.position == 7
    for place in (lambda: state.set_position(1), lambda: state.request_reset(-2)):
        taken = state.version
        place()
        assert not state.set_returned(taken, 6, 3)
    state.set_position(1)
    state.fetch_again(taken)
    assert state.version == state.position_version, "reading starts there anyway"
    assert not PartitionState().set_returned(state.version, 6, 3), "a partition that is unassigned and assigned again"


@pytest.mark.claim(18, 58, part=True)
@pytest.mark.parametrize("cut_at", [None, 1, 3])
def test_an_iteration_returns_no_record_twice_if_fetched_ones_are_dropped(cut_at: int | None) -> None:
    """The consumer drops fetched records because of a truncation, at the current record or beyond it, or to save
    memory."""
    with reading(1) as (cluster, consumer):
        state, end = engine_of(consumer).subscription.state(FIRST), cluster.lead(FIRST).log.end
        wait_until(lambda: state.fetch_offset == end)
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 2:
                if cut_at is None:
                    state.fetch_again()
                else:
                    assert state.truncate(state.version, cut_at, state.fetch_epoch)
            if record.offset == end - 1:
                break
        # From ``cut_at`` on, these offsets have other records.
        assert seen == [0, 1, *range(1 if cut_at == 1 else 2, end)]


@pytest.mark.claim(58, part=True)
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_failed_block_commits_nothing_of_its_poll_if_fetched_records_are_dropped(is_cut: bool) -> None:
    settings = {"group_id": "g", "enable_auto_commit": True, "auto_commit_interval_ms": 60_000}
    committed: list[int] = []

    def fail(consumer: Consumer) -> None:
        with consumer:
            assert poll_until_offsets(consumer, FIRST, 1) == [0]
            state = engine_of(consumer).subscription.state(FIRST)
            if is_cut:
                assert state.truncate(state.version, 1, state.fetch_epoch)
            else:
                state.fetch_again()
            raise ZeroDivisionError

    with reading(1, max_poll_records=1, **settings) as (cluster, consumer):
        cluster.on_commit = lambda tp, offset: committed.append(offset)
        with pytest.raises(ZeroDivisionError):
            fail(consumer)
    assert committed
    assert set(committed) == {0}


class OneBroker:
    """The leader of all partitions, in epoch 7."""

    def leader(self, tp: TopicPartition) -> int:
        return 1

    def leader_epoch(self, tp: TopicPartition) -> int:
        return 7

    def deadline(self) -> None: ...


def one_fetcher(state: PartitionState) -> Fetcher:
    subscription = SubscriptionState(partitions={FIRST: state})
    config = ConsumerConfig.of({"bootstrap_servers": "127.0.0.1:1"})
    return Fetcher(config, OneBroker(), subscription, lambda: None)  # a fake cluster


@pytest.mark.behaviour(52, part=True)
def test_a_position_set_during_a_divergence_lookup_is_not_confirmed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class SeekBeforeTruncation(PartitionState):
        """The caller's thread sets a position just before the truncation is applied."""

        def truncate(self, *args: int) -> bool:
            self.set_position(50, 3)
            return super().truncate(*args)

    async def ends(cluster: Any, wanted: Any, found: Any, deadline: Any) -> None:
        found[FIRST] = EpochEnd(3, 8)

    async def go(state: PartitionState) -> int:
        state.set_position(9, 3)
        await one_fetcher(state).lookups._check_divergence([FIRST])
        return state.confirmed_epoch

    monkeypatch.setattr(offset_requests, "try_epoch_ends", ends)
    assert asyncio.run(go(PartitionState())) == 7
    assert asyncio.run(go(SeekBeforeTruncation())) == -1


def test_of_two_concurrent_resets_the_later_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed(cluster: Any, wanted: Any, isolation: int, found: Any, deadline: Any) -> None:
        found.update({tp: ListedOffset({EARLIEST: 0, LATEST: 90}[when], -1, -1) for tp, when in wanted.items()})

    async def go() -> int:
        state = PartitionState()
        fetcher = one_fetcher(state)
        state.request_reset(EARLIEST)
        looked_up = fetcher.lookups.reset({FIRST: EARLIEST})
        state.request_reset(LATEST)
        await looked_up
        assert not state.ready
        await fetcher.lookups.reset({FIRST: LATEST})
        return state.position

    monkeypatch.setattr(offset_requests, "try_list_offsets", listed)
    assert asyncio.run(go()) == 90


def test_a_partition_unassigned_while_it_is_decoded_breaks_no_iteration() -> None:
    """Another task may unassign the partition while a thread decodes for an asyncio consumer."""
    with reading(1) as (_, consumer):
        engine = engine_of(consumer)
        wait_until(lambda: engine.fetcher.buffer.front() is not None)
        chunk = engine.fetcher.buffer.front()
        assert chunk is not None
        found = chunk.records

        def unassign(*args: Any, **named: Any) -> Any:
            engine.subscription.set_assigned(())
            return found.record_batches(*args, **named)

        chunk.records = SimpleNamespace(record_batches=unassign)
        with engine.record_by_record(engine.take(COLUMNS)) as records:
            assert list(records) == []


def test_a_partition_missing_in_a_reply_is_a_retriable_error() -> None:
    """The error is retried after a backoff, not at once. Partitions that were not requested are ignored."""

    class Broker:
        async def call(self, api_key: int, message: Any) -> Any:
            row = {"partition": 9, "partition_index": 9, "error_code": ErrorCode.none, "timestamp": -1, "offset": 4}
            rows = [SimpleNamespace(**row, leader_epoch=3, end_offset=8)]
            return SimpleNamespace(topics=[SimpleNamespace(topic="t", name="t", partitions=rows)])

        def version(self, api_key: int) -> int:
            return 9

    async def go() -> None:
        cluster = Cluster(ClientConfig(bootstrap_servers="127.0.0.1:1"))

        async def connection(node_id: int) -> Any:
            return Broker()

        cluster.connection = connection  # returns the fake broker
        found: dict[TopicPartition, Any] = {}
        for ask in (
            lambda: offset_requests.try_list_offsets(cluster, {FIRST: EARLIEST}, 0, found, cluster.deadline()),
            lambda: offset_requests.try_epoch_ends(cluster, {FIRST: 3}, found, cluster.deadline()),
        ):
            cluster.update_metadata(metadata(5, 2, UUID(int=1)), everything=False)
            with pytest.raises(KafkaError, match="reply lacks t-0") as caught:
                await ask()
            assert worth_retrying(caught.value)
            assert found == {}

    asyncio.run(go())


def test_a_reset_without_a_log_end_in_the_reply_is_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset by time looks up the log end if no record is that young."""
    known: list[Any] = []

    async def listed(cluster: Any, wanted: Any, isolation: int, found: Any, deadline: Any) -> None:
        known.append(dict(found))
        found.update({tp: ListedOffset(-1, -1, -1) for tp in wanted})

    async def go() -> None:
        state = PartitionState()
        state.request_reset(1_000)
        with pytest.raises(KafkaError, match="no log end for t-0") as caught:
            await one_fetcher(state).lookups.reset({FIRST: 1_000})
        assert worth_retrying(caught.value)
        assert not state.ready

    monkeypatch.setattr(offset_requests, "try_list_offsets", listed)
    asyncio.run(go())
    assert known == [{}, {}], "each lookup starts empty, so that a missing result is noticed"


def test_a_missing_topic_does_not_delay_the_leader_lookup_of_others() -> None:
    hour_ms = 3_600_000
    with reading(1, retry_backoff_max_ms=hour_ms) as (cluster, consumer):
        consumer.assign([TopicPartition("missing", 0), FIRST])
        end = cluster.lead(FIRST).log.end
        assert poll_until_offsets(consumer, FIRST, end) == list(range(end))
        fetcher = engine_of(consumer).fetcher
        consumer.seek(TopicPartition("missing", 0), 0)
        wait_until(lambda: any(map(fetcher.lookups.is_under_way, ("missing topics", "leaders"))))
        cluster.move(FIRST, 1 + cluster.lead(FIRST).leader % len(NODES))
        cluster.append(FIRST)
        cluster.end_faults()
        after = cluster.lead(FIRST).log.end
        assert poll_until_offsets(consumer, FIRST, after - end) == list(range(end, after))


@pytest.mark.claim(96, part=True)
def test_a_missing_topic_is_read_after_its_creation() -> None:
    with reading(1) as (cluster, consumer):
        late = TopicPartition("late", 0)
        consumer.assign([late, FIRST])
        end = cluster.lead(FIRST).log.end
        assert poll_until_offsets(consumer, FIRST, end) == list(range(end))
        cluster.make("late", 1)
        cluster.append(late)
        cluster.end_faults()
        end = cluster.lead(late).log.end
        assert poll_until_offsets(consumer, late, end) == list(range(end))
