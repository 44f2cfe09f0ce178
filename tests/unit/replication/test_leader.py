"""What a leader decides: its high watermark, and who leaves and joins the ISR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.catalog.registrations import PartitionRegistration
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import FetchingReplica
from odradek.replication.effects import AlteredIsr, AlterIsr, MoveWatermark
from odradek.replication.leader import IsrLimits, PartitionLeader

LAG_MS = 1_000


@dataclass(frozen=True)
class Broker:
    epoch: int
    is_fenced: bool = False
    is_shutting_down: bool = False


def registered(
    isr: tuple[int, ...] = (1, 2, 3), *, epoch: int = 5, partition_epoch: int = 7, replicas: tuple[int, ...] = (1, 2, 3)
) -> PartitionRegistration:
    return PartitionRegistration(0, replicas, isr, 1, epoch, partition_epoch, 0, (), (), (), (), ())


class Leading:
    """Broker 1 leads three replicas. Its log ends at 10, the watermark is 4. Broker n has the epoch 100 + n."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 2) -> None:
        self.brokers = {number: Broker(100 + number) for number in (1, 2, 3, 4)}
        self.leader = PartitionLeader(FetchingReplica(1, 101), IsrLimits(LAG_MS, min_isr), self.brokers.get)
        self.now_ms, self.end = 50_000, 10
        moved = (MoveWatermark(10),) if isr == (1,) and min_isr == 1 else ()
        assert self.leader.on_registration(registered(isr), 10, 4, self.now_ms) == moved

    def fetch(self, number: int, offset: int, *, epoch: int | None = None) -> list[Any]:
        replica = FetchingReplica(number, 100 + number if epoch is None else epoch)
        return list(self.leader.on_fetch(replica, offset, 0, self.end, self.now_ms))

    def append(self, count: int = 1) -> list[Any]:
        self.end += count
        return list(self.leader.on_append(self.end, self.now_ms))

    def tick(self, by_ms: int = 0) -> list[Any]:
        self.now_ms += by_ms
        return list(self.leader.on_tick(self.now_ms))

    def answer(self, asked: AlterIsr, answer: AlteredIsr | ErrorCode) -> list[Any]:
        return list(self.leader.on_alter_reply(asked, answer, self.now_ms))


def asked_for(effects: list[Any]) -> AlterIsr:
    (found,) = [effect for effect in effects if isinstance(effect, AlterIsr)]
    return found


def confirmed(asked: AlterIsr) -> AlteredIsr:
    return AlteredIsr(asked.leader_epoch, asked.partition_epoch + 1, asked.broker_ids)


def test_the_watermark_is_the_least_end_of_the_isr() -> None:
    leading = Leading()
    assert leading.fetch(2, 10) == []
    assert leading.fetch(3, 7) == [MoveWatermark(7)]
    assert leading.append() == []
    assert leading.fetch(3, 11) == [MoveWatermark(10)]
    assert leading.fetch(2, 11) == [MoveWatermark(11)]
    assert leading.fetch(2, 9) == [], "it never goes back"
    assert leading.leader.watermark == 11


def test_alone_in_the_isr_each_append_moves_the_watermark_unless_replicas_are_too_few() -> None:
    leading = Leading((1,), min_isr=1)
    assert leading.append() == [MoveWatermark(11)]
    leading = Leading((1,), min_isr=2)
    assert leading.leader.lacks_replicas
    assert leading.append() == []
    assert leading.leader.on_limits(IsrLimits(LAG_MS, 1), leading.now_ms) == (MoveWatermark(11),)


def test_below_the_watermark_who_is_about_to_join_counts_for_the_minimum() -> None:
    """As in Kafka: before the append it does not count."""
    leading = Leading((1,), min_isr=1)
    assert not leading.leader.lacked_replicas
    leading.leader.on_limits(IsrLimits(LAG_MS, 2), leading.now_ms)
    assert leading.leader.lacks_replicas
    assert leading.leader.lacked_replicas, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    asked_for(leading.fetch(3, 10))
    assert leading.leader.lacks_replicas
    assert not leading.leader.lacked_replicas


def test_the_minimum_counts_at_most_the_number_of_replicas() -> None:
    leading = Leading((1,), min_isr=3)
    one = registered((1,), partition_epoch=8, replicas=(1,))
    assert leading.leader.on_registration(one, 10, 4, leading.now_ms) == (MoveWatermark(10),)


def test_a_follower_that_is_about_to_join_holds_the_watermark() -> None:
    """It is not in the ISR yet. But it is caught up, so the leader waits for it, or it would never reach the end."""
    leading = Leading((1, 2))
    leading.fetch(2, 10)
    asked = asked_for(leading.fetch(3, 10))
    assert leading.append() == []
    assert leading.fetch(2, 11) == [], "broker 3 has asked for offset 10 only"
    assert leading.answer(asked, ErrorCode.ineligible_replica) == []
    assert leading.fetch(2, 11) == []
    leading.brokers[3] = replace(leading.brokers[3], is_fenced=True)
    assert leading.tick() == [MoveWatermark(11)], "one that may not join is not waited for (KAFKA-15021)"


