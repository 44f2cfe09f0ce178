"""Scenarios of transactions whose coordinator is killed, stopped and moved, or has too few replicas; of markers and
verifications between brokers. See ``SCENARIOS``."""

from __future__ import annotations

from typing import Any

from cluster_conversation import BROKERS
from cluster_group_run import MovingGroup
from cluster_scenarios_replicas import replicated
from cluster_transaction_run import MovingProducer, Scenario, TransactionClusterRun
from scenarios_log import fetch_message
from transaction_requests import COMPLETE, MARKERS, by_topic, marker

from odradek.batches.header import scan
from odradek.wire.api_keys import ADD_PARTITIONS_TO_TXN, FETCH, LIST_OFFSETS


def seen(c: TransactionClusterRun, topic: str, leader: int, *, level: int = 1) -> None:
    """Adds what a reader sees of partition 0: its records, its markers, the aborted transactions."""
    message = fetch_message(topic, 0, 0, isolation_level=level)
    (row,) = c.quietly(FETCH, 12, message, client=f"{leader}/read").responses[0].partitions
    batches = [
        {"offset": header.base_offset, "control": bool(header.is_control), "epoch": header.producer_epoch,
         "producer": header.producer_id}
        for _, header in scan(bytes(row.records or b""))
    ]  # fmt: skip
    names = ("error_code", "high_watermark", "last_stable_offset", "aborted_transactions")
    c.note("read", {"of": topic, "at": leader}, {name: getattr(row, name) for name in names} | {"batches": batches})


def becomes_stable(c: TransactionClusterRun, topic: str, leader: int, end: int) -> None:
    """Waits until the last stable offset is there."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    asked = {"replica_id": -1, "isolation_level": 1, "topics": [{"name": topic, "partitions": [part]}]}

    def ready(reply: Any) -> bool:
        row = reply.topics[0].partitions[0]
        return row.error_code == 0 and row.offset == end

    c.until(LIST_OFFSETS, 6, asked, ready, client=f"{leader}/stable")


def begun(c: TransactionClusterRun, topic: str, broker: int = 2, label: str = "x", **said: Any) -> MovingProducer:
    """A producer with one record in a transaction, whose coordinator is ``broker``. Broker 1 leads the topic."""
    producer = MovingProducer(c, broker, label, **said)
    producer.init()
    producer.produce(topic, 1)
    return producer


# --- coordinators that move -------------------------------------------------------------------------------------


def a_transaction_outlives_a_killed_coordinator(c: TransactionClusterRun) -> None:
    topic = replicated(c, "t", (1, 3))
    producer = begun(c, topic)
    producer.found_at(*BROKERS)
    producer.described()
    c.kill(2)
    c.await_fence(2)
    producer.move_to(3)
    producer.found_at(1, 3)
    producer.described()
    producer.produce(topic, 1)
    producer.commit()
    becomes_stable(c, topic, 1, 3)
    seen(c, topic, 1)
    producer.produce(topic, 1)
    producer.abort()
    becomes_stable(c, topic, 1, 5)
    seen(c, topic, 1)
    producer.described()


def a_transaction_outlives_a_stopped_coordinator(c: TransactionClusterRun) -> None:
    topic = replicated(c, "t", (1, 3))
    producer = begun(c, topic)
    c.stop(2)
    producer.move_to(3)
    producer.abort()
    becomes_stable(c, topic, 1, 2)
    seen(c, topic, 1)
    producer.init()


def every_request_at_a_former_coordinator_of_transactions(c: TransactionClusterRun) -> None:
    topic = replicated(c, "t", (1, 3))
    producer = begun(c, topic)
    successor = c.move_log(2)
    group = c.key_at(1)
    for at in (2, 1):
        producer.ask(at)
        producer.init()
        producer.recover()
        producer.add((topic, 0))
        producer.add((topic, 0), version=3, producer_epoch=9)
        producer.add_offsets(group)
        producer.end(True)
        producer.end(False, version=4)
        producer.described()
    producer.listed_at()
    producer.move_to(successor)
    producer.commit()
    producer.listed_at()


def a_new_producer_at_the_new_coordinator(c: TransactionClusterRun) -> None:
    """It aborts the transaction of the former one, whose requests are refused from then on."""
    topic = replicated(c, "t", (1, 3))
    old = begun(c, topic)
    former = (old.id, old.epoch)
    old.move_to(c.move_log(2))
    old.init()
    old.wait_for(*COMPLETE)
    old.init()
    becomes_stable(c, topic, 1, 2)
    newer, (old.id, old.epoch) = (old.id, old.epoch), former
    old.produce(topic, 1)
    old.end(True)
    old.add((topic, 0))
    old.recover()
    old.id, old.epoch = newer
    old.produce(topic, 1)
    old.commit()
    becomes_stable(c, topic, 1, 4)
    seen(c, topic, 1)


def a_timeout_after_a_move(c: TransactionClusterRun) -> None:
    """The time runs from the transaction's begin. The next coordinator aborts it, and fences its producer."""
    topic = replicated(c, "t", (1, 3))
    producer = begun(c, topic, timeout_ms=4_000)
    c.kill(2)
    c.await_fence(2)
    producer.move_to(3)
    producer.wait_for(*COMPLETE)
    becomes_stable(c, topic, 1, 2)
    seen(c, topic, 1)
    producer.end(True)
    producer.produce(topic, 1)
    producer.described()
    producer.init()


