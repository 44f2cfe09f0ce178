"""The state machine of a member with ``group_protocol=consumer``, reply by reply, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.client.errors import UnsupportedVersion
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.errors import FencedInstance, UnreleasedInstance
from odradek.client.group.kip848_membership import Kip848Membership, Kip848State, NextHeartbeat
from odradek.core.errors import ConfigError, ErrorCode, KafkaError

A, B = UUID(int=1), UUID(int=2)
HEARTBEAT_FIELDS = {
    "group_id", "member_id", "member_epoch", "instance_id", "rack_id", "rebalance_timeout", "subscribed_topic_names",
    "subscribed_topic_regex", "server_assignor", "topic_partitions",
}  # fmt: skip


def member(**settings: Any) -> Kip848Membership:
    made = Kip848Membership("g", "m-1", rebalance_timeout_ms=300_000, **settings)
    made.subscribe(["b", "a"])
    made.join()
    return made


def answer(
    member: Kip848Membership, epoch: int = 1, assigned: dict[UUID, list[int]] | None = None,
    code: ErrorCode = ErrorCode.none, interval_ms: int = 5_000,
) -> NextHeartbeat:  # fmt: skip
    """Makes a heartbeat request and applies a reply with these values."""
    join_number = member.join_number
    assert set(member.heartbeat_request()) == HEARTBEAT_FIELDS
    return apply(member, join_number, epoch, assigned, code, interval_ms)


def apply(
    member: Kip848Membership, join_number: int, epoch: int = 1, assigned: dict[UUID, list[int]] | None = None,
    code: ErrorCode = ErrorCode.none, interval_ms: int = 5_000,
) -> NextHeartbeat:  # fmt: skip
    assignment = None
    if assigned is not None:
        rows = [SimpleNamespace(topic_id=topic_id, partitions=numbers) for topic_id, numbers in assigned.items()]
        assignment = SimpleNamespace(topic_partitions=rows)
    reply = SimpleNamespace(
        error_code=code, error_message="why", member_id="m-1", member_epoch=epoch, assignment=assignment
    )
    return member.on_heartbeat(reply, interval_ms, join_number)


def settle(member: Kip848Membership) -> None:
    """Reconciles the member with its target assignment, so that the next heartbeat reports this assignment."""
    join_number = member.begin_reconciliation()
    assert member.set_owned(dict(member.target), join_number)
    member.end_reconciliation(join_number)


def joined(epoch: int = 1, **settings: Any) -> Kip848Membership:
    """A member that has reconciled its first assignment, an empty one."""
    made = member(**settings)
    answer(made, epoch, {})
    settle(made)
    answer(made, epoch)
    assert made.state is Kip848State.STABLE
    return made


def test_an_empty_first_assignment_is_reconciled_too() -> None:
    one = member()
    answer(one, 1, {})
    assert one.state is Kip848State.RECONCILING
    settle(one)
    assert one.heartbeat_request()["topic_partitions"] == []
    apply(one, one.join_number, 2, {})
    assert one.state is Kip848State.STABLE


def test_the_first_heartbeat_is_complete_and_later_ones_have_the_changes() -> None:
    one = member(rack="r", assignor="range")
    assert one.heartbeat_request() == {
        "group_id": "g", "member_id": "m-1", "member_epoch": 0, "instance_id": None, "rack_id": "r",
        "rebalance_timeout": 300_000, "subscribed_topic_names": ["a", "b"], "subscribed_topic_regex": None,
        "server_assignor": "range", "topic_partitions": [],
    }  # fmt: skip
    assert apply(one, one.join_number, 3, {}) is NextHeartbeat.INTERVAL
    assert (one.state, one.epoch, one.heartbeat_interval_ms) == (Kip848State.RECONCILING, 3, 5_000)
    settle(one)
    assert one.heartbeat_request()["topic_partitions"] == []
    apply(one, one.join_number, 3)
    nothing = dict.fromkeys(HEARTBEAT_FIELDS) | {
        "group_id": "g", "member_id": "m-1", "member_epoch": 3, "rebalance_timeout": -1
    }  # fmt: skip
    assert one.heartbeat_request() == nothing
    one.subscribe(["a", "c"])
    assert one.is_due_at_once
    assert one.heartbeat_request() == nothing | {"subscribed_topic_names": ["a", "c"]}
    assert not one.is_due_at_once


def test_topics_replace_a_pattern_and_a_pattern_replaces_topics() -> None:
    one = joined()
    one.subscribe([], "fl.*")
    request = one.heartbeat_request()
    assert (request["subscribed_topic_names"], request["subscribed_topic_regex"]) == ([], "fl.*")
    one.subscribe(["a"])
    request = one.heartbeat_request()
    assert (request["subscribed_topic_names"], request["subscribed_topic_regex"]) == (["a"], "")
    one.on_no_answer()
    assert one.heartbeat_request()["subscribed_topic_regex"] == ""  # the coordinator may still have the pattern


def test_an_assignment_is_acknowledged_after_its_reconciliation() -> None:
    one = member()
    assert answer(one, 1, {A: [0, 1]}) is NextHeartbeat.INTERVAL
    assert one.state is Kip848State.RECONCILING
    settle(one)
    assert one.is_due_at_once
    assert one.heartbeat_request()["topic_partitions"] == [{"topic_id": A, "partitions": [0, 1]}]
    assert apply(one, one.join_number, 1) is NextHeartbeat.INTERVAL
    assert one.state is Kip848State.STABLE
    assert one.heartbeat_request()["topic_partitions"] is None


def test_a_reply_to_an_earlier_heartbeat_acknowledges_nothing() -> None:
    one = member()
    answer(one, 1, {A: [0, 1]})
    one.heartbeat_request()  # in flight during the reconciliation
    settle(one)
    assert apply(one, one.join_number, 1) is NextHeartbeat.AT_ONCE
    assert one.state is Kip848State.ACKNOWLEDGING
    assert one.heartbeat_request()["topic_partitions"] == [{"topic_id": A, "partitions": [0, 1]}]
    apply(one, one.join_number, 1)
    assert one.state is Kip848State.STABLE


def test_the_target_may_change_during_a_reconciliation() -> None:
    one = member()
    answer(one, 1, {A: [0, 1]})
    settle(one)
    answer(one, 1)
    answer(one, 1, {A: [0]})
    join_number = one.begin_reconciliation()
    assert one.set_owned({A: frozenset({0})}, join_number)  # partition 1 is revoked
    answer(one, 2, {A: [0, 1]})  # partition 1 is assigned again before a heartbeat reports the revocation
    assert one.state is Kip848State.RECONCILING
    one.end_reconciliation(join_number)
    assert one.heartbeat_request()["topic_partitions"] == [{"topic_id": A, "partitions": [0]}]
    apply(one, one.join_number, 2)
    assert one.state is Kip848State.RECONCILING
    assert one.target == {A: frozenset({0, 1})}


def test_a_partition_withdrawn_before_its_reconciliation_is_reported() -> None:
    """Partition 1 is assigned and withdrawn. The coordinator does not reassign it until this member reports again."""
    one = member()
    answer(one, 1, {A: [0]})
    settle(one)
    answer(one, 1)
    assert answer(one, 2, {A: [0, 1]}) is NextHeartbeat.INTERVAL
    assert answer(one, 2, {A: [0]}) is NextHeartbeat.AT_ONCE
    assert one.is_due_at_once
    assert one.heartbeat_request()["topic_partitions"] == [{"topic_id": A, "partitions": [0]}]
    assert apply(one, one.join_number, 3, {A: [0]}) is NextHeartbeat.INTERVAL  # the same partitions in the next epoch
    assert one.state is Kip848State.STABLE


def test_after_a_missing_reply_the_heartbeat_is_complete() -> None:
    one = member()
    answer(one, 1, {A: [0]})
    settle(one)
    answer(one, 1)
    one.heartbeat_request()
    one.on_no_answer()
    request = one.heartbeat_request()
    assert (request["member_epoch"], request["subscribed_topic_names"]) == (1, ["a", "b"])
    assert request["rebalance_timeout"] == 300_000
    assert request["topic_partitions"] == [{"topic_id": A, "partitions": [0]}]


@pytest.mark.parametrize("code", ["unknown_member_id", "fenced_member_epoch", "group_id_not_found"])
def test_a_removed_member_loses_all_partitions_and_rejoins_with_its_id(code: str) -> None:
    one = member()
    answer(one, 7, {A: [0]})
    settle(one)
    before, in_flight = one.join_number, one.begin_reconciliation()
    assert answer(one, code=ErrorCode[code]) is NextHeartbeat.AT_ONCE
    assert (one.state, one.in_group, one.sends_heartbeats) == (Kip848State.LOST, False, False)
    assert not one.set_owned({A: frozenset({0})}, in_flight)
    one.end_reconciliation(in_flight)
    apply(one, before, 8, {B: [1]})  # a late reply for the old membership
    assert (one.state, one.target) == (Kip848State.LOST, {})
    one.on_lost_given_up()
    one.join()
    request = one.heartbeat_request()
    assert (request["member_epoch"], request["member_id"], request["topic_partitions"]) == (0, "m-1", [])


@pytest.mark.parametrize(("code", "after"), [
    ("not_coordinator", NextHeartbeat.FIND_COORDINATOR), ("coordinator_not_available", NextHeartbeat.FIND_COORDINATOR),
    ("coordinator_load_in_progress", NextHeartbeat.BACK_OFF),
])  # fmt: skip
def test_after_a_transient_error_the_heartbeat_is_complete(code: str, after: NextHeartbeat) -> None:
    one = joined(2)
    assert answer(one, code=ErrorCode[code]) is after
    assert (one.state, one.epoch) == (Kip848State.STABLE, 2)
    assert one.heartbeat_request()["subscribed_topic_names"] == ["a", "b"]


@pytest.mark.behaviour(43, part=True)
@pytest.mark.parametrize(("code", "kind"), [
    ("unreleased_instance_id", UnreleasedInstance), ("fenced_instance_id", FencedInstance),
    ("unsupported_version", UnsupportedVersion), ("unsupported_assignor", KafkaError),
    ("invalid_regular_expression", KafkaError), ("group_max_size_reached", KafkaError),
    ("group_authorization_failed", KafkaError), ("invalid_request", KafkaError),
])  # fmt: skip
def test_a_fatal_error_ends_the_membership(code: str, kind: type[KafkaError]) -> None:
    one = member(instance_id="i")
    answer(one, code=ErrorCode[code])
    assert one.state is Kip848State.FATAL
    assert type(one.failure) is kind
    assert one.failure.code is ErrorCode[code]
    one.on_left(lost=True)
    one.on_lost_given_up()
    assert (one.state, one.leave_request()) == (Kip848State.FATAL, None)


def test_leave_requests_of_static_members_are_temporary() -> None:
    one, static = member(), member(instance_id="i")
    for each in (one, static):
        answer(each, 4, {A: [0]})
    leave, pause = one.leave_request(), static.leave_request()
    assert leave is not None
    assert (leave["member_epoch"], leave["instance_id"]) == (-1, None)
    assert pause is not None
    assert (pause["member_epoch"], pause["instance_id"]) == (-2, "i")
    one.on_left(lost=False)
    assert (one.state, one.leave_request()) == (Kip848State.OUTSIDE, None)
    static.on_left(lost=True)
    assert static.state is Kip848State.LOST
    with pytest.raises(ValueError, match="lost"):
        static.join()


@pytest.mark.behaviour(28, part=True)
def test_a_heartbeat_checks_the_membership_after_a_refused_commit() -> None:
    one = joined(4, instance_id="i")
    assert one.on_commit_refused(ErrorCode.stale_member_epoch)
    assert one.on_commit_refused(ErrorCode.unknown_member_id)
    assert not one.on_commit_refused(ErrorCode.request_timed_out)
    assert one.state is Kip848State.STABLE
    assert not one.on_commit_refused(ErrorCode.fenced_instance_id)
    assert one.state is Kip848State.FATAL


@pytest.mark.parametrize("name", ["partition.assignment.strategy", "session.timeout.ms", "heartbeat_interval_ms"])
def test_settings_of_the_classic_protocol_are_refused(name: str) -> None:
    value = "range" if "strategy" in name else 9_000
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", name: value}
    ConsumerConfig.of(settings)
    with pytest.raises(ConfigError, match=f"{name.replace('.', '_')} cannot be set with group_protocol=consumer"):
        ConsumerConfig.of(settings | {"group.protocol": "CONSUMER"})


def test_the_remote_assignor_is_refused_by_the_classic_protocol() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "group.remote.assignor": "uniform"}
    assert ConsumerConfig.of(settings | {"group.protocol": "consumer"}).group_remote_assignor == "uniform"
    with pytest.raises(ConfigError, match="group_protocol=consumer"):
        ConsumerConfig.of(settings)
