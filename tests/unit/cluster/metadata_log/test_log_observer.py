"""An observer of the metadata log: what it asks for, and what replies change."""

from __future__ import annotations

import pytest

from odradek.cluster.metadata_log.log_observer import (
    FIRST_RETRY_MS,
    IDLE_MS,
    MAX_WAIT_MS,
    TIMEOUT_MS,
    LogObserver,
    PartReply,
    PartRequest,
    RecordsReply,
    RecordsRequest,
)
from odradek.cluster.metadata_log.observers import LogPlace
from odradek.core.errors import ErrorCode, KafkaError

LEADER, EPOCH = 100, 5
NONE = ErrorCode.none


class _Log:
    """A log of records that are single bytes: their epochs."""

    def __init__(self, *epochs: int, start: int = 0, before: int = 0) -> None:
        self.epochs, self.start, self.before = list(epochs), start, before
        self.parts: list[bytes] = []
        self.is_full = self.is_damaged = False

    @property
    def end(self) -> LogPlace:
        return LogPlace(self.start + len(self.epochs), self.epochs[-1] if self.epochs else self.before)

    def end_of_epoch(self, epoch: int) -> LogPlace | None:
        if not self.epochs or epoch > self.epochs[-1]:
            return None
        known = [one for one in self.epochs if one <= epoch]
        return LogPlace(self.start + len(known), known[-1] if known else epoch)

    def before_last_batch(self) -> LogPlace | None:
        """Each record is a batch. Its byte is its epoch and its content."""
        if not self.epochs:
            return None
        return LogPlace(self.end.end_offset - 1, self.epochs[-2] if len(self.epochs) > 1 else self.before)

    def begins_with_last_batch(self, data: bytes) -> bool:
        if data[:1] == b"\xff":
            raise ValueError
        return data[:1] == bytes(self.epochs[-1:])

    def append_batches(self, data: bytes) -> None:
        if self.is_full:
            raise KafkaError(ErrorCode.kafka_storage_error)
        if self.epochs and data[0] < self.epochs[-1]:
            raise ValueError
        self.epochs += data

    def truncate_to(self, offset: int) -> None:
        del self.epochs[offset - self.start :]

    def begin_download(self, place: LogPlace) -> None:
        self.parts = []

    def add_part(self, data: bytes) -> None:
        self.parts.append(data)

    def end_download(self, place: LogPlace) -> None:
        if self.is_damaged:
            raise ValueError
        self.epochs, self.start, self.before = [], *place


def records(data: bytes = b"", watermark: int = -1, **changes: object) -> RecordsReply:
    return RecordsReply(NONE, LEADER, EPOCH, watermark, data)._replace(**changes)


def part(data: bytes, position: int, size: int, **changes: object) -> PartReply:
    return PartReply(NONE, LEADER, EPOCH, size, position, data)._replace(**changes)


def observer(log: _Log, committed: int = -1) -> LogObserver:
    return LogObserver(log, EPOCH, committed, 0)


def ask(one: LogObserver, now_ms: int = 0) -> RecordsRequest | PartRequest:
    request = one.next_request(now_ms)
    assert request is not None
    return request


def test_records_and_the_high_watermark() -> None:
    log = _Log()
    one = observer(log)
    assert ask(one) == RecordsRequest(EPOCH, 0, 0, -1)
    one.on_records(one.number, records(bytes((5, 5, 5)), 2), 1)
    assert (log.epochs, one.committed, one.leader) == ([5, 5, 5], 2, LEADER)
    assert ask(one, 1) == RecordsRequest(EPOCH, 3, 5, 2)
    one.on_records(one.number, records(b"", 7), 2)
    assert one.committed == 3, "what is committed has to be in this log"
    assert ask(one, 2) == RecordsRequest(EPOCH, 3, 5, 3)
    one.on_records(one.number, records(bytes((5,)), 1), 3)
    assert one.committed == 3, "it does not go back"


