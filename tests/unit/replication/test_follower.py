"""What a follower decides: its fetches, truncations by leader epochs, offsets that its leader does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replica_log import AbstractBatch, AbstractLog

from odradek.core.errors import ErrorCode
from odradek.core.ids import EARLIEST, LATEST
from odradek.replication.effects import (
    Append,
    DeleteBefore,
    FindOffset,
    MoveWatermark,
    RestartAt,
    Retry,
    Stop,
    Truncate,
)
from odradek.replication.follower import FIRST_RETRY_MS, FetchedPart, FollowerPhase, NextFetch, PartitionFollower

NOW, BACKOFF_MS = 70_000, 1_000
OK = ErrorCode.none


def log_of(*epochs: int, watermark: int = 0) -> AbstractLog:
    """A log with one record of each epoch, whose value is its offset."""
    log = AbstractLog()
    for offset, epoch in enumerate(epochs):
        log.append(AbstractBatch(offset, epoch, (offset,)))
    log.high_watermark = watermark
    return log


def following(log: AbstractLog, epoch: int = 9) -> PartitionFollower:
    follower = PartitionFollower(log, BACKOFF_MS)
    assert follower.follow(epoch) == ()
    return follower


def fetch_of(follower: PartitionFollower, now_ms: int = NOW) -> NextFetch:
    asked = follower.next_fetch(now_ms)
    assert asked is not None
    return asked


def reply_to(follower: PartitionFollower, reply: FetchedPart) -> list[Any]:
    return list(follower.on_reply(fetch_of(follower), reply, NOW))


def test_a_fetch_says_the_end_the_start_and_the_epoch_of_the_last_record() -> None:
    log = log_of(1, 1, 4)
    log.delete_before(1)
    assert fetch_of(following(log)) == NextFetch(3, 1, 4, 9)
    assert fetch_of(following(AbstractLog())) == NextFetch(0, 0, -1, 9)


def test_the_epoch_of_the_last_record_stays_after_an_empty_reply() -> None:
    """KAFKA-15510."""
    follower = following(log_of(1, 4))
    assert reply_to(follower, FetchedPart(OK, 0, 0)) == []
    assert fetch_of(follower).last_epoch == 4


def test_records_come_first_then_the_watermark_up_to_their_end_then_the_log_start() -> None:
    log = log_of(1, 1)
    follower = following(log)
    asked = fetch_of(follower)
    assert follower.on_reply(asked, FetchedPart(OK, 5, 1, has_records=True), NOW) == (Append(),)
    assert follower.next_fetch(NOW) is None
    assert follower.on_reply(asked, FetchedPart(OK, 5, 1), NOW) == (), "the same reply comes twice"
    log.append(AbstractBatch(2, 1, (2,)))
    assert follower.on_done() == (MoveWatermark(3), DeleteBefore(1))
    assert fetch_of(follower).offset == 3


def test_the_watermark_does_not_go_back_with_that_of_a_new_leader() -> None:
    follower = following(log_of(1, 1, 1, watermark=2))
    assert reply_to(follower, FetchedPart(OK, 1, 0)) == []


def test_the_log_start_does_not_pass_the_watermark() -> None:
    follower = following(log_of(1, 1, 1, 1, watermark=1))
    assert reply_to(follower, FetchedPart(OK, 0, 3)) == [DeleteBefore(1)]


def test_a_diverging_reply_truncates_and_moves_nothing_else() -> None:
    """KAFKA-14704."""
    follower = following(log_of(1, 1, 3, 3))
    assert reply_to(follower, FetchedPart(OK, 4, 1, diverging=(1, 3))) == [Truncate(2)]
    assert follower.on_done() == ()


@pytest.mark.parametrize(
    ("epochs", "diverging", "to"),
    [
        ((1, 1, 3, 3), (3, 3), 3),
        ((1, 1, 3, 3), (1, 3), 2),
        ((1, 1, 3, 3), (2, 3), 2),
        ((3, 3), (1, 1), 0),
        ((3, 3), (-1, 1), 1),
    ],
    ids=["the leader's end", "the own end", "an epoch that is unknown here", "before all epochs", "without an epoch"],
)
def test_the_truncation_goes_by_leader_epochs(epochs: tuple[int, ...], diverging: tuple[int, int], to: int) -> None:
    log = log_of(*epochs)
    assert reply_to(following(log), FetchedPart(OK, 0, 0, diverging=diverging)) == [Truncate(to)]


def test_records_before_the_log_start_of_a_new_leader_do_not_stay_when_the_log_ends_there() -> None:
    """The leader knows no epoch before its log start. Its records at 0 to 2 were others. A simulated seed showed it."""
    follower = following(log_of(1, 1, 1))
    assert reply_to(follower, FetchedPart(OK, 9, 3, has_records=True)) == [RestartAt(3)]


def test_a_log_that_was_equal_in_this_epoch_keeps_its_states_when_the_leader_deletes_all() -> None:
    follower = following(log_of(1, 1, 1, watermark=3))
    assert reply_to(follower, FetchedPart(OK, 3, 0)) == []
    assert reply_to(follower, FetchedPart(OK, 3, 3)) == [DeleteBefore(3)]
    follower.follow(10)
    assert reply_to(follower, FetchedPart(OK, 3, 3)) == [RestartAt(3)]


def test_an_epoch_that_began_without_a_record_is_cut_off() -> None:
    """KIP-279: the log has the leader's records, but its newest epoch is not one of the leader."""
    log = log_of(1, 1)
    log.epochs.assign(5, 2)
    follower = following(log)
    assert fetch_of(follower).last_epoch == 5
    assert reply_to(follower, FetchedPart(OK, 0, 0, diverging=(1, 2))) == [Truncate(2)]
    log.truncate_to(2)
    assert follower.on_done() == ()
    assert fetch_of(follower).last_epoch == 1


