"""Questions to coordinators and markers for leaders on other brokers, with brokers that answer by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek.broker.remote.node_request import NodeRequest
from odradek.broker.transactions.across_brokers import InSyncLog, MarkersForLeaders, PartitionsAtCoordinators
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
    """Other brokers: requests wait for ``answer``."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, NodeRequest[Any], Deferred[Any]]] = []

    def send(self, node_id: int, request: NodeRequest[Any], timeout_ms: int = 0, *, channel: Any = None) -> Any:
        promise: Deferred[Any] = Deferred()
        self.sent.append((node_id, request, promise))
        return promise

    def answer(self, reply: Any) -> None:
        self.sent.pop(0)[2].resolve(reply)

    def rows(self, name: str) -> list[Mapping[str, Any]]:
        """The rows of the oldest request."""
        return cast("list[Mapping[str, Any]]", cast("Mapping[str, Any]", self.sent[0][1].body)[name])


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


def questions(leaders: tuple[int, ...] = (OWN, OTHER)) -> tuple[PartitionsAtCoordinators, Brokers]:
    brokers = Brokers()
    catalog: Any = Catalog({(TRANSACTION_TOPIC, at): leader for at, leader in enumerate(leaders)})
    return PartitionsAtCoordinators(catalog, OWN, cast("Any", brokers), cast("Any", Local())), brokers


def markers(leaders: dict[PartitionKey, int]) -> tuple[MarkersForLeaders, Brokers, Local, Catalog]:
    brokers, local, catalog = Brokers(), Local(), Catalog(leaders)
    made = MarkersForLeaders(cast("Any", catalog), OWN, cast("Any", brokers), cast("Any", local))
    return made, brokers, local, catalog


# --- questions ----------------------------------------------------------------------------------------------------


def test_the_own_coordinator_is_asked_at_once() -> None:
    asked, brokers = questions()
    assert asked.add("x0", PRODUCER, {T0}).value == {T0: E.none}
    assert brokers.sent == []


def test_questions_that_come_during_a_request_go_together() -> None:
    asked, brokers = questions()
    first = asked.verify("x1", PRODUCER, [T0])
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
