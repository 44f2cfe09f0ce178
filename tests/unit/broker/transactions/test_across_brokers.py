"""Questions to coordinators and markers for leaders on other brokers, with brokers that answer by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek.broker.remote.node_request import NodeRequest
from odradek.broker.remote.peers import Channel
from odradek.broker.transactions.across_brokers import (
    MARKERS,
    QUESTIONS,
    ClusterTransactions,
    InSyncLog,
    MarkersForLeaders,
    PartitionsAtCoordinators,
)
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TRANSACTION_TOPIC, EndTransactionMarker, PartitionKey, ProducerIdentity

E = ErrorCode
OWN, OTHER, THIRD = 1, 2, 3
PRODUCER = ProducerIdentity(7, 3)
MARKER = EndTransactionMarker(7, 4, 12, True, 2)
T0, T1 = ("t", 0), ("t", 1)


class Catalog:
    """The leaders of partitions."""

    def __init__(self, leaders: dict[PartitionKey, int]) -> None:
        self.leaders = leaders

    def topic(self, name: str) -> Any:
        found = {index: leader for (topic, index), leader in self.leaders.items() if topic == name}
        if not found:
            return None
        rows = [SimpleNamespace(leader=found[index]) for index in sorted(found)]
        return SimpleNamespace(partition_count=len(rows), partitions=rows)


class Brokers:
    """Other brokers: requests wait for ``answer``. ``call_soon`` takes what runs at the end of the tick."""

    def __init__(self) -> None:
        self._sent: list[tuple[int, NodeRequest[Any], Deferred[Any]]] = []
        self._calls: list[Callable[[], None]] = []
        self.abandoned: list[tuple[int, Channel]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def send(self, node_id: int, request: NodeRequest[Any], timeout_ms: int = 0, *, channel: Any = None) -> Any:
        promise: Deferred[Any] = Deferred()
        self._sent.append((node_id, request, promise))
        return promise

    def abandon(self, node_id: int, channel: Channel) -> None:
        self.abandoned.append((node_id, channel))
        abandoned = [sent for sent in self._sent if sent[0] == node_id]
        self._sent = [sent for sent in self._sent if sent[0] != node_id]
        for _, _, promise in abandoned:
            promise.resolve(None)

    @property
    def sent(self) -> list[tuple[int, NodeRequest[Any], Deferred[Any]]]:
        """The requests without a reply, at the end of the tick."""
        while self._calls:
            self._calls.pop(0)()
        return self._sent

    def answer(self, reply: Any, at: int = 0) -> None:
        self.sent.pop(at)[2].resolve(reply)

    def rows(self, name: str, at: int = 0) -> list[Mapping[str, Any]]:
        """The rows of the oldest request."""
        return cast("list[Mapping[str, Any]]", cast("Mapping[str, Any]", self.sent[at][1].body)[name])


class Local:
    """The own coordinator, and the own logs."""

    retry_ms, refused_retry_ms = 100, 10_000

    def __init__(self) -> None:
        self.written: list[PartitionKey] = []

    def partition_of(self, transactional_id: str) -> int:
        return int(transactional_id[-1])

    def add(self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]) -> Any:
        return Deferred.of(dict.fromkeys(partitions, E.none))

    verify = add

    def exists(self, partition: PartitionKey) -> bool:
        return True

    def load_end(self, partition: PartitionKey) -> Deferred[None] | None:
        return Deferred()

    def write_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        self.written.append(partition)
        return Deferred.of(E.none)


class Cluster:
    """The transactions of broker 1."""

    def __init__(self, leaders: dict[PartitionKey, int]) -> None:
        self.brokers, self.local, self.catalog = Brokers(), Local(), Catalog(leaders)
        self.transactions = ClusterTransactions(
            cast("Any", self.catalog), OWN, cast("Any", self.brokers), self.brokers.call_soon
        )

    def change(self, *deleted: str, leaders: Mapping[PartitionKey, int] | None = None) -> None:
        """Changes leaders, and deletes topics of two partitions."""
        self.catalog.leaders |= leaders or {}
        self.catalog.leaders = {key: at for key, at in self.catalog.leaders.items() if key[0] not in deleted}
        gone = {name: SimpleNamespace(name=name, partition_count=2) for name in deleted}
        self.transactions.on_metadata_update(cast("Any", SimpleNamespace(partitions=leaders or {}, deleted=gone)))


def questions(leaders: tuple[int, ...] = (OWN, OTHER)) -> tuple[PartitionsAtCoordinators, Brokers]:
    asked, cluster = moving_questions(leaders)
    return asked, cluster.brokers


def moving_questions(leaders: tuple[int, ...] = (OWN, OTHER)) -> tuple[PartitionsAtCoordinators, Cluster]:
    cluster = Cluster({(TRANSACTION_TOPIC, at): leader for at, leader in enumerate(leaders)})
    return cast("PartitionsAtCoordinators", cluster.transactions.partitions(cast("Any", cluster.local))), cluster


def markers(leaders: dict[PartitionKey, int]) -> tuple[MarkersForLeaders, Brokers, Local, Catalog]:
    made, cluster = moving_markers(leaders)
    return made, cluster.brokers, cluster.local, cluster.catalog


def moving_markers(leaders: dict[PartitionKey, int]) -> tuple[MarkersForLeaders, Cluster]:
    cluster = Cluster(leaders)
    return cast("MarkersForLeaders", cluster.transactions.markers(cast("Any", cluster.local))), cluster


# --- questions ----------------------------------------------------------------------------------------------------


def test_the_own_coordinator_is_asked_at_once() -> None:
    asked, brokers = questions()
    assert asked.add("x0", PRODUCER, {T0}).value == {T0: E.none}
    assert brokers.sent == []


def test_questions_that_come_during_a_request_go_together() -> None:
    asked, brokers = questions()
    first = asked.verify("x1", PRODUCER, [T0])
    assert [node for node, _, _ in brokers.sent] == [OTHER]
    second, third = asked.add("y1", PRODUCER, [T0]), asked.add("z1", PRODUCER, [T1])
    assert [(node, len(request.body)) for node, request, _ in brokers.sent] == [(OTHER, 1)]
    assert brokers.rows("transactions")[0]["verify_only"]
    brokers.answer({"x1": {T0: E.transaction_abortable}})
    assert first.value == {T0: E.transaction_abortable}
    rows = brokers.rows("transactions")
    assert [(row["transactional_id"], row["verify_only"]) for row in rows] == [("y1", False), ("z1", False)]
    brokers.answer({"y1": {T0: E.none}, "z1": {T1: E.producer_fenced}})
    assert (second.value, third.value) == ({T0: E.none}, {T1: E.producer_fenced})


def test_two_questions_of_one_id_are_asked_one_after_the_other() -> None:
    asked, brokers = questions()
    promises = [asked.add("x1", PRODUCER, [T0]), asked.add("x1", PRODUCER, [T1]), asked.add("x1", PRODUCER, [T0, T1])]
    for number, partitions in enumerate(([T0], [T1], [T0, T1])):
        (row,) = brokers.rows("transactions")
        assert row["topics"] == [{"name": "t", "partitions": [index for _, index in partitions]}]
        assert not promises[number].resolved
        brokers.answer({"x1": dict.fromkeys(partitions, E.none)})
        assert promises[number].value == dict.fromkeys(partitions, E.none)


@pytest.mark.parametrize(("reply", "code"), [
    (None, E.network_exception), (E.cluster_authorization_failed, E.invalid_txn_state),
    (E.unsupported_version, E.unsupported_version), ({}, E.unknown_server_error),
])  # fmt: skip
def test_a_missing_reply_and_a_refused_request_are_answers(reply: Any, code: ErrorCode) -> None:
    asked, brokers = questions()
    promise = asked.add("x1", PRODUCER, [T0, T1])
    brokers.answer(reply)
    assert promise.value == {T0: code, T1: code}
    assert asked.add("x1", PRODUCER, [T0]).resolved is False, "the next question is asked"
    assert len(brokers.sent) == 1


def test_without_a_coordinator_the_answer_is_there_at_once() -> None:
    asked, brokers = questions((OWN, -1))
    for transactional_id in ("x1", "x5"):
        assert asked.verify(transactional_id, PRODUCER, [T0]).value == {T0: E.coordinator_not_available}
    assert brokers.sent == []


def test_questions_follow_the_coordinator_in_flight_as_well_as_queued() -> None:
    """A halted coordinator delays them for its session, and not for a request's time."""
    asked, cluster = moving_questions()
    first, brokers = asked.add("x1", PRODUCER, [T0]), cluster.brokers
    assert [node for node, _, _ in brokers.sent] == [OTHER]
    second = asked.add("x1", PRODUCER, [T1])
    cluster.change(leaders={(TRANSACTION_TOPIC, 1): THIRD})
    assert [node for node, _, _ in brokers.sent] == [THIRD]
    assert brokers.abandoned == [(OTHER, QUESTIONS)]
    assert not first.resolved, "the end of the abandoned request is no answer"
    brokers.answer({"x1": {T0: E.none}})
    brokers.answer({"x1": {T1: E.none}})
    assert (first.value, second.value) == ({T0: E.none}, {T1: E.none})


