"""Scenarios of topics with several replicas: stops and kills in each order, and what clients are answered then.

See ``SCENARIOS``. They run in the cluster of ``cluster_scenarios_replicas``.
"""

from __future__ import annotations

from cluster_conversation import BROKERS, CONTROLLER, ClusterRun
from cluster_scenarios_admin import BROKER, SET, change
from cluster_scenarios_replicas import (
    PREFERRED,
    UNCLEAN,
    await_isr,
    elect,
    offsets,
    partitions_at,
    read,
    replicated,
    write,
)
from scenarios_log import START_MS, batch, produce_message

from odradek.core.errors import ErrorCode

_LATER = {"timeout": 10_000}
LATER_MS = START_MS + 60_000


def epoch_end(c: ClusterRun, name: str, at: int, epoch: int, *, current: int = -1) -> None:
    """Asks a broker where a leader epoch ends. ``current``: the epoch that the client knows."""
    rows = [{"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}]
    c.call(23, 4, {"replica_id": -1, "topics": [{"topic": name, "partitions": rows}]}, client=str(at))


def delete_records(c: ClusterRun, name: str, at: int, before: int) -> None:
    rows = [{"name": name, "partitions": [{"partition_index": 0, "offset": before}]}]
    c.call(21, 2, {"topics": rows} | _LATER, client=str(at))


# --- stops in each order ----------------------------------------------------------------------------------------


def both_replicas_stop_cleanly(c: ClusterRun) -> None:
    name = replicated(c, "t", (2, 3))
    write(c, name, 2, count=2)
    c.stop(3)
    c.await_fence(3)
    c.stop(2)
    c.await_fence(2)
    partitions_at(c, name, 1)
    c.start_alone(3)
    partitions_at(c, name, 1)
    c.start_alone(2)
    await_isr(c, name, (2, 3))
    partitions_at(c, name, 1)
    read(c, name, 2)


def both_replicas_stop_cleanly_below_the_minimum(c: ClusterRun) -> None:
    """The one that stopped first is eligible, so it leads when it is back first."""
    name = replicated(c, "t", (2, 3), min_insync_replicas="2")
    write(c, name, 2, count=2)
    c.stop(3)
    c.await_fence(3)
    write(c, name, 2)
    c.stop(2)
    c.await_fence(2)
    partitions_at(c, name, 1)
    c.start_alone(3)
    await_isr(c, name, (3,))
    partitions_at(c, name, 1)
    c.start_alone(2)
    await_isr(c, name, (2, 3))
    partitions_at(c, name, 1)
    read(c, name, 3)


def both_replicas_are_killed_below_the_minimum(c: ClusterRun) -> None:
    """A kill is an unclean stop: such a replica is not eligible. The last known leader leads without a setting."""
    name = replicated(c, "t", (2, 3), min_insync_replicas="2")
    c.kill(3)
    c.await_fence(3)
    c.kill(2)
    c.await_fence(2)
    partitions_at(c, name, 1)
    c.start_alone(3)
    partitions_at(c, name, 1)
    c.start_alone(2)
    await_isr(c, name, (2, 3))
    partitions_at(c, name, 1)


def a_clean_stop_after_a_kill(c: ClusterRun) -> None:
    name = replicated(c, "t", (2, 3), min_insync_replicas="2")
    c.kill(3)
    c.await_fence(3)
    c.stop(2)
    c.await_fence(2)
    partitions_at(c, name, 1)
    c.start_alone(2)
    await_isr(c, name, (2,))
    partitions_at(c, name, 1)
    c.start_alone(3)
    await_isr(c, name, (2, 3))
    partitions_at(c, name, 1)


def every_broker_restarts_in_turn(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 2, 3), min_insync_replicas="2")
    for broker in (3, 2):
        write(c, name, 1)
        c.stop(broker)
        c.settle()
        write(c, name, 1)
        c.start(broker)
        await_isr(c, name, BROKERS)
    partitions_at(c, name, 1, 3)
    read(c, name, 1)


def a_paused_leader(c: ClusterRun) -> None:
    """A halted broker is fenced. It goes on, and learns that it leads no more."""
    name = replicated(c, "t", (3, 1), (1, 3))
    write(c, name, 3)
    c.pause(3)
    c.await_fence(3)
    partitions_at(c, name, 1)
    write(c, name, 1)
    c.resume(3)
    for index in (0, 1):
        await_isr(c, name, (1, 3), index)
    partitions_at(c, name, 1, 3)
    write(c, name, 3)
    read(c, name, 1)


def an_unregistered_replica(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 3), (3, 1))
    c.stop(3)
    c.await_fence(3)
    c.call(64, 0, {"broker_id": 3}, client="1")
    c.settle()
    partitions_at(c, name, 1)
    elect(c, PREFERRED, {name: [0, 1]})
    c.start(3)
    for index in (0, 1):
        await_isr(c, name, (1, 3), index)
    partitions_at(c, name, 2)


