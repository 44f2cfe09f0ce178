"""A leader that is no replica of the coordinator's partition is cut off: transactions go on when another broker leads.

With three brokers and three replicas each broker is in sync with the coordinator. So a commit waits for the session of
the broker that is cut off, and the markers come after it. Here broker 4 is a replica of records alone.
"""

from __future__ import annotations

import pytest
from support.cluster_nodes import SESSION_MS
from support.replicated_nodes import LAG_MS
from support.simulated_producer import Producing, code_of_produce
from support.transaction_schedule import LONG_REQUEST_MS, RECORDS, committed_fetch, visible

from odradek.core.errors import ErrorCode
from odradek.core.ids import TRANSACTION_TOPIC
from odradek.wire.api_keys import FETCH

E = ErrorCode
COORDINATOR, LEADER = 3, 4
SOON_MS = SESSION_MS + LAG_MS + 2_000
"""The session of the broker that is cut off, the time until the ISR is without it, and two seconds."""


def write(producing: Producing, *, within_ms: int = 5_000) -> None:
    """Writes a record of the transaction to each partition of records, at the leader as the controller has it."""
    nodes = producing.nodes
    for index in (0, 1):
        replies = producing.produce(nodes.leader(RECORDS, index), index=index)
        nodes.run_until(lambda replies=replies: replies, within_ms)
        assert code_of_produce(replies[0]) is E.none


def end(producing: Producing, within_ms: int = 5_000) -> None:
    """Commits."""
    replies = producing.end(commits=True)
    producing.nodes.run_until(lambda: replies, within_ms)
    producing.take_identity(replies[0])


def visible_records(producing: Producing, index: int) -> int:
    """Returns how many records of a partition a reader of committed records sees; −1 without a leader that runs."""
    nodes = producing.nodes
    leader = nodes.leader(RECORDS, index)
    if leader not in nodes.alive:
        return -1
    reply = nodes.brokers[leader].call(FETCH, 12, committed_fetch(index))
    return len(visible(reply.responses[0].partitions[0]))


def test_a_commit_is_visible_and_the_next_transaction_works_when_another_broker_leads() -> None:
    """The markers of the request in flight and those behind it have waited for ``request.timeout.ms`` before."""
    producing = Producing(count=4)
    nodes = producing.nodes
    assert (nodes.leader(RECORDS, 0), LEADER in nodes.registration(TRANSACTION_TOPIC, 1).replicas) == (LEADER, False)
    write(producing)
    end(producing)
    write(producing)  # again: the coordinator has a connection to each leader
    nodes.network.cut_off.add(LEADER)
    began_ms = nodes.world.now_ms
    end(producing)
    assert nodes.leader(RECORDS, 0) == LEADER, "EndTxn does not wait for the markers"
    nodes.run_until(lambda: visible_records(producing, 1) == 2)
    assert nodes.leader(RECORDS, 0) == LEADER, "the marker of another leader does not wait for it"
    nodes.run_until(lambda: visible_records(producing, 0) == 2)
    assert nodes.world.now_ms - began_ms < SOON_MS < LONG_REQUEST_MS
    write(producing)
    end(producing)
    nodes.run_until(lambda: [visible_records(producing, index) for index in (0, 1)] == [3, 3])
    assert nodes.world.now_ms - began_ms < SOON_MS


@pytest.mark.parametrize("is_back", [False, True], ids=["cut off", "back"])
def test_a_batch_whose_question_waits_for_a_coordinator_that_is_cut_off_is_written_when_another_broker_is_it(
    *, is_back: bool
) -> None:
    """Kafka answers NOT_ENOUGH_REPLICAS after ``request.timeout.ms``. ``is_back``: the former coordinator has joined
    again, and never answers the question that it has not got."""
    producing = Producing(count=4)
    nodes = producing.nodes
    nodes.network.cut_off.add(COORDINATOR)
    began_ms = nodes.world.now_ms
    replies = producing.produce(LEADER)
    nodes.run_until_led(TRANSACTION_TOPIC, 1, not_by=COORDINATOR)
    if is_back:
        nodes.network.cut_off.clear()
    codes = []
    while E.none not in codes:  # the next coordinator may still load: the producer sends its batch again
        nodes.run_until(lambda replies=replies: replies)
        codes.append(code_of_produce(replies[0]))
        replies = producing.produce(LEADER)
    assert {*codes} <= {E.none, E.not_enough_replicas}
    assert nodes.world.now_ms - began_ms < SOON_MS < LONG_REQUEST_MS