def test_questions_follow_a_coordinator_that_moves_to_this_broker_or_has_no_successor() -> None:
    asked, cluster = moving_questions((OTHER, OTHER))
    own, none = asked.add("x0", PRODUCER, [T0]), asked.add("x1", PRODUCER, [T0])
    assert [len(cluster.brokers.rows("transactions"))] == [2]
    cluster.change(leaders={(TRANSACTION_TOPIC, 0): OWN, (TRANSACTION_TOPIC, 1): -1})
    assert cluster.brokers.sent == []
    assert (own.value, none.value) == ({T0: E.none}, {T0: E.coordinator_not_available})


def test_a_question_after_a_change_does_not_overtake_the_one_that_follows_the_coordinator() -> None:
    asked, cluster = moving_questions()
    asked.add("x1", PRODUCER, [T0])
    assert len(cluster.brokers.sent) == 1
    cluster.change(leaders={(TRANSACTION_TOPIC, 1): THIRD})
    asked.add("x1", PRODUCER, [T1])  # in the same tick
    (row,) = cluster.brokers.rows("transactions")
    assert row["topics"] == [{"name": "t", "partitions": [0]}]


# --- markers ------------------------------------------------------------------------------------------------------


def test_markers_go_to_the_leaders_of_the_time_of_the_attempt() -> None:
    sender, brokers, local, catalog = markers({T0: OWN, T1: OTHER})
    assert sender.write_marker(T0, MARKER).value is E.none
    assert local.written == [T0]
    first = sender.write_marker(T1, MARKER)
    (row,) = brokers.rows("markers")
    assert (row["producer_id"], row["producer_epoch"], row["coordinator_epoch"]) == (7, 4, 12)
    assert (row["transaction_result"], row["transaction_version"]) == (True, 2)
    brokers.answer({7: {T1: E.not_leader_or_follower}})
    assert first.value is E.not_leader_or_follower
    catalog.leaders[T1] = THIRD
    second = sender.write_marker(T1, MARKER)
    assert brokers.sent[0][0] == THIRD
    brokers.answer({7: {T1: E.none}})
    assert second.value is E.none


