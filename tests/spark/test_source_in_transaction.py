"""A source with ``commitOffsets=transaction``: its planner commits no micro-batch; the transaction of each
micro-batch commits the group's offsets.

Without Spark: a planner, and a producer in the place of the driver.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from spark_runs import span
from stream_planner import Offset, Planner
from support.brokers import eventually, unique
from support.publish import create_topic, numbers, publish

import odradek
from odradek import Consumer, Producer
from odradek.broker.coordinators.transaction_markers import MarkerWriter
from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.client.errors import RequestTimedOut
from odradek.core.deferred import Deferred
from odradek.core.errors import ConfigError, ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from odradek.lag.reset_mark import mark_reset
from odradek.spark.driver.micro_batch_groups import MicroBatchGroups, _check_cluster
from odradek.spark.driver.micro_batch_number import MicroBatchRefused
from odradek.spark.offsets.commit_marks import mark_of
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.plan import GroupReset
from odradek.spark.offsets.stable_offsets import stable_offsets
from odradek.spark.options import OnGroupReset, parse_options


class Option:
    """Scala's Option of a value."""

    def __init__(self, value: Any = None) -> None:
        self.get = lambda: value
        self.isEmpty = lambda: value is None
        self.isDefined = lambda: value is not None


class Checkpoint:
    """A fake of Java's StreamExecution for ``MicroBatchGroups``: the offsets of the micro-batches in the checkpoint."""

    def __init__(self) -> None:
        self.batches: list[Offset] = []
        self.sources = 1

    def offsetLog(self) -> Any:
        return SimpleNamespace(get=self._entry)

    def _entry(self, batch: int) -> Option:
        if batch >= len(self.batches):
            return Option()
        offset = Option(SimpleNamespace(json=lambda: json.dumps(self.batches[batch])))
        offsets = SimpleNamespace(size=lambda: self.sources, apply=lambda number: offset)
        kind = SimpleNamespace(getSimpleName=lambda: "OffsetSeq")
        return Option(SimpleNamespace(offsets=lambda: offsets, getClass=lambda: kind))


class HookedProducer(Producer):
    """``before_offsets`` and ``after_offsets`` are called around the request that adds the group's offsets."""

    before_offsets: Callable[[], object] = staticmethod(lambda: None)
    after_offsets: Callable[[], object] = staticmethod(lambda: None)

    def send_offsets_to_transaction(self, *given: Any) -> None:
        self.before_offsets()
        super().send_offsets_to_transaction(*given)
        self.after_offsets()


class Query:
    """A planner whose micro-batches a producer commits, as the driver of ``transactional_writer`` does."""

    def __init__(self, planner: Planner, on_reset: str = "follow") -> None:
        self.planner, self.checkpoint, self.done = planner, Checkpoint(), {}
        planner.reader = planner.made(commitOffsets="transaction", onGroupReset=on_reset)
        self.groups = MicroBatchGroups(self.checkpoint, {0: Lookups(planner.reader.options)}, 1)
        self.producer = HookedProducer(planner.bootstrap, transactional_id=unique("driver"))
        self.producer.init_transactions()

    def plan(self, rows: int = 2) -> list[tuple[int, int]]:
        """Plans a micro-batch and returns its rows."""
        end = self.planner.next(self.done, ReadMaxRows(rows))
        read = self.planner.read(self.done, end)
        self.checkpoint.batches.append(end)
        self.done = end
        return read

    def add_to_transaction(self) -> None:
        self.producer.begin_transaction()
        self.groups.add_to(self.producer, len(self.checkpoint.batches) - 1)

    def commit(self) -> None:
        self.producer.commit_transaction()
        self.groups.warn_of_overwritten()
        # Apache Kafka answers before the offsets are in the group.
        places = [TopicPartition(self.planner.topic, 0)]
        self.planner.client.list_group_offsets(self.planner.group, places, require_stable=True)

    def offset(self) -> int | None:
        commit = self.planner.commits().get(0)
        return None if commit is None else commit.offset

    def close(self) -> None:
        self.groups.close()
        self.producer.close(timeout=0)


@pytest.fixture
def planner(bootstrap: str, topic: str, group: str) -> Iterator[Planner]:
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(10))
    made = Planner(bootstrap, topic, group)
    yield made
    made.close()


@pytest.fixture
def query(planner: Planner) -> Iterator[Query]:
    made = Query(planner)
    yield made
    made.close()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "odradek.spark.commits"]


def test_only_the_transaction_moves_the_group(query: Query) -> None:
    assert query.plan() == span(0, 0, 2)
    query.planner.reader.commit(query.done)
    query.add_to_transaction()
    assert query.offset() is None, "neither a plan nor an open transaction moves the group"
    query.commit()
    assert query.offset() == 2
    assert query.plan() == span(0, 2, 4)
    query.planner.reader.commit(query.done)
    assert query.offset() == 2, "the source leaves a finished micro-batch to the next transaction"
    query.add_to_transaction()
    query.producer.abort_transaction()
    assert query.offset() == 2
    query.add_to_transaction()
    query.commit()
    assert query.offset() == 4
    assert mark_of(query.planner.commits()[0]) == ""
    assert query.planner.commits()[0].metadata.endswith(query.done["$odradek"]["query"])