def test_a_diverging_reply_that_would_change_nothing_is_not_followed_in_a_loop() -> None:
    follower = following(log_of(1, 1))
    assert reply_to(follower, FetchedPart(OK, 0, 0, diverging=(1, 7))) == [Retry(BACKOFF_MS, ErrorCode.corrupt_message)]


def test_a_log_that_is_longer_than_that_of_the_leader_loses_the_rest() -> None:
    log = log_of(1, 1, 1)
    follower = following(log)
    (asked,) = reply_to(follower, FetchedPart(ErrorCode.offset_out_of_range))
    assert asked == FindOffset(LATEST, 9)
    assert follower.next_fetch(NOW) is None
    assert follower.on_offset(asked, 2, NOW) == (Truncate(2),)
    assert follower.on_offset(asked, 1, NOW) == (), "the same answer comes twice"
    log.truncate_to(2)
    assert follower.on_done() == ()
    assert fetch_of(follower).offset == 2


def test_a_log_that_ends_before_the_log_start_of_the_leader_begins_there() -> None:
    follower = following(log_of(1, 1, 1))
    (end,) = reply_to(follower, FetchedPart(ErrorCode.offset_out_of_range))
    (start,) = follower.on_offset(end, 20, NOW)
    assert start == FindOffset(EARLIEST, 9)
    assert follower.on_offset(start, 11, NOW) == (RestartAt(11),)


def test_an_offset_that_is_in_the_leaders_range_by_now_is_fetched_later() -> None:
    follower = following(log_of(1, 1, 1))
    (end,) = reply_to(follower, FetchedPart(ErrorCode.offset_out_of_range))
    (start,) = follower.on_offset(end, 20, NOW)
    assert isinstance(start, FindOffset)
    assert follower.on_offset(start, 2, NOW) == (Retry(BACKOFF_MS, ErrorCode.offset_out_of_range),)
    assert follower.next_fetch(NOW + BACKOFF_MS - 1) is None
    assert fetch_of(follower, NOW + BACKOFF_MS).offset == 3


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.kafka_storage_error,
    ],
)
def test_an_error_of_the_leader_is_tried_again(code: ErrorCode) -> None:
    follower = following(log_of(1))
    assert reply_to(follower, FetchedPart(code)) == [Retry(BACKOFF_MS, code)]
    assert follower.next_fetch(NOW) is None
    assert follower.next_fetch(NOW + BACKOFF_MS) is not None


