"""The attacker's oracle about records that were deleted before a table had them: when a line has to name the loss."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, cast

import pytest
from attack_oracle import AttackFound, Bounds, LossWatch
from attack_records import AttackedTopic, RecordBook, SentRecord

from odradek.client.admin import Admin

TOPIC = "attacked"
REPLAY = json.dumps({TOPIC: {"0": [2, 5]}})


@pytest.fixture
def book() -> RecordBook:
    """Ten records in a partition, and as many in another one."""
    made = RecordBook("nowhere:1", cast(Admin, None), "raw", reads_aborted=False)
    made.topics[TOPIC] = AttackedTopic(TOPIC, 2)
    for number in range(20):
        record = SentRecord(number, 0, (TOPIC, number // 10, number % 10), is_shown=True)
        made.by_id[number] = made.topics[TOPIC].records[record.place[1:]] = record
    return made


def is_due(book: RecordBook, bounds: Bounds, committed: Any = ()) -> bool:
    """Whether the oracle reports a loss after all records were deleted, and no line has named one."""
    watch, found = LossWatch(), Counter(bounds.seen)
    watch.note(list(book.by_id.values()), bounds, book, committed)
    try:
        watch.check(found, book)
    except AttackFound:
        return True
    return False


def test_a_topic_that_only_a_replay_has_read_may_be_deleted(book: RecordBook) -> None:
    for is_done in (False, True):
        assert not is_due(book, Bounds(seen=Counter([2, 3, 4]), replays={REPLAY: is_done}))
    assert not is_due(book, Bounds(seen=Counter(), replays={REPLAY: False}))
    assert not is_due(
        book, Bounds(seen=Counter([2, 3, 4, 3, 4]), replays={REPLAY: True, REPLAY.replace("2", "3"): True})
    )


def test_a_loss_behind_rows_of_ingest_has_to_be_named(book: RecordBook) -> None:
    assert is_due(book, Bounds(seen=Counter([0, 1])))
    assert is_due(book, Bounds(seen=Counter([1, 2, 3, 4]), replays={REPLAY: True})), "a row outside of the replay"
    assert is_due(book, Bounds(seen=Counter([2, 2, 3, 4]), replays={REPLAY: True})), "a row more than the replay adds"
    assert is_due(book, Bounds(seen=Counter([2, 3, 4]), replays={REPLAY: False}), {(TOPIC, 0)}), "a commit of a run"


def test_only_the_partition_with_rows_counts(book: RecordBook) -> None:
    watch, bounds = LossWatch(), Bounds(seen=Counter([0, 12, 13]), replays={json.dumps({TOPIC: {"1": [2, 4]}}): True})
    watch.note(list(book.by_id.values()), bounds, book, {(TOPIC, 0)})
    assert {record.place[1] for record in watch.lost.values()} == {0}
    assert len(watch.lost) == 9


def test_a_topic_of_another_life_has_not_begun(book: RecordBook) -> None:
    again = SentRecord(20, 1, (TOPIC, 0, 0), is_shown=True)
    book.by_id[20] = again
    watch = LossWatch()
    watch.note([again], Bounds(seen=Counter([0, 1])), book)
    assert watch.lost == {}