def offsets_of_a_transaction_after_moves(c: TransactionClusterRun) -> None:
    """The coordinator of the group moves before the transaction ends, and that of the transaction moves afterwards."""
    topic = replicated(c, "t", (1, 3))
    group = MovingGroup(c, 3, "g")
    group.commits(topic, 4)
    producer = MovingProducer(c, 2)
    producer.init()
    producer.add_offsets(group.group, version=3)
    producer.offsets_at(3, group.group, (topic, 0, 7), version=3)
    group.fetches(topic)
    group.fetches(topic, stable=True)
    c.kill(3)
    c.await_fence(3)
    group.move_to(1)
    group.fetches(topic)
    group.fetches(topic, stable=True)
    producer.offsets_at(1, group.group, (topic, 0, 8), version=3)
    producer.commit(version=4)
    c.start(3)
    group.at = 1
    c.until(9, 8, {
        "groups": [{"group_id": group.group, "topics": [{"name": topic, "partition_indexes": [0]}]}],
        "require_stable": True,
    }, lambda reply: reply.groups[0].topics[0].partitions[0].error_code == 0, client="1/stable")  # fmt: skip
    group.fetches(topic)
    group.fetches(topic, stable=True)


def every_request_during_a_load_of_transactions(c: TransactionClusterRun) -> None:
    """The next coordinator has much to load, and a hundred transactional ids. Then it has all of them."""
    topic, other = replicated(c, "t", (1, 3)), replicated(c, "u", (1, 3))
    producer = begun(c, topic)
    ids = c.many_ids(2, 100)
    c.nodes.make_transaction_loads_slow("2", producer.index)
    c.kill(2)
    producer.ask(3)
    producer.await_load()
    producer.init()
    producer.recover()
    producer.add((topic, 0))
    for only in (True, False):
        row = producer.identity({"verify_only": only, "topics": by_topic([(topic, 0)])})
        c.call(ADD_PARTITIONS_TO_TXN, 5, {"transactions": [row]}, client="3/verify")
    producer.add_offsets(c.key_at(1))
    producer.end(True)
    producer.end(False, version=4)
    producer.described()
    producer.listed_at(3)
    producer.found_at(3)
    producer.produce(topic, 1)
    producer.produce(other, 1)
    producer.await_load()
    producer.move_to(3)
    producer.described()
    c.note("loaded", {"at": 3}, c.states_of(ids, 3))
    producer.produce(other, 1)
    producer.commit()
    becomes_stable(c, topic, 1, 3)
    becomes_stable(c, other, 1, 2)
    seen(c, topic, 1)
    seen(c, other, 1)
    c.start(2)


# --- too few replicas -------------------------------------------------------------------------------------------


def transactions_below_the_minimum(c: TransactionClusterRun) -> None:
    """Only the coordinator is left: nothing can be written to the log."""
    topic = replicated(c, "t", (2,))
    producer = MovingProducer(c, 2)
    producer.init()
    producer.produce(topic, 2)
    for other in (1, 3):
        c.kill(other)
        c.await_fence(other, at=2)
    c.await_log(1, at=2, replicas=(2,))
    producer.described()
    producer.end(True)
    producer.described()
    producer.init()
    producer.produce(topic, 2)
    producer.add((topic, 0))
    for other in (1, 3):
        c.start_alone(other, at=2)
    producer.move_to(2)
    producer.init()
    producer.wait_for("Empty", *COMPLETE)
    producer.described()