@pytest.mark.parametrize("code", [ErrorCode.unknown_leader_epoch, ErrorCode.not_leader_or_follower])
def test_a_leader_that_has_not_heard_of_its_election_is_asked_again_soon(code: ErrorCode) -> None:
    follower, now_ms, delays = following(log_of(1)), NOW, []
    for _ in range(30):
        (retry,) = follower.on_reply(fetch_of(follower, now_ms), FetchedPart(code), now_ms)
        assert isinstance(retry, Retry)
        assert follower.next_fetch(now_ms + retry.delay_ms - 1) is None
        now_ms += retry.delay_ms
        delays.append(retry.delay_ms)
    assert delays[:3] == [FIRST_RETRY_MS, 2 * FIRST_RETRY_MS, 4 * FIRST_RETRY_MS]
    assert delays[-1] == BACKOFF_MS
    follower.follow(10)
    assert reply_to(follower, FetchedPart(code)) == [Retry(FIRST_RETRY_MS, code)]


def test_a_fenced_follower_waits_for_the_next_epoch() -> None:
    follower = following(log_of(1))
    assert reply_to(follower, FetchedPart(ErrorCode.fenced_leader_epoch)) == [Stop(ErrorCode.fenced_leader_epoch)]
    assert follower.follow(9) == ()
    assert follower.next_fetch(NOW + 10 * BACKOFF_MS) is None
    assert follower.follow(10) == ()
    assert fetch_of(follower).leader_epoch == 10


def test_a_reply_for_an_earlier_epoch_or_another_end_does_not_count() -> None:
    log = log_of(1, 1)
    follower = following(log)
    asked = fetch_of(follower)
    follower.follow(10)
    for reply in (FetchedPart(ErrorCode.fenced_leader_epoch), FetchedPart(OK, 0, 0, diverging=(1, 1))):
        assert follower.on_reply(asked, reply, NOW) == ()
    asked = fetch_of(follower)
    log.append(AbstractBatch(2, 1, (2,)))
    assert follower.on_reply(asked, FetchedPart(OK, 2, 0, has_records=True), NOW) == ()


def test_a_late_reply_does_not_cut_again_what_was_fetched_after_the_cut() -> None:
    """The log is as long as before, but it has the leader's records now. Simulated seed 202 has shown it."""
    log = log_of(1, 1, 2)
    follower = following(log)
    asked, diverging = fetch_of(follower), FetchedPart(OK, 0, 0, diverging=(1, 2))
    assert follower.on_reply(asked, diverging, NOW) == (Truncate(2),)
    log.truncate_to(2)
    follower.on_done()
    log.append(AbstractBatch(2, 9, (7,)))
    assert follower.on_reply(asked, diverging, NOW) == ()


def test_an_earlier_epoch_is_not_followed() -> None:
    follower = following(log_of(1))
    assert follower.follow(8) == ()
    assert fetch_of(follower).leader_epoch == 9


def test_a_new_epoch_waits_for_the_work_of_the_former_and_takes_nothing_else_of_it() -> None:
    log = log_of(1, 1)
    follower = following(log)
    assert reply_to(follower, FetchedPart(OK, 3, 1, has_records=True)) == [Append()]
    follower.follow(10)
    assert follower.next_fetch(NOW) is None
    log.append(AbstractBatch(2, 1, (2,)))
    assert follower.on_done() == ()
    assert fetch_of(follower) == NextFetch(3, 0, 1, 10)


def test_refused_records_are_fetched_again_and_an_offline_log_is_not() -> None:
    follower = following(log_of(1))
    for code, effect in (
        (ErrorCode.corrupt_message, Retry(BACKOFF_MS, ErrorCode.corrupt_message)),
        (ErrorCode.kafka_storage_error, Stop(ErrorCode.kafka_storage_error)),
    ):
        asked = fetch_of(follower, NOW + BACKOFF_MS)
        assert follower.on_reply(asked, FetchedPart(OK, 9, 0, has_records=True), NOW + BACKOFF_MS) == (Append(),)
        assert follower.on_failed(code, NOW) == (effect,)
        assert follower.on_failed(code, NOW) == (), "only once"
    assert follower.phase is FollowerPhase.STOPPED