def test_a_fetch_without_news_waits_at_the_leader() -> None:
    one = observer(_Log(5))
    ask(one)
    one.on_records(one.number, records(b"", 1), 1)
    ask(one, 1)
    one.on_records(one.number, records(b"", 1), 1 + MAX_WAIT_MS)
    assert one.next_ms == 1 + MAX_WAIT_MS
    ask(one, 1 + MAX_WAIT_MS)
    one.on_records(one.number, records(b"", 1), 2 + MAX_WAIT_MS)
    assert one.next_ms == 2 + MAX_WAIT_MS + IDLE_MS, "a leader that does not wait"


def test_one_request_is_in_flight_and_is_given_up() -> None:
    one = observer(_Log())
    ask(one)
    late = one.number
    assert one.next_request(TIMEOUT_MS - 1) is None
    assert one.next_request(TIMEOUT_MS) is None
    assert one.next_ms == TIMEOUT_MS + FIRST_RETRY_MS
    ask(one, one.next_ms)
    one.on_records(late, records(bytes((5,)), 1), one.next_ms)
    assert one.committed == -1, "a reply to an earlier request"


def test_failures_are_tried_again_after_growing_times() -> None:
    one, now, pauses = observer(_Log()), 0, []
    for _ in range(7):
        ask(one, now)
        one.on_failed(one.number, now)
        pauses.append(one.next_ms - now)
        now = one.next_ms
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]
    ask(one, now)
    one.on_records(one.number, records(), now)
    ask(one, now + IDLE_MS)
    one.on_failed(one.number, now)
    assert one.next_ms == now + 50


@pytest.mark.parametrize("code", [ErrorCode.fenced_leader_epoch, NONE, ErrorCode.not_leader_or_follower])
def test_a_later_epoch_is_followed_at_once(code: ErrorCode) -> None:
    log = _Log()
    one = observer(log)
    ask(one)
    one.on_records(one.number, records(bytes((9,)), 1, error=code, leader_epoch=9, leader=101), 1)
    assert (one.epoch, one.leader, log.epochs) == (9, 101, [])
    assert ask(one, 1) == RecordsRequest(9, 0, 0, -1)


def test_a_reply_of_an_earlier_epoch_does_not_count() -> None:
    log = _Log()
    one = observer(log)
    ask(one)
    one.on_records(one.number, records(bytes((4,)), 1, leader_epoch=4), 1)
    assert (log.epochs, one.epoch, one.next_ms) == ([], EPOCH, 1 + FIRST_RETRY_MS)


@pytest.mark.parametrize("code", [ErrorCode.unknown_leader_epoch, ErrorCode.broker_not_available])
def test_an_error_is_tried_again(code: ErrorCode) -> None:
    log = _Log()
    one = observer(log)
    ask(one)
    one.on_records(one.number, records(bytes((5,)), 1, error=code), 1)
    assert (log.epochs, one.next_ms) == ([], 1 + FIRST_RETRY_MS)


def test_records_that_do_not_fit_or_cannot_be_written_are_fetched_again() -> None:
    log = _Log(5)
    one = observer(log)
    ask(one)
    one.on_records(one.number, records(bytes((4,)), 2), 1)
    assert (log.epochs, one.committed, one.next_ms) == ([5], -1, 1 + FIRST_RETRY_MS)
    log.is_full = True
    ask(one, one.next_ms)
    one.on_records(one.number, records(bytes((5,)), 2), one.next_ms)
    log.is_full = False
    ask(one, one.next_ms)
    one.on_records(one.number, records(bytes((5,)), 2), one.next_ms)
    assert (log.epochs, one.committed) == ([5, 5], 2)


@pytest.mark.parametrize(
    ("own", "place", "kept"),
    [
        ([1, 1, 2, 2, 2], LogPlace(4, 2), [1, 1, 2, 2]),  # the leader has fewer records of this epoch
        ([1, 1, 2, 2, 4], LogPlace(9, 2), [1, 1, 2, 2]),  # more
        ([1, 1, 4, 4], LogPlace(3, 2), [1, 1]),  # this log lacks the epoch
        ([1, 1, 4, 4], LogPlace(0, 0), []),
        ([4, 4], LogPlace(1, 1), []),  # the epoch is older than all of this log
        ([4, 4], LogPlace(1, 5), [4, 4]),  # later: nothing of it is here
    ],
)
def test_a_diverging_log_is_cut_off(own: list[int], place: LogPlace, kept: list[int]) -> None:
    log = _Log(*own)
    one = observer(log)
    ask(one)
    one.on_records(one.number, records(diverging=place, watermark=9), 1)
    assert (log.epochs, one.committed) == (kept, -1)