def test_a_follower_joins_at_the_watermark_and_at_the_start_of_the_leader_epoch() -> None:
    leading = Leading((1, 2), min_isr=1)
    assert leading.fetch(3, 9) == [], "the watermark is 4, but the leader epoch began at 10 (KAFKA-7128)"
    assert leading.fetch(2, 10) == [MoveWatermark(10)]
    leading.append(5)
    assert leading.fetch(2, 15) == [MoveWatermark(15)], "broker 3 was never caught up"
    assert leading.fetch(3, 14) == []
    asked = asked_for(leading.fetch(3, 15))
    assert asked == AlterIsr(5, 7, (FetchingReplica(1, 101), FetchingReplica(2, 102), FetchingReplica(3, 103)))
    assert leading.leader.isr == (1, 2)


@pytest.mark.parametrize(
    ("broker", "epoch"),
    [
        (Broker(103, is_fenced=True), 103),
        (Broker(103, is_shutting_down=True), 103),
        (None, 103),
        (Broker(103), 104),
    ],
)
def test_no_follower_joins_that_may_not(broker: Broker | None, epoch: int) -> None:
    leading = Leading((1, 2))
    if broker is None:
        del leading.brokers[3]
    else:
        leading.brokers[3] = broker
    assert leading.fetch(3, 10, epoch=epoch) == []
    leading.brokers[3] = Broker(epoch)
    assert asked_for(leading.fetch(3, 10, epoch=epoch)).broker_ids == (1, 2, 3)


def test_a_fetch_of_a_former_incarnation_is_refused_and_changes_nothing() -> None:
    leading = Leading((1, 2))
    leading.brokers[3] = Broker(200)
    with pytest.raises(KafkaError) as refused:
        leading.fetch(3, 10)
    assert refused.value.code is ErrorCode.not_leader_or_follower
    assert leading.leader.followers.states[3].end_offset == -1
    assert asked_for(leading.fetch(3, 10, epoch=-1)).isr[-1] == FetchingReplica(3, -1), "before version 15"


def test_a_broker_without_a_replica_may_try_again() -> None:
    with pytest.raises(KafkaError) as refused:
        Leading().fetch(4, 10)
    assert refused.value.code is ErrorCode.unknown_leader_epoch


def test_a_follower_that_was_not_caught_up_for_the_time_leaves_when_the_controller_says_so() -> None:
    leading = Leading()
    leading.fetch(2, 10)
    assert leading.tick(LAG_MS) == [], "broker 3 has this time from the begin of the term on"
    leading.append()
    leading.fetch(2, 11)
    asked = asked_for(leading.tick(1))
    assert asked.isr == (FetchingReplica(1, 101), FetchingReplica(2, 102))
    assert leading.leader.isr == (1, 2, 3), "the controller decides"
    assert leading.tick(LAG_MS) == [], "one change at a time"
    assert leading.answer(asked, confirmed(asked)) == [MoveWatermark(11)]
    assert leading.leader.partition_epoch == 8
    assert leading.tick() == []


def test_a_follower_without_news_stays_however_long_it_does_not_fetch_if_it_has_all() -> None:
    leading = Leading()
    leading.fetch(2, 10)
    leading.fetch(3, 10)
    assert leading.tick(100 * LAG_MS) == []


def test_a_smaller_isr_does_not_count_before_the_controller_has_it() -> None:
    leading = Leading((1, 2), min_isr=1)
    leading.append()
    asked = asked_for(leading.tick(LAG_MS + 1))
    assert asked.broker_ids == (1,)
    assert leading.append() == []
    assert leading.answer(asked, confirmed(asked)) == [MoveWatermark(12)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    ],
)
def test_after_an_error_of_an_overtaken_change_the_next_registration_counts(code: ErrorCode) -> None:
    leading = Leading((1, 2))
    asked = asked_for(leading.fetch(3, 10))
    assert leading.answer(asked, code) == []
    assert leading.leader.pending is asked
    leading.leader.on_registration(registered((1, 2), partition_epoch=8), 10, 4, leading.now_ms)
    assert asked_for(leading.fetch(3, 10)).partition_epoch == 8


@pytest.mark.parametrize("code", [ErrorCode.operation_not_attempted, ErrorCode.ineligible_replica])
def test_a_refused_change_is_taken_back(code: ErrorCode) -> None:
    leading = Leading((1, 2), min_isr=3)
    asked = asked_for(leading.fetch(3, 10))
    assert not leading.leader.lacked_replicas, "the follower that is about to join counts"
    assert leading.answer(asked, code) == []
    assert leading.leader.pending is None
    assert leading.leader.lacked_replicas
    assert asked_for(leading.fetch(3, 10)) == asked, "the next fetch asks again"


def test_after_any_other_error_the_same_change_is_asked_for_again() -> None:
    leading = Leading((1, 2))
    asked = asked_for(leading.fetch(3, 10))
    assert leading.answer(asked, ErrorCode.unknown_server_error) == [asked]
    assert leading.answer(asked, confirmed(asked)) == []
    assert leading.leader.isr == (1, 2, 3)


