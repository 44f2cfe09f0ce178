"""Whole brokers in a simulated world replicate partitions: followers, acks, watermark, ISR, elections after a kill."""

from __future__ import annotations

import logging

import pytest
from support.cluster_nodes import logs_of
from support.replicated_nodes import LAG_MS, NONE, ReplicatedNodes, bytes_below_watermark, fetch_message
from support.simulated_brokers import SimulatedLink

from odradek.broker.remote.peers import REQUEST_TIMEOUT_MS
from odradek.core.errors import ErrorCode
from odradek.wire import fetch_messages, frames
from odradek.wire.api_keys import FETCH
from odradek.wire.fetch_messages import FetchReply

THREE = (1, 2, 3)
ALTER_PARTITION = 56


@pytest.fixture
def nodes() -> ReplicatedNodes:
    return ReplicatedNodes()


def test_followers_have_the_bytes_of_the_leader(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE, (2, 3, 1))
    assert [nodes.produce(1, 3), nodes.produce(1, 2), nodes.produce(2, 4, index=1)] == [(NONE, 0), (NONE, 3), (NONE, 0)]
    for index, end in ((0, 5), (1, 4)):
        nodes.run_until_equal(index=index)
        whole = {bytes_below_watermark(nodes.partition(number, index=index)) for number in THREE}
        assert len(whole) == 1
        assert nodes.partition(3, index=index).high_watermark == end
        assert nodes.registration(index=index).isr == ((1, 2, 3) if index == 0 else (2, 3, 1))
    assert nodes.fetch(1, 0).high_watermark == 5


# --- acks -------------------------------------------------------------------------------------------------------