def an_end_waits_for_replicas(c: TransactionClusterRun) -> None:
    """Both followers are halted. They leave the ISR when their sessions end: the decision is not acknowledged."""
    topic = replicated(c, "t", (2,))
    producer = MovingProducer(c, 2)
    producer.init()
    producer.produce(topic, 2)
    c.pause(1)
    c.pause(3)
    producer.end(True)
    c.resume(1)
    c.resume(3)
    c.await_log(1, at=2, replicas=BROKERS)
    producer.wait_for(*COMPLETE)
    becomes_stable(c, topic, 2, 2)
    seen(c, topic, 2)
    producer.described()


# --- between brokers --------------------------------------------------------------------------------------------


def markers_with_old_coordinator_epochs(c: TransactionClusterRun) -> None:
    topic = replicated(c, "t", (1, 3))
    producer = begun(c, topic)

    def write(at: int, *, commit: bool = True, **said: Any) -> None:
        row = marker(producer, commit, (topic, 0), **said)
        unordered = ("partitions", "topics", "markers")
        c.call(MARKERS, 2, {"markers": [row]}, client=f"{at}/markers", unordered=unordered)

    write(3, coordinator_epoch=40)
    write(1, commit=False, coordinator_epoch=40)
    seen(c, topic, 1)
    write(1, coordinator_epoch=39)
    write(1, commit=False, coordinator_epoch=39)
    write(1, coordinator_epoch=40, producer_epoch=0, producer_id=producer.id + 777)
    write(1, coordinator_epoch=41)
    c.kill(1)
    c.await_fence(1, at=3)
    write(3, coordinator_epoch=40)
    write(3, coordinator_epoch=42, producer_epoch=9)
    write(3, coordinator_epoch=42)
    seen(c, topic, 3)


def verifications_of_brokers(c: TransactionClusterRun) -> None:
    """AddPartitionsToTxn as a leader asks: at the coordinator, and at brokers that are none."""
    topic, other = replicated(c, "t", (1, 3)), replicated(c, "u", (3, 1))
    producer = begun(c, topic)
    for at in (2, 1, 3):
        for only in (True, False):
            row = producer.identity({"verify_only": only, "topics": by_topic([(topic, 0), (other, 0)])})
            unordered = ("results_by_partition", "topic_results", "results_by_transaction")
            c.call(ADD_PARTITIONS_TO_TXN, 5, {"transactions": [row]}, client=f"{at}/verify", unordered=unordered)
    producer.produce(other, 1)
    producer.produce(other, 3)
    producer.commit()
    row = producer.identity({"verify_only": True, "topics": by_topic([(topic, 0)])})
    c.call(ADD_PARTITIONS_TO_TXN, 5, {"transactions": [row]}, client="2/verify")
    producer.produce(topic, 1, version=11)
    seen(c, topic, 1)
    seen(c, other, 3)


def records_while_the_coordinator_is_away(c: TransactionClusterRun) -> None:
    """The leader cannot ask the coordinator about a first record; a later record needs no answer."""
    topic, other = replicated(c, "t", (1, 3)), replicated(c, "u", (1, 3))
    producer = begun(c, topic)
    c.pause(2)
    producer.produce(topic, 1)
    c.kill(2)
    producer.produce(topic, 1)
    producer.produce(other, 1)
    c.await_fence(2)
    producer.move_to(3)
    producer.produce(other, 1)
    producer.commit()
    becomes_stable(c, topic, 1, 4)
    seen(c, topic, 1)
    seen(c, other, 1)


def a_transaction_over_a_new_leader(c: TransactionClusterRun) -> None:
    """The leader of the partition is killed in the transaction: the next one knows the open transaction."""
    topic = replicated(c, "t", (1, 3))
    producer = begun(c, topic)
    c.kill(1)
    c.await_fence(1, at=3)
    producer.produce(topic, 2)
    producer.produce(topic, 3)
    seen(c, topic, 3)
    producer.commit()
    becomes_stable(c, topic, 3, 3)
    seen(c, topic, 3)
    c.start(1)
    producer.produce(topic, 3)
    producer.abort()
    becomes_stable(c, topic, 3, 5)
    seen(c, topic, 3)


SCENARIOS: tuple[Scenario, ...] = (
    a_transaction_outlives_a_killed_coordinator, a_transaction_outlives_a_stopped_coordinator,
    every_request_at_a_former_coordinator_of_transactions, a_new_producer_at_the_new_coordinator,
    a_timeout_after_a_move, offsets_of_a_transaction_after_moves,
    transactions_below_the_minimum, an_end_waits_for_replicas, markers_with_old_coordinator_epochs,
    verifications_of_brokers, records_while_the_coordinator_is_away, a_transaction_over_a_new_leader,
    every_request_during_a_load_of_transactions,
)  # fmt: skip