def test_a_registration_overtakes_a_reply() -> None:
    leading = Leading((1, 2))
    asked = asked_for(leading.fetch(3, 10))
    leading.leader.on_registration(registered((1,), partition_epoch=8), 10, 4, leading.now_ms)
    assert leading.answer(asked, confirmed(asked)) == []
    assert (leading.leader.isr, leading.leader.partition_epoch) == ((1,), 8)


def test_a_registration_that_a_reply_has_overtaken_keeps_the_next_change_on_its_way() -> None:
    """In Kafka it ends the change here, but not at the controller. Then the watermark would pass what broker 3 lacks,
    and broker 3 could be elected."""
    leading = Leading((1,), min_isr=1)
    first = asked_for(leading.fetch(2, 10))
    leading.answer(first, confirmed(first))
    second = asked_for(leading.fetch(3, 10))
    assert second.partition_epoch == 8
    leading.leader.on_registration(registered((1, 2), partition_epoch=8), 10, 4, leading.now_ms)
    assert leading.leader.pending is second
    leading.append()
    leading.now_ms += LAG_MS + 1
    assert leading.fetch(2, 11) == []
    assert leading.answer(second, confirmed(second)) == []
    assert leading.fetch(3, 11) == [MoveWatermark(11)]


def test_an_answer_of_another_leader_epoch_or_an_earlier_change_does_not_count() -> None:
    leading = Leading((1, 2))
    asked = asked_for(leading.fetch(3, 10))
    for answer in (AlteredIsr(6, 8, (1, 2, 3)), AlteredIsr(5, 6, (1, 2, 3))):
        assert leading.answer(asked, answer) == []
        assert leading.leader.isr == (1, 2)
    assert leading.leader.pending is asked


def test_an_older_registration_changes_nothing() -> None:
    leading = Leading((1, 2))
    for older in (registered((1,), partition_epoch=6), registered((1,), epoch=4, partition_epoch=9)):
        assert leading.leader.on_registration(older, 10, 4, leading.now_ms) == ()
    assert leading.leader.isr == (1, 2)


def test_a_leader_that_is_elected_again_keeps_the_ends_and_begins_its_epoch_at_its_end() -> None:
    leading = Leading((1, 2))
    leading.fetch(2, 10)
    leading.append(3)
    leading.leader.on_registration(registered((1, 2), epoch=6, partition_epoch=8), 13, 10, leading.now_ms)
    assert leading.leader.followers.states[2].end_offset == 10
    assert leading.leader.epoch_start == 13
    assert leading.fetch(3, 12) == []


def test_a_leader_that_has_missed_an_epoch_counts_no_earlier_fetch() -> None:
    """In epoch 6 another broker may have led, and follower 2 may have been truncated to its log."""
    leading = Leading((1, 2))
    leading.append(3)
    leading.fetch(2, 13)
    leading.append(2)
    assert leading.leader.on_registration(registered((1, 2), epoch=7, partition_epoch=9), 15, 4, leading.now_ms) == ()
    assert leading.leader.followers.states[2].end_offset == -1
    assert leading.fetch(2, 10) == []
    assert leading.fetch(2, 15) == [MoveWatermark(15)]


def test_the_low_watermark_counts_the_followers_outside_of_the_fence() -> None:
    leading = Leading()
    for number, start in ((2, 3), (3, 1)):
        leading.leader.on_fetch(FetchingReplica(number, 100 + number), 10, start, 10, leading.now_ms)
    assert leading.leader.low_watermark(4) == 1
    leading.brokers[3] = replace(leading.brokers[3], is_fenced=True)
    assert leading.leader.low_watermark(4) == 3
    assert leading.leader.low_watermark(2) == 2


EVENTS = st.lists(
    st.tuples(st.sampled_from(["append", "fetch 2", "fetch 3", "tick", "yes", "no"]), st.integers(0, 4)), max_size=40
)


@settings(deadline=None)
@given(EVENTS, st.integers(1, 3))
def test_what_the_watermark_has_passed_is_in_each_isr_that_the_controller_may_have(
    events: list[tuple[str, int]], min_isr: int
) -> None:
    """Whatever is asked for: a replica in the ISR, of now or of a change on its way, has all records below the
    watermark."""
    leading = Leading((1, 2), min_isr)
    ends = {1: 10, 2: 10, 3: 10}

    def changes() -> Iterator[AlterIsr]:
        if leading.leader.pending is not None:
            yield leading.leader.pending

    for what, number in events:
        before = leading.leader.watermark
        if what == "append":
            leading.append(number)
            ends[1] = leading.end
        elif what.startswith("fetch"):
            follower = int(what[-1])
            ends[follower] = min(ends[follower] + number, leading.end)
            leading.fetch(follower, ends[follower])
        elif what == "tick":
            leading.tick(number * LAG_MS // 2)
        for asked in list(changes()) if what in ("yes", "no") else ():
            leading.answer(asked, confirmed(asked) if what == "yes" else ErrorCode.ineligible_replica)
        watermark = leading.leader.watermark
        assert before <= watermark <= leading.end
        for isr in (leading.leader.isr, *(one.broker_ids for one in changes())):
            assert all(ends[number] >= watermark for number in isr)