def leaders_while_the_controller_is_down(c: ClusterRun) -> None:
    """Nothing changes: neither leader nor ISR."""
    name = replicated(c, "t", (1, 2), (2, 1))
    c.kill(CONTROLLER)
    partitions_at(c, name, 1, 2)
    write(c, name, 1)
    write(c, name, 2, index=1)
    read(c, name, 1)
    c.start(CONTROLLER)
    c.settle()
    partitions_at(c, name, 1)
    elect(c, PREFERRED, {name: [0, 1]})


# --- what clients are answered ----------------------------------------------------------------------------------


def epochs_after_an_election(c: ClusterRun) -> None:
    name = replicated(c, "t", (3, 1, 2))
    write(c, name, 3, count=3)
    c.stop(3)
    c.settle()
    write(c, name, 1, count=2)
    for epoch in (-1, 0, 1, 2):
        epoch_end(c, name, 1, epoch)
    for current in (0, 1, 2):
        epoch_end(c, name, 1, 0, current=current)
        read(c, name, 1, 4, current_leader_epoch=current)
        offsets(c, name, 1, -1, epoch=current)
    offsets(c, name, 1)
    c.start(3)
    await_isr(c, name, BROKERS)
    elect(c, PREFERRED, {name: [0]})
    write(c, name, 3)
    for epoch in (0, 1, 2, 3):
        epoch_end(c, name, 3, epoch)


def a_new_leader_that_does_not_know_the_end(c: ClusterRun) -> None:
    """Broker 3 is in sync and halted, so the next leader does not learn whether broker 3 has the last records
    (KIP-207)."""
    name = replicated(c, "t", (2, 1, 3))
    c.stop(2)
    c.settle()
    write(c, name, 1, count=3)
    c.start(2)
    await_isr(c, name, BROKERS)
    c.pause(3)
    write(c, name, 1, count=2, acks=1, first_ms=LATER_MS)
    c.nodes.pass_ms(300)
    elect(c, PREFERRED, {name: [0]})
    lookups_of_all_kinds(c, name, 2)
    c.resume(3)
    await_isr(c, name, BROKERS)
    c.settle()
    lookups_of_all_kinds(c, name, 2)


def lookups_of_all_kinds(c: ClusterRun, name: str, at: int) -> None:
    """Looks for offsets: at each end, by time, and by the requests of earlier clients."""
    for version in (4, 5):
        for isolation in (0, 1):
            for time in (-1, -2, 0, LATER_MS, LATER_MS + 10**9):
                rows = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": time}]
                asked = {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": name, "partitions": rows}]}
                c.call(2, version, asked, client=str(at))
    offsets(c, name, at, -1, -3, -4)
    read(c, name, at)
    read(c, name, at, 3)
    read(c, name, at, 4)
    read(c, name, at, 6)
    epoch_end(c, name, at, 0)
    epoch_end(c, name, at, 1)


def requests_at_a_follower(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 2))
    write(c, name, 1, count=3)
    c.settle()
    for broker in (2, 3):
        write(c, name, broker)
        write(c, name, broker, acks=1)
        offsets(c, name, broker, -1)
        epoch_end(c, name, broker, 0)
        delete_records(c, name, broker, 1)
    read(c, name, 3)


def a_consumer_at_a_follower(c: ClusterRun) -> None:
    """As in Kafka, a follower serves consumers below its high watermark."""
    name = replicated(c, "t", (1, 2))
    write(c, name, 1, count=3)
    write(c, name, 1)
    c.settle()
    c.nodes.pass_ms(1000)
    read(c, name, 2)
    read(c, name, 2, 2)
    read(c, name, 2, 4)
    read(c, name, 2, 9)
    read(c, name, 2, 2, current_leader_epoch=0)
    read(c, name, 2, 2, current_leader_epoch=1)