def test_a_restart_between_the_transaction_and_the_checkpoints_mark_moves_nothing_back(query: Query) -> None:
    query.plan()
    first = query.done
    query.plan()
    query.add_to_transaction()
    query.commit()
    query.planner.reader = query.planner.made(commitOffsets="transaction")
    query.planner.next(first)
    query.planner.reader.commit(first)
    assert query.offset() == 4


def test_the_planner_waits_for_the_end_of_the_transaction(query: Query) -> None:
    query.plan()
    query.add_to_transaction()
    ended: list[float] = []

    def end() -> None:
        time.sleep(0.3)
        ended.append(time.monotonic())
        query.commit()

    thread = threading.Thread(target=end)
    thread.start()
    query.plan()
    thread.join()
    assert time.monotonic() > ended[0], "the plan waits, because the open transaction is about to replace offsets"
    query.planner.reader = query.planner.made(commitOffsets="transaction", **{"kafka.default.api.timeout.ms": "1000"})
    query.add_to_transaction()
    with pytest.raises(
        RequestTimedOut,
        match="of an open transaction, of another query or of this query's last micro-batch: wait for its timeout",
    ):
        query.planner.next(query.done)


def test_two_sources_with_one_group_are_refused(query: Query) -> None:
    """The lookup of the second source would wait for the query's own transaction."""
    query.plan()
    query.checkpoint.sources = 2
    options = query.planner.reader.options
    query.groups.close()
    query.groups = MicroBatchGroups(query.checkpoint, {0: Lookups(options), 1: Lookups(options)}, 2)
    with pytest.raises(MicroBatchRefused, match=r"two sources of the query commit offsets of .*-0 to group .*: load"):
        query.add_to_transaction()
    query.producer.abort_transaction()


def test_two_sources_with_groups_of_their_own_commit_in_one_transaction(query: Query) -> None:
    query.plan()
    query.checkpoint.sources = 2
    options = query.planner.reader.options
    query.groups.close()
    other = dataclasses.replace(options, group_id=unique("other"))
    query.groups = MicroBatchGroups(query.checkpoint, {0: Lookups(options), 1: Lookups(other)}, 2)
    query.add_to_transaction()
    query.commit()
    found = query.planner.client.list_group_offsets(other.group_id, [TopicPartition(query.planner.topic, 0)])
    assert [commit.offset for commit in found.values()] == [query.offset()] == [2]