def test_a_record_is_acknowledged_when_the_in_sync_replicas_have_it(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    nodes.network.cut_off.update({2, 3})
    assert nodes.produce(1, acks=1) == (NONE, 0), "acks=1 needs the leader alone"
    assert nodes.produce(1, acks=-1, timeout_ms=400)[0] is ErrorCode.request_timed_out
    leader = nodes.partition(1)
    assert (leader.log_end_offset, leader.high_watermark) == (2, 0)
    row = nodes.fetch(1, 0)
    assert (row.high_watermark, row.records or b"") == (0, b""), "no reader is above the high watermark"
    nodes.network.cut_off.clear()
    nodes.run_until_equal()
    assert nodes.fetch(1, 0).high_watermark == 2


def test_too_few_replicas_refuse_a_record_before_the_append(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE, min_insync_replicas="2")
    for number in (2, 3):
        nodes.brokers[number].kill()
    nodes.run_until_in_sync(1)
    leader = nodes.partition(1)
    assert nodes.produce(1)[0] is ErrorCode.not_enough_replicas
    assert leader.log_end_offset == 0
    assert nodes.produce(1, acks=1) == (NONE, 0)
    assert (leader.log_end_offset, leader.high_watermark) == (1, 0), "accepted, and not readable (KIP-966)"
    nodes.brokers[2].begin()
    nodes.run_until_in_sync(1, 2)
    nodes.run_until_equal()
    assert nodes.produce(1) == (NONE, 1)
    assert nodes.fetch(1, 0).high_watermark == 2


def test_replicas_that_leave_after_the_append_hold_the_watermark(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE, min_insync_replicas="3")
    nodes.network.cut_off.add(3)
    nodes.partition(1).wait_for(1, (found := []).append)
    assert nodes.produce(1, timeout_ms=100)[0] is ErrorCode.request_timed_out
    nodes.run_until_in_sync(1, 2)
    assert found == [], "the high watermark does not rise below the minimum"
    nodes.network.cut_off.clear()
    nodes.run_until_in_sync(1, 2, 3)
    nodes.run_until_equal()
    assert found == [NONE]


def test_a_deposed_leader_ends_what_waits_there(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    nodes.network.cut_off.update({2, 3})
    found: list[ErrorCode] = []
    assert nodes.produce(1, acks=1) == (NONE, 0)
    nodes.partition(1).wait_for(1, found.append)
    nodes.network.cut_off.clear()
    nodes.network.cut_off.add(1)
    new = nodes.run_until_led(not_by=1)
    nodes.network.cut_off.clear()
    nodes.run_until(lambda: found)
    assert found == [ErrorCode.not_leader_or_follower]
    nodes.run_until_in_sync(*THREE)
    nodes.run_until_equal()
    assert nodes.partition(1).log_end_offset == nodes.partition(new).log_end_offset == 0, "acks=1 has lost its record"


# --- the ISR ----------------------------------------------------------------------------------------------------


def test_a_follower_that_is_behind_leaves_the_isr_and_comes_back(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    nodes.network.cut_off.add(3)
    began_ms = nodes.world.now_ms
    nodes.partition(1).wait_for(1, (found := []).append)
    assert nodes.produce(1, acks=1) == (NONE, 0)
    nodes.run_until_in_sync(1, 2)
    assert nodes.world.now_ms - began_ms <= 2 * LAG_MS
    nodes.run_until(lambda: found)
    assert found == [NONE]
    nodes.network.cut_off.clear()
    nodes.run_until_in_sync(1, 2, 3)
    assert nodes.partition(3).log_end_offset == 1


def test_a_request_for_an_isr_that_comes_after_a_later_one_changes_nothing(nodes, monkeypatch) -> None:
    """The first copy is lost, and the second one is refused, because the follower is fenced. When it is not fenced any
    more, the first copy arrives. It is still right, but the leader has got its answer and waits for no follower."""
    nodes.create("t", THREE)
    nodes.network.cut_off.add(3)
    assert nodes.produce(1, acks=1) == (NONE, 0)
    nodes.run_until_in_sync(1, 2)
    sent: list[bytes] = []
    write = SimulatedLink.write

    def lose_the_first(self: SimulatedLink, data: bytes) -> None:
        is_asked = frames.read_api(data[4:])[0] == ALTER_PARTITION
        if is_asked:
            sent.append(data)
        if not is_asked or len(sent) > 1:
            write(self, data)

    monkeypatch.setattr(SimulatedLink, "write", lose_the_first)
    nodes.network.cut_off.clear()
    nodes.run_until(lambda: sent)
    nodes.network.cut_off.add(3)
    leader = nodes.partition(1).leader
    assert leader is not None
    nodes.run_until(lambda: leader.pending is None, 2 * REQUEST_TIMEOUT_MS)
    assert len(sent) == 2
    nodes.network.cut_off.clear()
    nodes.run_until(lambda: not nodes.controller.broker.catalog.registered_brokers()[3].is_fenced)
    before, answers = nodes.registration(), []
    nodes.controller.node.accept(answers.append, lambda: None).send(sent[0])
    nodes.run_until(lambda: answers)
    code = frames.decode_reply(ALTER_PARTITION, 3, answers[0])[1].error_code
    assert (code, nodes.registration()) == (ErrorCode.request_timed_out, before)
    nodes.run_until_in_sync(1, 2, 3)


# --- consumers at followers (KIP-392) ---------------------------------------------------------------------------


def test_a_consumer_reads_at_a_follower_up_to_the_watermark_that_it_knows(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    nodes.produce(1, 3)
    nodes.run_until_equal()
    at_leader, at_follower = nodes.fetch(1, 0), nodes.fetch(2, 0)
    assert (at_follower.error_code, at_follower.high_watermark) == (NONE, 3)
    assert bytes(at_follower.records) == bytes(at_leader.records) != b""
    assert nodes.fetch(2, 0, version=10).error_code is ErrorCode.not_leader_or_follower, (
        "a consumer from before KIP-392"
    )
    assert nodes.fetch(2, 9).error_code is ErrorCode.offset_out_of_range
    nodes.network.cut_off.add(3)
    assert nodes.produce(1, acks=1) == (NONE, 3)
    nodes.run_until(lambda: nodes.partition(2).log_end_offset == 4)
    row = nodes.fetch(2, 3)
    assert (row.error_code, row.high_watermark, row.records) == (NONE, 3, b""), "broker 3 does not have the record yet"
    nodes.run_until_in_sync(1, 2)
    nodes.run_until_equal()
    row = nodes.fetch(2, 3)
    assert (row.high_watermark, bool(row.records)) == (4, True)


def test_a_consumer_that_waits_at_a_follower_is_answered_when_the_watermark_rises(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    nodes.run_until_equal()
    answers: list[bytes] = []
    wire = nodes.brokers[2].node.connect(answers.append)
    message = fetch_message("t", 0, 0) | {"max_wait": 20_000}
    wire.send(frames.encode_request(FETCH, 12, 1, "client", message))
    nodes.world.advance(2_000)
    assert not answers
    began_ms = nodes.world.now_ms
    assert nodes.produce(1, 2) == (NONE, 0)
    nodes.run_until(lambda: answers)
    row = frames.decode_reply(FETCH, 12, answers[0])[1].responses[0].partitions[0]
    assert (row.error_code, row.high_watermark, bool(row.records)) == (NONE, 2, True)
    assert nodes.world.now_ms - began_ms < 2_000


def test_a_consumer_with_a_former_leader_epoch_is_refused_at_a_follower(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    nodes.produce(1, 3)
    nodes.run_until_equal()
    nodes.brokers[1].kill()
    leader = nodes.run_until_led(not_by=1)
    nodes.settle()
    (follower,) = set(THREE) - {1, leader}
    for epoch, code in ((0, ErrorCode.fenced_leader_epoch), (1, NONE), (2, ErrorCode.unknown_leader_epoch)):
        message = fetch_message("t", 0, 0)
        message["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
        row = nodes.brokers[follower].call(FETCH, 12, message).responses[0].partitions[0]
        assert row.error_code is code


# --- the death of a leader --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_what_is_acknowledged_survives_the_kill_of_the_leader(seed: int) -> None:
    nodes = ReplicatedNodes(seed=seed)
    nodes.create("t", THREE, min_insync_replicas="2")
    known: dict[int, bytes] = {}
    for _ in range(6):
        leader = nodes.run_until_led()
        for _ in range(5):
            code, offset = nodes.produce(leader, 2)
            assert code is NONE
            known[offset] = b""
        nodes.produce(leader, 3, acks=1)
        nodes.brokers[leader].kill()
        new = nodes.run_until_led(not_by=leader)
        assert new != leader
        nodes.brokers[leader].begin()
        nodes.brokers[leader].run_until_joined()
        nodes.run_until_in_sync(*THREE)
    nodes.run_until_equal()
    assert len({bytes_below_watermark(nodes.partition(number)) for number in THREE}) == 1
    end = nodes.partition(1).log_end_offset
    logs = [nodes.partition(number).log for number in THREE]
    entries = {tuple(one for one in log.epochs.entries if one.start_offset < end) for log in logs}
    assert len(entries) == 1, "a leader's epoch without records is that of the leader alone"
    assert max(known) < nodes.partition(1).high_watermark


# --- deletions --------------------------------------------------------------------------------------------------


def test_a_deletion_waits_for_the_replicas_outside_of_the_fence(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    for _ in range(5):
        assert nodes.produce(1, 2)[0] is NONE
    nodes.run_until_equal()
    assert nodes.delete_records(1, 3) == (NONE, 3)
    assert [nodes.partition(number).log_start_offset for number in THREE] == [3, 3, 3]
    nodes.network.cut_off.add(3)
    assert nodes.delete_records(1, 6, timeout_ms=300) == (ErrorCode.request_timed_out, 3)
    assert nodes.partition(1).log_start_offset == 6
    assert nodes.delete_records(1, -1) == (NONE, 10), "when broker 3 is fenced, it does not count"
    assert nodes.delete_records(1, 11)[0] is ErrorCode.offset_out_of_range
    nodes.network.cut_off.clear()
    nodes.run_until(lambda: nodes.partition(3).log_start_offset == 10)


def test_a_replica_that_is_too_far_behind_begins_again_at_the_log_start(nodes: ReplicatedNodes) -> None:
    nodes.create("t", THREE)
    for _ in range(5):
        assert nodes.produce(1, 2)[0] is NONE
    nodes.run_until_equal()
    nodes.brokers[3].kill()
    nodes.run_until_in_sync(1, 2)
    for _ in range(5):
        assert nodes.produce(1, 2)[0] is NONE
    assert nodes.delete_records(1, 15) == (NONE, 15)
    nodes.brokers[3].begin()
    nodes.run_until_in_sync(*THREE)
    nodes.run_until_equal()
    third = nodes.partition(3)
    assert (third.log_start_offset, third.log_end_offset, third.high_watermark) == (15, 20, 20)
    assert len({bytes_below_watermark(nodes.partition(number)) for number in THREE}) == 1


# --- topics that are deleted while a replica is down --------------------------------------------------------------


def test_a_topic_that_is_made_again_while_a_replica_is_down_has_no_former_records(nodes: ReplicatedNodes) -> None:
    for name in ("t", "gone"):
        nodes.create(name, THREE)
        assert nodes.produce(1, 5, name=name)[0] is NONE
        nodes.run_until_equal(name)
    nodes.brokers[3].kill()
    nodes.delete("t")
    nodes.delete("gone")
    nodes.create("t", (1, 2, 3))
    nodes.run_until_in_sync(1, 2)
    assert nodes.produce(1, 2) == (NONE, 0)
    nodes.brokers[3].begin()
    nodes.run_until_in_sync(*THREE)
    nodes.run_until_equal()
    third = nodes.partition(3)
    assert (third.log_end_offset, bytes_below_watermark(third)) == (2, bytes_below_watermark(nodes.partition(1)))
    assert logs_of(nodes.brokers[3]) == {"t-0"}


# --- damage -----------------------------------------------------------------------------------------------------


def test_of_a_damaged_reply_nothing_is_appended(nodes: ReplicatedNodes, caplog, monkeypatch) -> None:
    nodes.create("t", THREE, (1, 3, 2))
    damaged = 0
    parse = fetch_messages.parse_reply

    def damage(version: int, data: memoryview, count: int) -> FetchReply:
        nonlocal damaged
        reply = parse(version, data, count)
        rows = []
        for row in reply.partitions:
            if row.partition == 0 and len(row.records) and damaged < 3:
                damaged += 1
                broken = bytearray(row.records)
                broken[-1] ^= 1
                row = row._replace(records=memoryview(broken))
            rows.append(row)
        return reply._replace(partitions=tuple(rows))

    monkeypatch.setattr(fetch_messages, "parse_reply", damage)
    with caplog.at_level(logging.WARNING):
        assert nodes.produce(1, 3, acks=1)[0] is NONE
        assert nodes.produce(1, 3, index=1) == (NONE, 0), "the other partition goes on"
        nodes.run_until_equal()
    assert damaged == 3
    assert len({bytes_below_watermark(nodes.partition(number)) for number in THREE}) == 1
    lines = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
    assert len(lines) == 2, lines
    assert all("t-0" in line and "CRC" in line for line in lines)