def test_a_leader_that_has_lost_committed_records_ends_the_observer() -> None:
    log = _Log(1, 1, 1)
    one = observer(log, committed=3)
    ask(one)
    one.on_records(one.number, records(diverging=LogPlace(2, 1)), 1)
    assert log.epochs == [1, 1, 1]
    assert one.failure == (
        "the leader of the metadata log, node 100, has lost committed records: its log diverges at offset 2, and the "
        "records before offset 3 were committed: its folder is an older copy. Stop all nodes, and put back its newest "
        "folder, or the copies of all folders that were made at the same stop of the cluster"
    )
    assert one.next_request(1 << 40) is None


def test_a_snapshot_that_ends_before_the_committed_records_ends_the_observer() -> None:
    one = observer(_Log(1, 1, 1), committed=3)
    ask(one)
    one.on_records(one.number, records(snapshot=LogPlace(2, 5)), 1)
    assert "its log begins with a snapshot at offset 2" in one.failure


def test_a_snapshot_in_parts() -> None:
    log = _Log(1)
    one = observer(log)
    ask(one)
    place = LogPlace(30, 4)
    one.on_records(one.number, records(snapshot=place, watermark=40), 1)
    assert ask(one, 1) == PartRequest(EPOCH, place, 0)
    one.on_part(one.number, part(b"abc", 0, 5), 2)
    assert ask(one, 2) == PartRequest(EPOCH, place, 3)
    assert one.snapshots == 0
    one.on_part(one.number, part(b"de", 3, 5), 3)
    assert (b"".join(log.parts), one.snapshots, one.committed) == (b"abcde", 1, 30)
    assert ask(one, 3) == RecordsRequest(EPOCH, 30, 4, 30)


@pytest.mark.parametrize(
    "wrong",
    [
        part(b"", 3, 5),
        part(b"de", 2, 5),
        part(b"def", 3, 5),
        part(b"", 0, 0, error=ErrorCode.snapshot_not_found),
        part(b"", 0, 0, error=ErrorCode.position_out_of_range),
    ],
)
def test_a_wrong_part_begins_the_snapshot_again(wrong: PartReply) -> None:
    one = observer(_Log())
    ask(one)
    one.on_records(one.number, records(snapshot=LogPlace(30, 4)), 1)
    ask(one, 1)
    one.on_part(one.number, part(b"abc", 0, 5), 2)
    ask(one, 2)
    one.on_part(one.number, wrong, 3)
    assert isinstance(ask(one, 3 + FIRST_RETRY_MS), RecordsRequest)


def test_a_damaged_snapshot_is_fetched_again() -> None:
    log = _Log()
    log.is_damaged = True
    one = observer(log)
    ask(one)
    one.on_records(one.number, records(snapshot=LogPlace(30, 4)), 1)
    ask(one, 1)
    one.on_part(one.number, part(b"abcde", 0, 5), 2)
    assert (one.committed, one.snapshots) == (-1, 0)
    assert isinstance(ask(one, 2 + FIRST_RETRY_MS), RecordsRequest)


def test_another_leader_goes_on_with_a_snapshot() -> None:
    one = observer(_Log())
    ask(one)
    place = LogPlace(30, 4)
    one.on_records(one.number, records(snapshot=place), 1)
    ask(one, 1)
    one.on_part(one.number, part(b"abc", 0, 5), 2)
    ask(one, 2)
    one.on_part(one.number, part(b"", 0, 0, error=ErrorCode.fenced_leader_epoch, leader_epoch=6), 3)
    assert ask(one, 3) == PartRequest(6, place, 3)


# --- the only voter ---------------------------------------------------------------------------------------------------


def strict(log: _Log, committed: int = -1) -> LogObserver:
    return LogObserver(log, EPOCH, committed, 0, is_strict=True)