def test_offsets_of_a_transaction_that_no_coordinator_knows_have_their_own_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/transactions.md end it. Apache Kafka 4.3.0 can leave such a transaction (KAFKA-20734)."""
    write, place = MarkerWriter.write_marker, TopicPartition("t", 0)

    def without_offsets(self: MarkerWriter, partition: tuple[str, int], marker: Any) -> Deferred[ErrorCode]:
        return Deferred.of(ErrorCode.none) if partition[0] == OFFSETS_TOPIC else write(self, partition, marker)

    with odradek.Broker(in_thread=True) as broker:
        create_topic(broker.bootstrap_servers, "t")
        servers = broker.bootstrap_servers
        with Admin(servers) as admin, Admin(servers, default_api_timeout_ms=5000) as hasty:
            admin.alter_group_offsets("g", {place: OffsetAndMetadata(1)})
            with Producer(broker.bootstrap_servers, transactional_id="lost") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("t", b"v")
                producer.send_offsets_to_transaction({place: OffsetAndMetadata(2)}, ConsumerGroupMetadata("g"))
                with monkeypatch.context() as patch:
                    patch.setattr(MarkerWriter, "write_marker", without_offsets)
                    producer.commit_transaction()
            with pytest.raises(RequestTimedOut, match=r"of an open transaction.* such transactions are: ") as refused:
                stable_offsets(hasty, "g", [place])
            ((number, first),) = re.findall(
                r"In __consumer_offsets-(\d+), .* from offset (\d+)\. See", str(refused.value)
            )
            where = ["--topic", OFFSETS_TOPIC, "--partition", number]
            find = ["transactions", "find-hanging", *where, "--max-transaction-timeout", "0", "-b", servers]
            assert run(find) == 0
            assert re.search(rf"^__consumer_offsets +{number} +\d+ .* {first} ", capsys.readouterr().out, re.MULTILINE)
            assert run(["transactions", "abort", *where, "--start-offset", first, "--yes", "-b", servers]) == 0
            assert stable_offsets(admin, "g", [place]) == {place: OffsetAndMetadata(1)}


def test_a_reset_is_followed_also_if_it_comes_while_a_micro_batch_runs(query: Query) -> None:
    query.planner.reset(3)
    assert query.plan() == span(0, 3, 5)
    assert mark_of(query.planner.commits()[0]), "the start is acknowledged before the first micro-batch"
    query.planner.reset(7)
    query.add_to_transaction()
    query.commit()
    assert query.offset() == 7, "the micro-batch's transaction does not overwrite the reset"
    assert query.plan() == span(0, 7, 9)
    query.add_to_transaction()
    query.commit()
    assert query.offset() == 9
    assert query.plan() == span(0, 9, 10), "a reset is followed once"


def meanwhile(query: Query, moment: str, work: Callable[[], object]) -> None:
    """``work`` is then called once, just before or just after the driver's request that adds the group's offsets."""
    left = [work]
    setattr(query.producer, f"{moment}_offsets", lambda: left and left.pop()())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_reset_between_the_drivers_request_and_the_end_of_the_transaction_is_followed(
    query: Query, moment: str
) -> None:
    meanwhile(query, moment, lambda: query.planner.reset(7))
    query.plan()
    query.add_to_transaction()
    query.commit()
    assert query.offset() == 7, "the micro-batch's transaction does not overwrite the reset"
    assert query.plan() == span(0, 7, 9)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_on_group_reset_applies_to_a_reset_between_the_drivers_request_and_the_end_of_the_transaction(
    planner: Planner, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(planner, on_reset="fail")
    query.plan()
    meanwhile(query, moment, lambda: planner.reset(7))
    with pytest.raises(GroupReset, match="from 2 to 7"):
        query.add_to_transaction()
    query.producer.abort_transaction()
    query.close()
    query = Query(planner, on_reset="asked")
    assert query.plan() == span(0, 7, 9)
    meanwhile(query, moment, lambda: planner.reset(8))
    query.add_to_transaction()
    query.commit()
    assert query.offset() == 9
    assert any("at 8 (now 9)" in text for text in warnings_of(caplog))
    query.close()


def test_a_group_that_other_clients_change_all_the_time_is_refused(
    query: Query,
) -> None:
    numbers_of_resets = iter(range(1, 100))
    query.producer.before_offsets = lambda: query.planner.reset(next(numbers_of_resets) % 10)
    query.plan()
    with pytest.raises(MicroBatchRefused, match=r"10 times while a micro-batch was committed: stop them"):
        query.add_to_transaction()


def test_other_commits_are_overwritten_unless_they_have_a_reset_mark(
    planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(planner, on_reset="asked")
    query.plan()
    planner.reset(7)
    query.add_to_transaction()
    assert not warnings_of(caplog), "before the commit nothing is overwritten"
    query.commit()
    assert query.offset() == 2
    assert any("are overwritten, because the checkpoint decides" in text for text in warnings_of(caplog))
    query.plan()
    planner.client.alter_group_offsets(planner.group, {TopicPartition(planner.topic, 0): mark_reset(8)})
    query.add_to_transaction()
    query.commit()
    assert query.plan() == span(0, 8, 10)
    query.close()


def test_with_on_group_reset_fail_a_reset_ends_the_query(planner: Planner) -> None:
    query = Query(planner, on_reset="fail")
    query.plan()
    query.add_to_transaction()
    query.commit()
    query.plan()
    planner.reset(7)
    with pytest.raises(GroupReset, match="from 4 to 7"):
        query.add_to_transaction()
    query.close()


def test_live_members_are_refused(query: Query) -> None:
    query.plan()
    with Consumer(query.planner.bootstrap, group_id=query.planner.group, client_id="newcomer") as member:
        member.subscribe([query.planner.topic])
        eventually(lambda: (member.poll(0.1), member.assignment())[1], what="an assignment")
        with pytest.raises(MicroBatchRefused, match=r"has live members \(newcomer at .*\): stop them"):
            query.add_to_transaction()


def test_a_micro_batch_without_a_transaction_is_reported_once(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        query.plan()
    (warning,) = warnings_of(caplog)
    assert "commitOffsets=transaction needs foreachBatch(odradek.spark.transactional_writer(" in warning


def test_a_checkpoint_without_the_micro_batch_is_refused(query: Query) -> None:
    with pytest.raises(MicroBatchRefused, match="asyncProgressTrackingEnabled=false"):
        query.groups.add_to(query.producer, 0)


def test_a_group_of_another_cluster_is_refused(query: Query) -> None:
    lookups = Lookups(query.planner.reader.options)
    elsewhere = SimpleNamespace(describe_cluster=lambda: SimpleNamespace(cluster_id="another"))
    with pytest.raises(MicroBatchRefused, match="a transaction has one cluster: set commitOffsets=true"):
        _check_cluster(lookups, elsewhere)  # a cluster id is all that is asked
    with Admin(query.planner.bootstrap) as same:
        _check_cluster(lookups, same)
    lookups.close()


def test_the_option_needs_a_group_and_a_stream() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t", "commitOffsets": "transaction"}
    with pytest.raises(ConfigError, match=r"commitOffsets=transaction needs kafka\.group\.id"):
        parse_options(given, streaming=True)
    given["kafka.group.id"] = "g"
    with pytest.raises(ConfigError, match="is for streams"):
        parse_options(given, streaming=False)
    options = parse_options(given, streaming=True)
    assert (options.commit_offsets, options.offsets_in_transaction) == (False, True)
    assert options.on_group_reset is OnGroupReset.ASKED
