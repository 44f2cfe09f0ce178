"""What removes records from a log: DeleteRecords, retention, truncations, and compaction, which replaces segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from odradek.batches.steps import BatchSteps, finish
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.disk.disk_state import DiskState
from odradek.storage.disk.files import Files
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.log_sync import LogSync
from odradek.storage.log_writer import LogWriter
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.snapshots import ProducerSnapshots
from odradek.storage.retention import Rule, count_due, rules
from odradek.storage.segments.index import IndexCorrupt
from odradek.storage.segments.segment import Segment
from odradek.storage.segments.segment_list import SegmentList


class LogRemovals:
    """Removes records and files of one log.

    ``defer`` gets the removal of files that are no longer part of the log, and its delay in ms
    (``file.delete.delay.ms``). Their names end in ``.deleted`` until then. Without it they are removed at once.

    ``changes``: the number of removals, replacements and truncations of segments. ``cleaned_offset``: the end of the
    last cleaning; None before the first. ``is_being_cleaned`` suspends retention.
    """

    __slots__ = (
        "_disk", "_epochs", "_files", "_producers", "_segments", "_snapshots", "_sync", "_writer", "changes",
        "cleaned_offset", "defer", "is_being_cleaned",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        writer: LogWriter,
        *,
        segments: SegmentList,
        epochs: LeaderEpochs,
        producers: Producers,
        snapshots: ProducerSnapshots,
        disk: DiskState,
        sync: LogSync,
    ) -> None:
        self.changes = 0
        self.cleaned_offset: int | None = None
        self.is_being_cleaned = False
        self.defer: Callable[[int, Callable[[], None]], None] | None = None
        self._files = files
        self._writer = writer
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._snapshots = snapshots
        self._disk = disk
        self._sync = sync

    # the oldest records

    def delete_before(self, offset: int) -> int:
        """Raises the log start to ``offset`` for DeleteRecords; -1 is the high watermark (behaviour 53).

        The next ``retain`` removes the segments below the log start. Returns the log start. Raises KafkaError
        (OFFSET_OUT_OF_RANGE) for an offset above the high watermark or below -1.
        """
        self._disk.check_online()
        end = self._writer.readable_end
        if offset == -1:
            offset = end
        if offset < 0 or offset > end:
            raise KafkaError(ErrorCode.offset_out_of_range, f"offset {offset} is not within [0, {end}]")
        if offset > self._writer.log_start_offset:
            try:
                self._raise_start(offset)
            except OSError as error:
                raise self._disk.fail("delete records", error) from error
        return self._writer.log_start_offset

    def _raise_start(self, offset: int) -> None:
        self._writer.log_start_offset = offset
        self._epochs.truncate_from_start(offset)
        self._producers.end_offset = max(self._producers.end_offset, offset)

    def retain(self, now_ms: int) -> int:
        """Removes segments below the log start, over retention.bytes, or older than retention.ms.

        Returns their number. If all segments are due, it first rolls a new segment and then removes all the due ones.
        """
        self._disk.check_online()
        if self.is_being_cleaned:
            return 0
        removed = 0
        try:
            for rule in rules(self._writer, self._segments, now_ms):
                removed += self._remove_oldest(rule, now_ms)
        except OSError as error:
            raise self._disk.fail("retention", error) from error
        return removed

    def _remove_oldest(self, rule: Rule, now_ms: int) -> int:
        """Removes the oldest segments that are due by a rule."""
        due = count_due(self._writer, self._segments, rule)
        if not due:
            return 0
        self._snapshots.end_rebuild()
        segments = self._segments
        if due == len(segments):
            try:
                self._writer.roll(now_ms, self._writer.end_offset)
            except KafkaError:
                if self._disk.offline is not None or due == 1:
                    raise
                due -= 1  # the removal of the others makes room for the roll
        if segments.bases[due] > self._writer.log_start_offset:
            self._raise_start(segments.bases[due])
        self.changes += 1
        for segment in segments.all[:due]:
            self._remove(segment)
            segments.replace(0, 1)
            self._producers.remove_snapshot(segment.base_offset)
        return due

    # the newest records

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Does the same as ``begin_truncation``, with all its steps."""
        finish(self.begin_truncation(offset, now_ms))

    def truncate_in_steps(self, offset: int, now_ms: int) -> BatchSteps[None]:
        """Does the same as ``begin_truncation``. The newest batches are removed first, a few megabytes in a step."""
        while (at := self._segments.next_cut(offset)) > offset:
            self.begin_truncation(at, now_ms).close()
            yield None
        yield from self.begin_truncation(offset, now_ms)

    def begin_truncation(self, offset: int, now_ms: int) -> BatchSteps[None]:
        """Removes the batch with ``offset`` and all later batches: the log ends at the base offset of that batch.

        With an ``offset`` below the first segment the log becomes empty and starts at ``offset``. The log is cut in
        this call. The steps that it returns rebuild the states of the producers, if there are any. A change of the log
        that needs the states ends these steps first. Raises KafkaError, as the steps do.
        """
        self._disk.check_online()
        try:
            if offset < self._writer.end_offset:
                self._truncate(offset, now_ms)
            else:  # an epoch that a former leader has begun without a record is not one of the log
                self._epochs.truncate_from_end(self._writer.end_offset)
        except OSError as error:
            raise self._snapshots.failed_cut(error) from error
        return self._snapshots.rest_of_rebuild()

    def _truncate(self, offset: int, now_ms: int) -> None:
        self._remove_newest(offset)
        active = self._segments.active
        if offset < active.base_offset:
            active = self._empty_at(offset, now_ms)
        else:
            active.truncate_to(offset, now_ms)
        end = active.next_offset
        self._end_at(end)
        self._sync.cut(end)
        self._writer.log_start_offset = min(self._writer.log_start_offset, end)
        if self._writer.high_watermark is not None:
            self._writer.high_watermark = min(self._writer.high_watermark, end)
        self._epochs.truncate_from_end(end)
        self._producers.remove_snapshots_from(end + 1)
        if len(self._producers) or self._producers.rebuild is not None:
            self._snapshots.begin_rebuild(self._writer.config, now_ms, self._writer.await_replicas)
        else:  # a producer that is unknown now was unknown, or has expired, at each earlier offset
            self._producers.end_offset = end

    def _remove_newest(self, offset: int) -> None:
        """Removes the segments whose base offset is ``offset`` or later, except the first one. The newest one goes
        first: after a crash, the log ends earlier, and a follower begins again."""
        segments = self._segments
        while len(segments) > 1 and segments.bases[-1] >= offset:
            last = segments.active
            segments.replace(len(segments) - 1, len(segments))
            self._remove(last)

    def _empty_at(self, offset: int, now_ms: int) -> Segment:
        """Replaces the only segment by an empty one, which is returned."""
        self._remove(self._segments.active)
        fresh = Segment.create(self._sync.path, offset, self._writer.config, self._files, now_ms)
        self._segments.replace(0, 1, fresh)
        return fresh

    def _end_at(self, end: int) -> None:
        """Notes a lower end, or another one after a restart."""
        self.changes += 1
        self._writer.end_offset = end
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, end)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Removes all records. The log begins again, empty, at ``offset``, as in Kafka's ``truncateFullyAndStartAt``.

        For a follower whose log has nothing in common with that of its leader: its end is below the leader's log start,
        or its records are of a lost history. A high watermark that is set moves to ``offset``. Raises KafkaError.
        """
        self._disk.check_online()
        try:
            self._remove_newest(0)
            self._empty_at(offset, now_ms)
            self._end_at(offset)
            self._sync.restart(offset)
            self._writer.log_start_offset = offset
            if self._writer.high_watermark is not None:
                self._writer.high_watermark = offset
            self._epochs.truncate_from_end(0)
            self._producers.remove_snapshots_from(0)
            self._producers.restart(offset)
            self._segments.has_aborted = False
        except OSError as error:
            raise self._snapshots.failed_cut(error) from error

    # compaction

    def replace_segments(self, base_offset: int, replaced: Sequence[Segment]) -> bool:
        """Replaces closed segments by the cleaned segment at ``base_offset``, whose synced files end in ``.cleaned``.

        Returns False and removes the cleaned files if the log no longer has these segments, e.g. after a truncation.
        After a crash the next start finishes or undoes the replacement. Open readers keep the old files.
        """
        from odradek.storage.segment_swap import swap  # here, because a start does not need it

        self._disk.check_online()
        self._snapshots.end_rebuild()
        segments = self._segments
        first = segments.bases.index(base_offset) if base_offset in segments.bases else 0
        last = first + len(replaced)
        try:
            if not replaced or last >= len(segments) or segments.all[first:last] != list(replaced):
                self.discard_cleaned()
                return False
            for segment in replaced:  # markers are removed that end transactions in these snapshots
                self._producers.remove_snapshot(segment.base_offset)
            doomed, fresh = swap(self._files, self._sync.path, base_offset, replaced, self._writer.config)
        except OSError as error:
            raise self._disk.fail("replacing segments", error) from error
        except IndexCorrupt as error:
            raise self._disk.fail("replacing segments", OSError(str(error))) from error
        self.changes += 1
        segments.replace(first, last, fresh)
        self._producers.save_again()
        self._remove_later(doomed)
        return True

    # files

    def _remove(self, segment: Segment) -> None:
        if self.defer is None:
            segment.remove()
        else:
            self._remove_later(segment.mark_deleted())

    def _remove_later(self, doomed: Sequence[Path]) -> None:
        if self.defer is None:
            self._remove_files(doomed)
        else:
            self.defer(self._writer.config.file_delete_delay_ms, lambda: self._remove_files(doomed))

    def _remove_files(self, doomed: Sequence[Path]) -> None:
        if not self._disk.closed:
            from odradek.storage.segment_swap import remove_files

            remove_files(self._files, self._sync.path, doomed)

    def discard_cleaned(self) -> None:
        """Removes the files of an interrupted cleaning. Raises OSError."""
        from odradek.storage.segment_swap import discard_cleaned

        discard_cleaned(self._files, self._sync.path)