def records_are_deleted_with_replicas(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 2, 3))
    write(c, name, 1, count=5)
    delete_records(c, name, 1, 2)
    delete_records(c, name, 1, 9)
    c.kill(3)
    c.await_fence(3)
    delete_records(c, name, 1, 4)
    offsets(c, name, 1, -2)
    c.start(3)
    await_isr(c, name, BROKERS)
    delete_records(c, name, 1, -1)
    offsets(c, name, 1, -2, -1)


def a_producer_over_a_change_of_leaders(c: ClusterRun) -> None:
    """The producer's state is replicated: the new leader knows the sequence numbers."""
    name = replicated(c, "t", (3, 1))
    asked = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    given = c.until(22, 4, asked, lambda reply: reply.error_code is ErrorCode.none)
    producer = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}

    def send(at: int, sequence: int, count: int) -> None:
        """The producer id is another one in each run, so the trace has only what it leads to."""
        message = produce_message(name, batch(count, base_sequence=sequence, **producer))
        found = c.quietly(0, 12, message, client=str(at)).responses[0].partition_responses[0]
        asked = {"at": at, "sequence": sequence, "count": count}
        c.note("write", asked, {"code": found.error_code.name, "base offset": found.base_offset})

    send(3, 0, 2)
    send(3, 2, 2)
    c.kill(3)
    c.await_fence(3)
    send(1, 2, 2)
    send(1, 9, 1)
    send(1, 4, 1)
    c.start(3)
    await_isr(c, name, (1, 3))
    elect(c, PREFERRED, {name: [0]})
    send(3, 4, 1)
    send(3, 5, 1)
    offsets(c, name, 3, -1)


def the_minimum_of_the_cluster(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 3))
    change(c, 1, BROKER, "", ("min.insync.replicas", SET, "2"))
    c.settle()
    write(c, name, 1)
    c.stop(3)
    c.settle()
    write(c, name, 1)
    write(c, name, 1, acks=1)
    partitions_at(c, name, 1)
    read(c, name, 1)
    c.start(3)
    await_isr(c, name, (1, 3))
    read(c, name, 1)
    change(c, 1, BROKER, "", ("min.insync.replicas", SET, "1"))
    c.settle()


def a_minimum_above_the_replicas(c: ClusterRun) -> None:
    name = replicated(c, "t", (1,), min_insync_replicas="3")
    write(c, name, 1)
    read(c, name, 1)
    other = replicated(c, "two", (1, 2), min_insync_replicas="3")
    write(c, other, 1)
    c.stop(2)
    c.settle()
    write(c, other, 1)
    partitions_at(c, other, 1)
    c.start(2)
    await_isr(c, other, (1, 2))


def partitions_are_added_while_a_broker_is_away(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 3), (2, 3))
    c.stop(3)
    c.await_fence(3)
    for rows in ([[3, 1]], [[1, 2], [2, 3]], [[3, 9]]):
        assignments = [{"broker_ids": row} for row in rows]
        count = 2 + len(rows)
        asked = {"topics": [{"name": name, "count": count, "assignments": assignments}], "validate_only": False}
        c.call(37, 3, asked | _LATER, client="1")
    c.settle()
    partitions_at(c, name, 2)
    c.start(3)
    for index in range(2):
        await_isr(c, name, (1, 3) if index == 0 else (2, 3), index)
    partitions_at(c, name, 1)


def elections_of_all_partitions(c: ClusterRun) -> None:
    one, two = replicated(c, "one", (3, 1), (1, 3)), replicated(c, "two", (3, 2))
    elect(c, PREFERRED, None)
    c.stop(3)
    c.settle()
    elect(c, PREFERRED, None)
    elect(c, UNCLEAN, None)
    c.start(3)
    for name in (one, two):
        await_isr(c, name, (1, 3) if name == one else (2, 3))
    elect(c, PREFERRED, None, client="3")
    for name in (one, two):
        partitions_at(c, name, 1)


SCENARIOS = (
    both_replicas_stop_cleanly, both_replicas_stop_cleanly_below_the_minimum,
    both_replicas_are_killed_below_the_minimum, a_clean_stop_after_a_kill, every_broker_restarts_in_turn,
    a_paused_leader, an_unregistered_replica, leaders_while_the_controller_is_down, epochs_after_an_election,
    a_new_leader_that_does_not_know_the_end, requests_at_a_follower, a_consumer_at_a_follower,
    records_are_deleted_with_replicas, a_producer_over_a_change_of_leaders, a_minimum_above_the_replicas,
    partitions_are_added_while_a_broker_is_away, elections_of_all_partitions, the_minimum_of_the_cluster,
)  # fmt: skip
