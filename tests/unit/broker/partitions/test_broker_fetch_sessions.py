"""Incremental fetch sessions: the partitions that a reply may omit, and lost sessions."""

from __future__ import annotations

import itertools

import pytest

from odradek.broker.partitions.fetch_sessions import EVICTION_MS, FetchSessions, RequestedPartition
from odradek.core.errors import ErrorCode, KafkaError


class Broker:
    def __init__(self, slots: int = 10) -> None:
        self.sessions = FetchSessions(slots)
        self.now_ms = 0
        self.sessions.new_id = itertools.count(100).__next__

    def fetch(self, session_id: int, epoch: int, *wanted: int, forgotten=(), by_id: bool = False):
        return self.sessions.begin(
            self.now_ms,
            session_id,
            epoch,
            [RequestedPartition("t", partition, 0, 1000) for partition in wanted],
            [("t", partition) for partition in forgotten],
            by_id=by_id,
        )


def note(context, partition: int, *, size: int = 0, high_watermark: int = 5, start: int = 0, error: int = 0) -> bool:
    return context.session.note(
        ("t", partition), error_code=error, size=size, high_watermark=high_watermark, log_start_offset=start,
        names_other=False, full=context.full,
    )  # fmt: skip


def partitions(context) -> list[int]:
    return [item.partition for item in context.wanted]


def code_of(call) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_epoch_minus_one_creates_no_session() -> None:
    broker = Broker()
    context = broker.fetch(0, -1, 0, 1)
    assert (context.session, context.full, partitions(context)) == (None, True, [0, 1])
    assert len(broker.sessions) == 0


def test_a_session_may_begin_without_partitions() -> None:
    broker = Broker()
    session_id = broker.fetch(0, 0).session_id
    assert session_id != 0
    assert partitions(broker.fetch(session_id, 1, 0)) == [0]


def test_a_session_omits_partitions_that_did_not_change() -> None:
    broker = Broker()
    first = broker.fetch(0, 0, 0, 1)
    assert first.full
    assert [note(first, p) for p in (0, 1)] == [True, True], "the first reply has every partition"
    second = broker.fetch(first.session_id, 1)
    assert partitions(second) == [0, 1]
    assert [note(second, p) for p in (0, 1)] == [False, False]
    third = broker.fetch(first.session_id, 2)
    assert note(third, 0, size=10)
    assert note(third, 1, high_watermark=6)
    fourth = broker.fetch(first.session_id, 3)
    assert not note(fourth, 1, high_watermark=6)
    assert note(fourth, 0, start=3)


def test_a_partition_is_in_the_reply_when_its_error_begins_and_when_it_ends() -> None:
    broker = Broker()
    first = broker.fetch(0, 0, 0)
    note(first, 0)
    assert note(broker.fetch(first.session_id, 1), 0, error=3)
    assert note(broker.fetch(first.session_id, 2), 0, error=3)
    assert note(broker.fetch(first.session_id, 3), 0)
    assert not note(broker.fetch(first.session_id, 4), 0)


def test_partitions_are_added_changed_and_removed() -> None:
    broker = Broker()
    first = broker.fetch(0, 0, 0, 1)
    assert partitions(broker.fetch(first.session_id, 1, 2)) == [0, 1, 2]
    assert partitions(broker.fetch(first.session_id, 2, forgotten=[1])) == [0, 2]
    changed = broker.sessions.begin(0, first.session_id, 3, [RequestedPartition("t", 0, 77, 9)], [], by_id=False)
    assert changed.wanted[0] == RequestedPartition("t", 0, 77, 9)


def test_a_partition_that_returned_records_moves_to_the_end() -> None:
    broker = Broker()
    first = broker.fetch(0, 0, 0, 1, 2)
    note(first, 0, size=10)
    assert partitions(broker.fetch(first.session_id, 1)) == [1, 2, 0]


def test_unknown_sessions_and_wrong_epochs_are_refused() -> None:
    broker = Broker()
    first = broker.fetch(0, 0, 0)
    assert code_of(lambda: broker.fetch(999, 1)) is ErrorCode.fetch_session_id_not_found
    assert code_of(lambda: broker.fetch(first.session_id, 2)) is ErrorCode.invalid_fetch_session_epoch
    assert code_of(lambda: broker.fetch(first.session_id, 1, by_id=True)) is ErrorCode.fetch_session_topic_id_error
    broker.fetch(first.session_id, -1)
    assert code_of(lambda: broker.fetch(first.session_id, 1)) is ErrorCode.fetch_session_id_not_found


def test_a_session_without_partitions_ends() -> None:
    broker = Broker()
    first = broker.fetch(0, 0, 0)
    context = broker.fetch(first.session_id, 1, forgotten=[0])
    assert (context.session_id, context.wanted) == (0, [])
    assert len(broker.sessions) == 0


def test_a_full_cache_creates_no_session_until_another_is_old() -> None:
    broker = Broker(slots=2)
    first = broker.fetch(0, 0, 0)
    broker.fetch(0, 0, 0)
    assert broker.fetch(0, 0, 0).session_id == 0
    broker.now_ms = EVICTION_MS
    assert broker.fetch(0, 0, 0).session_id != 0
    assert code_of(lambda: broker.fetch(first.session_id, 1)) is ErrorCode.fetch_session_id_not_found
    assert Broker(slots=0).fetch(0, 0, 0).session_id == 0


def test_the_epoch_wraps_to_one() -> None:
    broker = Broker()
    first = broker.fetch(0, 0, 0)
    first.session.epoch = 2**31 - 1
    broker.fetch(first.session_id, 2**31 - 1)
    assert first.session.epoch == 1


def session_of(broker: Broker, *, is_follower: bool, owner: int | None = None) -> int:
    wanted = [RequestedPartition("t", 0, 0, 1000)]
    context = broker.sessions.begin(broker.now_ms, 0, 0, wanted, (), by_id=False, owner=owner, is_follower=is_follower)
    return context.session_id


def test_the_session_of_a_follower_takes_the_place_of_a_consumers_and_not_the_reverse() -> None:
    """As in Kafka: consumers must not keep a follower from its session, and so out of the ISR."""
    broker = Broker(slots=3)
    first, second = (session_of(broker, is_follower=False, owner=number) for number in (1, 2))
    follower = session_of(broker, is_follower=True, owner=3)
    assert set(broker.sessions.sessions) == {first, second, follower}
    assert session_of(broker, is_follower=False, owner=4) == 0, "there is no room for a consumer"
    again = session_of(broker, is_follower=True, owner=5)
    assert set(broker.sessions.sessions) == {second, follower, again}, "the oldest session of a consumer is gone"
    broker.sessions.owner_gone(3)
    broker.sessions.owner_gone(2)
    third = session_of(broker, is_follower=False, owner=6)
    assert set(broker.sessions.sessions) == {follower, again, third}, "the follower may come back"
    last = session_of(broker, is_follower=True, owner=7)
    assert set(broker.sessions.sessions) == {again, third, last}, "its session is unused, a follower may take its place"
    broker.now_ms += 120_000
    assert session_of(broker, is_follower=False, owner=8) > 0
    assert again not in broker.sessions.sessions, "after two minutes without a fetch any session goes"
