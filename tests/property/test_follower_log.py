"""A follower's log that copies its leader's by any schedule of fetches, cuts, damages and reopenings equals it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import examples
from support.logs import T0, aborted_in, batch, find_timestamp, sequenced
from support.memory_files import MemoryFiles

from odradek.batches.header import LOG_OVERHEAD, MAGIC_OFFSET, BatchHeader, size_of_batch
from odradek.core.errors import CorruptRecord
from odradek.core.ids import EndTransactionMarker
from odradek.storage.config import LogConfig
from odradek.storage.fetched_batches import UnexpectedOffset
from odradek.storage.log import Log

LEADER, FOLLOWER = Path("/logs/leader-0"), Path("/logs/follower-0")
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100, segment_index_bytes=120)
CODECS = ("none", "gzip", "zstd")
IDEMPOTENT, TRANSACTIONAL = (5,), (6, 7)


def stored(log: Log, end: int | None = None) -> bytes:
    """The bytes of all batches up to offset ``end``, from the first batch on the disk on."""
    return b"".join(
        bytes(segment.file.pread(position, header.size_in_bytes))
        for segment in log.segments
        for position, header in segment.batches_from(0)
        if end is None or header.last_offset < end
    )


def states(log: Log) -> dict[int, tuple[object, ...]]:
    """The states of the producers, without the times of single batches: a snapshot has one time for a producer, as in
    Kafka, and a marker moves it. So a last batch that is read back has the time of a marker behind it."""
    return {
        one.producer_id: (
            one.epoch, one.coordinator_epoch, one.last_timestamp, one.transaction_start,
            *((batch.last_sequence, batch.last_offset, batch.offset_delta) for batch in one.batches),
        )
        for one in log.producers
    }  # fmt: skip


class FollowerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.epoch = 0
        self.now_ms = T0
        self.sequences = dict.fromkeys(IDEMPOTENT + TRANSACTIONAL, 0)
        self.open: set[int] = set()
        self.knows_producers = True
        self.leader = self.opened(LEADER)
        self.follower = self.opened(FOLLOWER)

    def opened(self, path: Path, *, clean: bool = False, point: int = 0, start: int | None = None) -> Log:
        return Log.open(
            path, CONFIG, self.now_ms, clean=clean, recovery_point=point, log_start_offset=start, files=self.files
        )

    @rule(
        count=st.integers(1, 6),
        codec=st.sampled_from(CODECS),
        producer=st.sampled_from([None, *IDEMPOTENT, *TRANSACTIONAL]),
        passed=st.integers(0, 500),
        times=st.integers(1, 6),
    )
    def append(self, count: int, codec: str, producer: int | None, passed: int, times: int) -> None:
        for _ in range(times):
            self.now_ms += passed
            if producer is None:
                data = batch(count, at_ms=self.now_ms, compression=codec)
            else:
                is_transactional = producer in TRANSACTIONAL
                first = self.sequences[producer]
                data = sequenced(
                    first, count, producer, at_ms=self.now_ms, compression=codec, transactional=is_transactional
                )
                self.sequences[producer] += count
                if is_transactional:
                    self.open.add(producer)
            self.leader.append(data, now_ms=self.now_ms, leader_epoch=self.epoch)

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans(), data=st.data())
    def end_transaction(self, commit: bool, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        self.open.discard(producer)
        marker = EndTransactionMarker(producer, 0, 0, commit, 1)
        self.leader.append_marker(marker, now_ms=self.now_ms, leader_epoch=self.epoch)

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.leader.assign_epoch(self.epoch)

    @rule()
    def roll(self) -> None:
        self.leader.roll(self.now_ms)

    def fetched(self, most: int) -> bytes:
        end = self.leader.log_end_offset
        return self.leader.read(self.follower.log_end_offset, most, max_offset=end).bytes()

    @rule(most=st.integers(1, 5000))
    def fetch(self, most: int) -> None:
        """A leader cuts a reply at ``most`` bytes, except its first batch."""
        data, before = self.fetched(most), self.follower.log_end_offset
        self.take(data)
        if data:
            assert self.follower.log_end_offset > before

    def take(self, data: bytes) -> None:
        try:
            self.follower.append_fetched(data, now_ms=self.now_ms, leader_epoch=self.epoch)
            return
        except UnexpectedOffset as error:
            first, last = error.first_offset, error.last_offset
        end = self.follower.log_end_offset
        assert self.follower.log_start_offset == end
        assert first < end <= last, "the leader's log start is inside of a batch"
        self.follower.removals.restart_at(first, self.now_ms)
        self.follower.append_fetched(data, now_ms=self.now_ms, leader_epoch=self.epoch)

    @rule()
    def fetch_all(self) -> None:
        while self.follower.log_end_offset < self.leader.log_end_offset:
            self.fetch(4000)
        self.agree()

    @rule(most=st.integers(1, 5000), part=st.floats(0, 1), bits=st.integers(1, 255))
    def fetch_damaged(self, most: int, part: float, bits: int) -> None:
        """Damages one byte. The base offset and the epoch are outside of the checksum, and no disk or wire changes
        them alone."""
        data = bytearray(self.fetched(most))
        starts = [0]
        while starts[-1] + LOG_OVERHEAD <= len(data):
            starts.append(starts[-1] + size_of_batch(data, starts[-1]))
        at = int(part * len(data))
        head = max((start for start in starts if start <= at), default=0)
        if at >= len(data) or 8 <= at - head < 12 or at - head < MAGIC_OFFSET:
            return
        data[at] ^= bits
        before = stored(self.follower), states(self.follower), self.follower.epochs.entries
        is_whole = any(start > at for start in starts if start <= len(data))
        try:
            self.follower.append_fetched(bytes(data), now_ms=self.now_ms, leader_epoch=self.epoch)
        except (CorruptRecord, UnexpectedOffset):
            assert (stored(self.follower), states(self.follower), self.follower.epochs.entries) == before
        else:
            assert not is_whole, "only a batch that is cut off may be damaged"

    @rule(most=st.integers(100, 5000), epoch=st.integers(0, 3))
    def fetch_with_an_older_epoch(self, most: int, epoch: int) -> None:
        known = max(self.epoch - epoch, 0)
        if self.follower.log_start_offset == self.follower.log_end_offset:
            return  # ``take`` has the case of an empty log
        self.follower.append_fetched(self.fetched(most), now_ms=self.now_ms, leader_epoch=known)
        newest = max((header.leader_epoch for header in self.headers()), default=0)
        assert newest <= max(known, self.newest_before)

    def headers(self) -> list[BatchHeader]:
        return [header for segment in self.follower.segments for _, header in segment.batches_from(0)]

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        start, end = self.follower.log_start_offset, self.follower.log_end_offset
        self.follower.removals.truncate_to(end - round((end - start) * part**3), self.now_ms)
        self.restart_if_too_old()

    @rule(part=st.floats(0, 1))
    def delete_and_restart(self, part: float) -> None:
        """The leader deletes records that the follower has not fetched: the follower begins again."""
        start, end = self.leader.log_start_offset, self.leader.log_end_offset
        offset = start + round((end - start) * part**2)
        self.leader.removals.delete_before(offset)
        self.restart_if_too_old()

    def restart_if_too_old(self) -> None:
        offset = self.leader.log_start_offset
        if self.follower.log_end_offset < offset:
            self.follower.removals.restart_at(offset, self.now_ms)
            assert self.follower.log_start_offset == self.follower.log_end_offset == offset
            assert (stored(self.follower), states(self.follower), self.follower.epochs.entries) == (b"", {}, ())
            self.knows_producers = False

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        before = stored(self.follower), states(self.follower), self.follower.epochs.entries
        point, start = self.follower.recovery_point, self.follower.log_start_offset
        assert point <= self.follower.log_end_offset
        if clean:
            self.follower.close()
        else:
            self.follower.abandon()
        self.follower = self.opened(FOLLOWER, clean=clean, point=point, start=start)
        assert (stored(self.follower), states(self.follower), self.follower.epochs.entries) == before

    @invariant()
    def is_a_part_of_the_leader(self) -> None:
        end, copy = self.follower.log_end_offset, stored(self.follower)
        assert stored(self.leader, end).endswith(copy)
        self.newest_before = max((header.leader_epoch for header in self.headers()), default=0)
        epochs = self.follower.epochs.entries
        assert list(epochs) == sorted(epochs)
        assert all(entry.start_offset < end for entry in epochs), "the epochs come with the records"
        assert all(segment.size <= CONFIG.segment_bytes for segment in self.follower.segments)

    def agree(self) -> None:
        leader, follower = self.leader, self.follower
        start, end = follower.log_start_offset, follower.log_end_offset
        assert stored(leader).endswith(stored(follower))
        for offset in range(max(start, leader.log_start_offset), end, 7):
            assert follower.epochs.epoch_of(offset) == leader.epochs.epoch_of(offset)
        for at_ms in (T0, (T0 + self.now_ms) // 2, self.now_ms):
            if leader.log_start_offset == start:
                assert find_timestamp(follower, at_ms) == find_timestamp(leader, at_ms)
        if self.knows_producers:
            assert states(follower) == states(leader)
            assert follower.producers.open_transactions == leader.producers.open_transactions
            if leader.log_start_offset == start:  # a log start inside of an open transaction is stable up to there
                assert follower.last_stable_offset == leader.last_stable_offset
            assert sorted(aborted_in(follower, 0, end)) == sorted(aborted_in(leader, 0, end))


FollowerModel.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40)
TestFollowerLog = FollowerModel.TestCase