def test_the_last_batch_is_compared_at_the_start_and_over_each_new_connection() -> None:
    log = _Log(4, 5, 5)
    one = strict(log)
    assert ask(one) == RecordsRequest(EPOCH, 2, 5, -1)
    one.on_records(one.number, records(bytes((5, 5)), 3, connection=1), 1)
    assert log.epochs == [4, 5, 5], "what was compared is not appended"
    assert ask(one, 1) == RecordsRequest(EPOCH, 3, 5, -1)
    one.on_records(one.number, records(bytes((5,)), 4, connection=1), 2)
    assert (log.epochs, one.committed) == ([4, 5, 5, 5], 4)
    ask(one, 2)
    one.on_records(one.number, records(bytes((5,)), 5, connection=2), 3)
    assert (log.epochs, one.committed) == ([4, 5, 5, 5], 4), "perhaps another leader: nothing of it counts yet"
    assert ask(one, 3) == RecordsRequest(EPOCH, 3, 5, 4)
    one.on_records(one.number, records(bytes((5, 5)), 5, connection=2), 4)
    assert ask(one, 4) == RecordsRequest(EPOCH, 4, 5, 4)
    assert not one.failure


def test_a_connection_that_is_lost_again_is_compared_again() -> None:
    one = strict(_Log(5))
    ask(one)
    one.on_failed(one.number, 0)
    assert ask(one, one.next_ms) == RecordsRequest(EPOCH, 0, 0, -1)


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (
            records(bytes((4, 5)), 9),
            "node 100, has other records than this broker has copied from it, from offset 2 on",
        ),
        (records(b"", 2), "has other records than this broker has copied from it, from offset 2 on"),
        (records(diverging=LogPlace(1, 4)), "has other records than this broker has copied from it, from offset 2 on"),
        (records(leader_epoch=4), "node 100, is in the leader epoch 4, and this broker has followed the epoch 5"),
        (records(leader_epoch=4, error=ErrorCode.unknown_leader_epoch), "is in the leader epoch 4"),
    ],
)
def test_an_older_copy_of_the_log_ends_the_observer(reply: RecordsReply, line: str) -> None:
    log = _Log(4, 5, 5)
    one = strict(log)
    ask(one)
    one.on_records(one.number, reply._replace(connection=1), 1)
    assert line in one.failure
    assert "its folder is an older copy. Stop all nodes" in one.failure
    assert log.epochs == [4, 5, 5]
    assert one.next_request(1 << 40) is None


def test_records_that_were_served_are_committed_although_the_observer_has_not_heard_it() -> None:
    log = _Log(4, 5, 5)
    one = strict(log)
    ask(one)
    one.on_records(one.number, records(bytes((5,)), 1, connection=1), 1)
    ask(one, 1)
    one.on_records(one.number, records(diverging=LogPlace(2, 5), connection=1), 2)
    assert "its log diverges at offset 2, and the records before offset 3 were committed" in one.failure
    assert log.epochs == [4, 5, 5]


def test_a_damaged_reply_is_no_other_record() -> None:
    one = strict(_Log(5, 5))
    ask(one)
    one.on_records(one.number, records(b"\xff", 2, connection=1), 1)
    assert not one.failure
    assert ask(one, one.next_ms) == RecordsRequest(EPOCH, 1, 5, -1)


def test_a_leader_that_does_not_keep_the_batch_any_more_sends_its_snapshot() -> None:
    one = strict(_Log(5, 5))
    ask(one)
    one.on_records(one.number, records(snapshot=LogPlace(2, 5), connection=1), 1)
    assert ask(one, 1) == RecordsRequest(EPOCH, 2, 5, -1)
    one.on_records(one.number, records(snapshot=LogPlace(30, 5), connection=1), 2)
    assert ask(one, 2) == PartRequest(EPOCH, LogPlace(30, 5), 0)


def test_a_log_without_a_batch_has_nothing_to_compare() -> None:
    log = _Log(start=7, before=5)
    one = strict(log, committed=7)
    assert ask(one) == RecordsRequest(EPOCH, 7, 5, 7)
    one.on_records(one.number, records(bytes((5,)), 8, connection=1), 1)
    assert (log.epochs, one.committed) == ([5], 8)