def test_markers_for_one_broker_go_together_but_two_of_a_producer_for_a_partition_keep_their_order() -> None:
    sender, brokers, _, _ = markers({T0: OTHER, T1: OTHER})
    other, later = MARKER._replace(producer_id=8), MARKER._replace(producer_epoch=5, commit=False)
    sender.write_marker(T0, MARKER)
    assert len(brokers.sent) == 1
    promises = [sender.write_marker(T0, later), sender.write_marker(T1, later), sender.write_marker(T0, other)]
    again = sender.write_marker(T0, later)
    brokers.answer({7: {T0: E.none}})
    rows = {(row["producer_id"], row["producer_epoch"]): row["topics"] for row in brokers.rows("markers")}
    assert rows == {
        (7, 5): [{"name": "t", "partition_indexes": [0, 1]}], (8, 4): [{"name": "t", "partition_indexes": [0]}]
    }  # fmt: skip
    brokers.answer({7: {T0: E.none, T1: E.not_enough_replicas}, 8: {T0: E.none}})
    assert [promise.value for promise in promises] == [E.none, E.not_enough_replicas, E.none]
    assert not again.resolved
    brokers.answer(None)
    assert again.value is E.network_exception


def test_a_partition_without_a_leader_has_no_request_and_no_wait() -> None:
    sender, brokers, _, _ = markers({T0: -1, T1: OTHER})
    assert sender.write_marker(T0, MARKER).value is E.not_leader_or_follower
    assert brokers.sent == []
    assert sender.load_end(T1) is None, "the leader waits for its own load"
    assert sender.is_offline(T1, E.network_exception)
    assert not sender.is_offline(T1, E.none)


