"""The consumer's state machines without a socket: membership, subscription, commits, fetch sessions."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.broker.partitions.fetch_sessions import FetchSessions
from odradek.broker.partitions.fetch_sessions import RequestedPartition as Cached
from odradek.client.arguments import as_offsets
from odradek.client.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from odradek.client.errors import UnknownTopic
from odradek.client.group.assignors import CooperativeStickyAssignor, RangeAssignor
from odradek.client.group.classic_membership import ClassicMembership, ClassicState, NextStep
from odradek.client.group.commits import AutoCommit, commit_failure, commit_request
from odradek.client.group.errors import CommitFailed, FencedInstance, IllegalState, RebalanceInProgress
from odradek.client.group.subscription import SubscriptionState
from odradek.codecs.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import LATEST, OffsetAndMetadata, TopicPartition
from odradek.wire.fetch_messages import FetchPartition
from odradek.wire.fetch_session import FetchSession

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def membership(**settings: Any) -> ClassicMembership:
    assignors = settings.pop("assignors", [RangeAssignor(), CooperativeStickyAssignor()])
    return ClassicMembership("g", assignors, session_timeout_ms=45_000, rebalance_timeout_ms=300_000, **settings)


def joined(code: ErrorCode = ErrorCode.none, leader: str = "m-1", **fields: Any) -> Any:
    members = [SimpleNamespace(member_id=m, group_instance_id=None, metadata=encode_subscription(Subscription(("t",))))
               for m in fields.pop("members", ("m-1", "m-2"))]  # fmt: skip
    row = {"error_code": code, "generation_id": 1, "protocol_name": "range", "leader": leader, "member_id": "m-1",
           "members": members, "skip_assignment": False}  # fmt: skip
    return SimpleNamespace(**(row | fields))


def synced(*partitions: TopicPartition, code: ErrorCode = ErrorCode.none) -> Any:
    return SimpleNamespace(error_code=code, assignment=encode_assignment(partitions))


def stable(**settings: Any) -> ClassicMembership:
    member = membership(**settings)
    member.join_request(["t"], ())
    assert member.on_join(joined()) is NextStep.CONTINUE
    member.sync_request({"t": 3})
    assert member.on_sync(synced(T0, T1)) == (NextStep.CONTINUE, (T0, T1))
    return member


def test_a_member_gets_its_id_and_joins_with_it() -> None:
    member = membership()
    request = member.join_request(["t"], ())
    assert (request["member_id"], [p["name"] for p in request["protocols"]]) == ("", ["range", "cooperative-sticky"])
    again = member.on_join(SimpleNamespace(error_code=ErrorCode.member_id_required, member_id="m-1"))
    assert (again, member.state) == (NextStep.JOIN_AGAIN, ClassicState.UNJOINED)
    assert member.join_request(["t"], ())["member_id"] == "m-1"


def test_a_member_without_a_generation_leaves() -> None:
    member = membership()
    assert member.leave_request("close") is None
    member.join_request(["t"], ())
    member.on_join(SimpleNamespace(error_code=ErrorCode.member_id_required, member_id="m-1"))
    member.join_request(["t"], ())
    request = member.leave_request("close")
    assert request is not None
    assert request["member_id"] == "m-1"


@pytest.mark.claim(61, 62, part=True)
def test_only_the_leader_makes_the_assignment() -> None:
    member = membership()
    member.join_request(["t"], ())
    member.on_join(joined())
    plan = {
        row["member_id"]: decode_assignment(row["assignment"]) for row in member.sync_request({"t": 3})["assignments"]
    }
    assert plan == {"m-1": (T0, T1), "m-2": (T2,)}
    follower = membership()
    follower.join_request(["t"], ())
    follower.on_join(joined(leader="m-2", members=()))
    assert follower.sync_request({"t": 3})["assignments"] == []
    assert follower.leader_topics == set()


def test_a_static_leader_that_returns_makes_no_assignment() -> None:
    member = membership(instance_id="i")
    member.join_request(["t"], ())
    member.on_join(joined(skip_assignment=True))
    assert member.sync_request({"t": 3})["assignments"] == []
    assert member.leave_request("close") is None


def test_a_heartbeat_reports_a_rebalance() -> None:
    member = stable()
    assert member.on_heartbeat(ErrorCode.rebalance_in_progress, 1) is NextStep.CONTINUE
    assert (member.state, member.lost, member.member_id, member.generation) == (ClassicState.UNJOINED, False, "m-1", 1)


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
def test_a_removed_member_has_lost_its_partitions(code: ErrorCode) -> None:
    member = stable()
    assert member.on_heartbeat(code, 1) is NextStep.JOIN_AGAIN
    assert (member.state, member.lost, member.generation) == (ClassicState.UNJOINED, True, -1)
    assert member.member_id == ("" if code is ErrorCode.unknown_member_id else "m-1")


def test_a_reply_to_an_older_generation_changes_nothing() -> None:
    member = stable()
    assert member.on_heartbeat(ErrorCode.unknown_member_id, 0) is NextStep.CONTINUE
    assert member.joined


def test_a_fenced_member_stays_out() -> None:
    member = stable(instance_id="i")
    with pytest.raises(FencedInstance):
        member.on_heartbeat(ErrorCode.fenced_instance_id, 1)
    member.request_rejoin("poll")
    assert (member.state, member.known) == (ClassicState.FENCED, False)


def test_a_non_retriable_join_error_is_raised() -> None:
    member = membership()
    member.join_request(["t"], ())
    with pytest.raises(KafkaError) as caught:
        member.on_join(joined(ErrorCode.inconsistent_group_protocol))
    assert caught.value.code is ErrorCode.inconsistent_group_protocol
    assert "no assignor in common with partition_assignment_strategy=" in str(caught.value)


@pytest.mark.parametrize(("code", "message"), [
    (ErrorCode.invalid_session_timeout, "session_timeout_ms=45000 is not between the broker's"),
    (ErrorCode.group_max_size_reached, "group.max.size"), (ErrorCode.group_authorization_failed, "joining"),
])  # fmt: skip
def test_the_error_of_a_refused_join_says_what_to_change(code: ErrorCode, message: str) -> None:
    member = membership()
    member.join_request(["t"], ())
    with pytest.raises(KafkaError, match=message):
        member.on_join(joined(code))


@pytest.mark.parametrize(("code", "following"), [
    (ErrorCode.not_coordinator, NextStep.FIND_COORDINATOR), (ErrorCode.coordinator_load_in_progress, NextStep.BACK_OFF),
    (ErrorCode.rebalance_in_progress, NextStep.JOIN_AGAIN), (ErrorCode.unknown_member_id, NextStep.JOIN_AGAIN),
])  # fmt: skip
def test_transient_errors_lead_to_another_join(code: ErrorCode, following: NextStep) -> None:
    member = membership()
    member.join_request(["t"], ())
    member.on_join(joined())
    assert member.on_sync(synced(code=code)) == (following, ())
    assert member.state is ClassicState.UNJOINED
    assert not member.joined


def test_one_eager_assignor_makes_the_member_eager() -> None:
    assert not membership().cooperative
    cooperative = membership(assignors=[CooperativeStickyAssignor()])
    assert cooperative.cooperative
    request = cooperative.join_request(["t"], [T1])
    assert decode_subscription(request["protocols"][0]["metadata"]).owned == (T1,)


# --- subscription ---------------------------------------------------------------------------------------------------


@pytest.mark.claim(69, part=True)
def test_subscribe_and_assign_exclude_each_other() -> None:
    state = SubscriptionState()
    state.subscribe(["t"])
    with pytest.raises(IllegalState):
        state.assign_from_user([T0])
    state.unsubscribe()
    state.assign_from_user([T0])
    with pytest.raises(IllegalState):
        state.subscribe(["t"])


def test_a_pattern_matches_whole_topic_names() -> None:
    state = SubscriptionState()
    state.subscribe_pattern(re.compile("flights-.*"))
    assert state.match(["flights-a", "my-flights-a", "other"])
    assert state.topics == {"flights-a"}
    assert not state.match(["flights-a"])


def test_positions_start_at_commits_and_survive_a_rebalance() -> None:
    state = SubscriptionState()
    state.set_assigned([T0, T1])
    assert state.set_committed_positions({T0: OffsetAndMetadata(5, 2)}, state.without_position()) == [T1]
    state.partitions[T1].request_reset(LATEST)
    assert (state.without_position(), state.state(T1).reset_to) == ([], LATEST)
    state.set_assigned([T0, T2])
    assert state.positions() == {T0: OffsetAndMetadata(5, 2)}
    with pytest.raises(IllegalState):
        state.pause([T0, T1])
    assert state.paused() == set()


# --- commits --------------------------------------------------------------------------------------------------------


def refused(code: ErrorCode) -> Any:
    return SimpleNamespace(
        topics=[SimpleNamespace(name="t", partitions=[SimpleNamespace(partition_index=0, error_code=code)])]
    )


@pytest.mark.parametrize(("code", "kind"), [
    (ErrorCode.unknown_member_id, CommitFailed), (ErrorCode.illegal_generation, CommitFailed),
    (ErrorCode.rebalance_in_progress, RebalanceInProgress), (ErrorCode.fenced_instance_id, FencedInstance),
    (ErrorCode.unknown_topic_or_partition, UnknownTopic), (ErrorCode.offset_metadata_too_large, KafkaError),
])  # fmt: skip
def test_each_commit_error_has_its_class(code: ErrorCode, kind: type[Exception]) -> None:
    assert type(commit_failure(refused(code), instance_id="i", still_member=True)) is kind
    assert commit_failure(refused(ErrorCode.none), instance_id=None, still_member=True) is None


def test_the_error_of_a_failed_commit_says_what_to_change() -> None:
    text = str(commit_failure(refused(ErrorCode.unknown_member_id), instance_id=None, still_member=True))
    assert "max_poll_interval_ms" in text
    assert "max_poll_records" in text
    alone = commit_failure(refused(ErrorCode.unknown_member_id), instance_id=None, still_member=False, alone=True)
    assert type(alone) is CommitFailed
    assert "live members" in str(alone)
    assert "max_poll" not in str(alone)


def test_a_commit_request_has_the_given_offsets() -> None:
    assert as_offsets({("t", 0): 4, T1: OffsetAndMetadata(3, 1, "m")}) == {T0: (4, -1, ""), T1: (3, 1, "m")}
    with pytest.raises(ValueError, match="at least 0"):
        as_offsets({T0: -1})
    request = commit_request("g", as_offsets({T0: 1, T1: 2}), generation=-1, member_id="", instance_id=None)
    assert [row["committed_offset"] for row in request["topics"][0]["partitions"]] == [1, 2]


@pytest.mark.claim(21, part=True)
def test_auto_commit_is_due_an_interval_after_the_start() -> None:
    now_s = 0.0

    def at(seconds: float) -> AutoCommit:
        nonlocal now_s
        now_s = seconds
        return auto

    auto = AutoCommit(True, 5_000, lambda: now_s)
    at(0).start()
    at(4).start()
    assert at(4.5).left_ms == 500
    assert [at(seconds).take() for seconds in (4.75, 5, 5.25, 10)] == [False, True, False, True]
    assert not AutoCommit(False, 5_000, lambda: 1e9).take()


# --- fetching -------------------------------------------------------------------------------------------------------


def test_a_fetch_session_sends_only_changes() -> None:
    session = FetchSession()
    zero, one = FetchPartition(None, 0, 0, 100), FetchPartition(None, 7, 0, 100)

    def asked(wanted: dict[TopicPartition, FetchPartition]) -> tuple[int, list[int], list[Any]]:
        found = session.request(wanted)
        return found.session_epoch, [tp.partition for tp in found.changed], list(found.forgotten)

    assert asked({T0: zero, T1: one}) == (0, [0, 1], [])
    assert session.on_reply(ErrorCode.none, 55)
    assert asked({T0: zero, T1: one}) == (1, [], [])
    session.on_reply(ErrorCode.none, 55)
    epoch, rows, forgotten = asked({T1: one._replace(offset=9)})
    assert (epoch, rows, forgotten) == (2, [1], [(T0, None)])
    assert not session.on_reply(ErrorCode.fetch_session_id_not_found, 0)
    assert asked({T1: one})[:2] == (0, [1])


def test_the_request_for_a_new_fetch_session_ends_the_old_one() -> None:
    """Session ids and epochs as Java's FetchSessionHandler sends them."""
    session = FetchSession()
    wanted = {T0: FetchPartition(None, 0, 0, 100)}

    def asked() -> tuple[int, int, int]:
        found = session.request(wanted)
        return found.session_id, found.session_epoch, len(found.changed)

    assert asked() == (0, 0, 1)
    assert session.on_reply(ErrorCode.none, 55)
    assert asked() == (55, 1, 0)
    assert not session.on_reply(ErrorCode.invalid_fetch_session_epoch, 0)
    assert asked() == (55, 0, 1)
    assert session.on_reply(ErrorCode.none, 56)
    assert asked() == (56, 1, 0)
    session.restart()
    assert asked() == (56, 0, 1)
    session.restart()  # the request before it got no reply either
    assert asked() == (56, 0, 1)
    assert session.on_reply(ErrorCode.none, 0)  # the broker keeps no session
    assert asked() == (0, 0, 1)
    assert session.on_reply(ErrorCode.none, 57)
    session.request(wanted)
    assert session.on_reply(ErrorCode.none, 0)  # the broker has ended the session
    assert asked() == (0, 0, 1)
    assert session.on_reply(ErrorCode.none, 58)
    session.epoch = 0x7FFFFFFF
    session.request(wanted)
    assert session.on_reply(ErrorCode.none, 58)
    assert asked() == (58, 1, 0)
    assert not session.on_reply(ErrorCode.fetch_session_id_not_found, 0)
    assert asked() == (0, 0, 1)