def test_a_request_without_an_answer_is_tried_again() -> None:
    follower = following(log_of(1))
    assert follower.on_no_reply(NOW) == (Retry(BACKOFF_MS, OK),)
    (asked,) = follower.on_reply(
        fetch_of(follower, NOW + 1_000), FetchedPart(ErrorCode.offset_out_of_range), NOW + 1_000
    )
    assert follower.on_no_reply(NOW) == (Retry(BACKOFF_MS, OK),)
    assert isinstance(asked, FindOffset)
    assert follower.on_offset(asked, 0, NOW) == ()


def test_records_without_epochs_are_truncated_to_the_watermark() -> None:
    log = log_of(1, 1, 1, watermark=2)
    log.epochs.entries.clear()
    assert PartitionFollower(log, BACKOFF_MS).follow(9) == (Truncate(2),)


# --- against a leader -------------------------------------------------------------------------------------------------

HISTORY = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6)
"""Leader epochs, each with the number of its records here and the number of records that only the other log gets."""


def diverged(history: Sequence[tuple[int, int]], alone: Sequence[int]) -> tuple[AbstractLog, AbstractLog]:
    """Makes the logs of a leader and of a follower. In each epoch one of both led: only it begins an epoch without a
    record. The other has the first of the records."""
    leader, follower = AbstractLog(), AbstractLog()
    number = 0
    for epoch, (count, lost) in enumerate(history, 1):
        leading, copying = (leader, follower) if epoch % 2 else (follower, leader)
        common = 0
        while leading.record_at(common) == copying.record_at(common) is not None:
            common += 1
        copying.truncate_to(common)  # the follower of this epoch, in whatever state it was
        for batch in leading.read(copying.log_end_offset, 1 << 30):
            copying.append(batch)
        leading.epochs.assign(epoch, leading.log_end_offset)
        for step in range(count + lost):
            number += 1
            batch = AbstractBatch(leading.log_end_offset, epoch, tuple([number] * (1 + step % 2)))
            leading.append(batch)
            if step < count:
                copying.append(batch)
    for log, epoch in zip((leader, follower), alone, strict=True):
        log.epochs.assign(epoch, log.log_end_offset)
        for _ in range(epoch % 3):
            number += 1
            log.append(AbstractBatch(log.log_end_offset, epoch, (number,)))
    return leader, follower


@settings(deadline=None)
@given(HISTORY, st.integers(0, 9), st.integers(1, 3), st.data())
def test_a_follower_gets_the_log_of_its_leader_whatever_was_before(
    history: list[tuple[int, int]], deleted: int, most: int, data: st.DataObject
) -> None:
    later = len(history) + 1
    leader, log = diverged(history, (later + 1, later))
    leader.high_watermark = leader.log_end_offset
    leader.delete_before(min(deleted, leader.log_end_offset))
    epoch = later + 2
    leader.epochs.assign(epoch, leader.log_end_offset)
    follower, now_ms = following(log, epoch), NOW
    for _ in range(60):
        asked = follower.next_fetch(now_ms)
        assert asked is not None
        if asked.offset == leader.log_end_offset and log.epochs.latest in (-1, leader.epochs.entries[-1][0]):
            break
        reply, batches = leader.answer(asked, epoch, most)
        if batches == [] and reply.error is OK and reply.diverging is None:
            break
        effects = follower.on_reply(asked, reply, now_ms)
        while effects:
            rest: tuple[Any, ...] = ()
            for effect in effects:
                match effect:
                    case Append():
                        log.append_fetched(batches)
                        rest += follower.on_done()
                    case Truncate(offset):
                        log.truncate_to(offset)
                        rest += follower.on_done()
                    case RestartAt(offset):
                        log.restart_at(offset)
                        rest += follower.on_done()
                    case FindOffset(which):
                        found = leader.log_end_offset if which == LATEST else leader.log_start_offset
                        rest += follower.on_offset(effect, found, now_ms)
                    case MoveWatermark(offset):
                        assert dict(log.records(0, offset)).items() <= dict(leader.records(0, offset)).items() or (
                            leader.log_start_offset > log.log_start_offset
                        )
                        log.high_watermark = offset
                    case DeleteBefore(offset):
                        log.delete_before(offset)
                    case Retry(delay_ms):
                        now_ms += delay_ms
            effects = rest
    assert log.log_end_offset == leader.log_end_offset
    start = leader.log_start_offset
    assert dict(log.records(start, 1 << 30)) == dict(leader.records(start, 1 << 30))