def test_the_markers_of_one_tick_for_one_broker_are_one_request() -> None:
    sender, brokers, _, _ = markers({T0: OTHER, T1: OTHER})
    promises = [sender.write_marker(T0, MARKER), sender.write_marker(T1, MARKER)]
    assert brokers.rows("markers")[0]["topics"] == [{"name": "t", "partition_indexes": [0, 1]}]
    brokers.answer({7: {T0: E.none, T1: E.not_enough_replicas}})
    assert [promise.value for promise in promises] == [E.none, E.not_enough_replicas]
    assert brokers.sent == []


def test_markers_follow_the_leader_in_flight_as_well_as_queued() -> None:
    sender, cluster = moving_markers({T0: OTHER, T1: OTHER})
    brokers, other = cluster.brokers, MARKER._replace(producer_id=8)
    moved = sender.write_marker(T0, MARKER)
    stays = sender.write_marker(T1, MARKER)
    assert len(brokers.sent) == 1
    queued = sender.write_marker(T0, other)
    cluster.change(leaders={T0: THIRD, T1: OTHER})
    assert [node for node, _, _ in brokers.sent] == [OTHER, THIRD]
    assert brokers.abandoned == [], "a marker of the request still waits there"
    assert {row["producer_id"]: row["topics"][0]["partition_indexes"] for row in brokers.rows("markers", 1)} == {
        7: [0], 8: [0],
    }  # fmt: skip
    brokers.answer({7: {T0: E.none, T1: E.none}})
    assert stays.value is E.none
    assert not moved.resolved, "a late success of the former leader does not count for the next one"
    brokers.answer({7: {T0: E.not_leader_or_follower}, 8: {T0: E.none}})
    assert (moved.value, queued.value) == (E.not_leader_or_follower, E.none)


def test_markers_follow_to_the_own_log_and_a_deleted_topic_has_no_leader() -> None:
    gone = ("gone", 0)
    sender, cluster = moving_markers({T0: OTHER, gone: OTHER})
    here, deleted = sender.write_marker(T0, MARKER), sender.write_marker(gone, MARKER)
    assert len(cluster.brokers.sent) == 1
    cluster.change("gone", leaders={T0: OWN})
    assert cluster.brokers.sent == []
    assert cluster.brokers.abandoned == [(OTHER, MARKERS)]
    assert (here.value, deleted.value, cluster.local.written) == (E.none, E.not_leader_or_follower, [T0])


def test_a_leader_that_comes_back_gets_its_markers_by_a_new_request() -> None:
    sender, cluster = moving_markers({T0: OTHER})
    first = sender.write_marker(T0, MARKER)
    assert len(cluster.brokers.sent) == 1
    cluster.change(leaders={T0: THIRD})
    cluster.change(leaders={T0: OTHER})  # in the same tick: it has never left
    assert [node for node, _, _ in cluster.brokers.sent] == [OTHER]
    assert cluster.brokers.abandoned == []
    cluster.change(leaders={T0: THIRD})
    assert [node for node, _, _ in cluster.brokers.sent] == [THIRD]
    cluster.change(leaders={T0: OTHER})
    assert [node for node, _, _ in cluster.brokers.sent] == [OTHER]
    cluster.brokers.answer({7: {T0: E.none}})
    assert first.value is E.none


# --- the log ------------------------------------------------------------------------------------------------------


class Log:
    """A partition of ``__transaction_state``."""

    max_message_bytes, is_held, log_start_offset, high_watermark = 100, True, 0, 5

    def __init__(self) -> None:
        self.is_enough = False
        self.appended: list[bytes] = []

    def check_in_sync(self) -> None:
        if not self.is_enough:
            raise KafkaError(E.not_enough_replicas)

    def append(self, data: bytes) -> None:
        self.appended.append(data)


def test_a_coordinator_appends_nothing_below_the_minimum() -> None:
    log = Log()
    own = InSyncLog(cast("Any", log))
    with pytest.raises(KafkaError) as refused:
        own.append(b"a")
    assert refused.value.code is E.not_enough_replicas
    assert log.appended == []
    log.is_enough = True
    own.append(b"b")
    assert log.appended == [b"b"]
    assert (own.max_message_bytes, own.is_held, own.log_start_offset, own.high_watermark) == (100, True, 0, 5)