def test_a_broker_keeps_one_session_of_a_client_despite_errors() -> None:
    session, broker = FetchSession(), FetchSessions(1000)
    wanted = {T0: FetchPartition(None, 0, 0, 100)}
    for turn in range(20):
        found = session.request(wanted, by_id=False)
        asked = [Cached(tp.topic, tp.partition, one.offset, one.max_bytes) for tp, one in found.changed.items()]
        context = broker.begin(turn, found.session_id, found.session_epoch, asked, [], by_id=False)
        if turn % 3 == 1:
            session.restart()  # the connection was lost
        else:
            assert session.on_reply(ErrorCode.none, context.session_id)
    assert len(broker) == 1


def test_the_fetch_buffer_returns_partitions_in_turn_and_counts_its_bytes() -> None:
    buffer = FetchBuffer(100)

    def fetched(tp: TopicPartition, size: int) -> CompletedFetch:
        return CompletedFetch(tp, 0, 0, 1, 0, (), None, size)

    first, second, other = fetched(T0, 30), fetched(T0, 20), fetched(T1, 10)
    for one in (first, second, other):
        buffer.put(one)
    assert (buffer.room(), buffer.bytes_of(T0)) == (40, 50)
    assert buffer.front() is first
    assert buffer.front(paused=[T0]) is other
    buffer.remove_returned(first)
    assert buffer.front() is other
    buffer.drop(T1)
    assert (buffer.front(), buffer.size) == (second, 20)
