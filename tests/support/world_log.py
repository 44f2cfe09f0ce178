"""A partition of an internal topic on the real log, on a disk in memory: with faults, a lagging high watermark, crashes
and compaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.batches.rows import Row, iter_records
from odradek.broker.partitions.partition import Partition
from odradek.codecs.offsets_topic import Decoded, decode
from odradek.coordinator_runtime.runtime import Runtime
from odradek.core.errors import KafkaError
from odradek.core.ids import OFFSETS_TOPIC, EndTransactionMarker
from odradek.storage.cleaning.jobs import measure
from odradek.storage.config import DAY_MS, LogConfig
from odradek.storage.log import Log
from support import cleaning
from support.full_disk import FullDisk
from support.partitions import NODE, registered
from support.world import World


class WorldLog(Partition):
    """``fail_with`` is the error of the next append, ``refuses_with`` that of all appends, ``unreadable_with`` that of
    all reads; ``files`` may be full. ``before_append`` is called before each append.

    ``on_append(log, rows)`` is called with the appended rows.
    """

    def __init__(
        self,
        world: World,
        index: int = 0,
        *,
        topic: str = OFFSETS_TOPIC,
        delete_retention_ms: int = DAY_MS,
        on_append: Callable[[WorldLog, list[Row]], None] | None = None,
    ) -> None:
        self.world = world
        self.files = FullDisk()
        self.fail_with: KafkaError | None = None
        self.refuses_with: KafkaError | None = None
        self.unreadable_with: Exception | None = None
        self.before_append: Callable[[], object] = lambda: None
        self._path = Path(f"/{topic}-{index}")
        self._settings = LogConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=delete_retention_ms)
        self._on_append = on_append
        self._held_back: int | None = None
        super().__init__(topic, index, self._opened(), world.clock)
        self.apply(registered(index=index), NODE, 0)

    def _opened(self) -> Log:
        return Log.open(self._path, self._settings, self.world.clock(), clean=False, files=self.files)

    # --- used by the runtime ----------------------------------------------------------------------------------

    @property
    def max_message_bytes(self) -> int:
        return self.log.config.max_message_bytes

    @max_message_bytes.setter
    def max_message_bytes(self, value: int) -> None:
        self._settings = self.log.config = replace(self._settings, max_message_bytes=value)

    def _fail(self) -> None:
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        if self.refuses_with is not None:
            raise self.refuses_with

    def append_marker(self, marker: EndTransactionMarker) -> Any:
        self._fail()
        return super().append_marker(marker)

    def read_bytes(self, *given: Any, **how: Any) -> Any:
        if self.unreadable_with is not None:
            raise self.unreadable_with
        return super().read_bytes(*given, **how)

    def append(self, data: bytes) -> Any:
        self.before_append()
        self._fail()
        ((_, header),) = scan(data)
        assert len(data) <= self.max_message_bytes, "a batch longer than max.message.bytes"
        info = super().append(data)
        assert self.log_end_offset == info.base_offset + header.last_offset_delta + 1
        if self._on_append is not None:
            stored = self.log.read(info.base_offset, 1, max_offset=self.log_end_offset).bytes()
            self._on_append(self, list(iter_records(stored)))
        return info

    # --- read by tests ----------------------------------------------------------------------------------------

    @property
    def batches(self) -> list[bytes]:
        found = []
        for segment in self.log.segments:
            data = segment.file.pread(0, segment.size)
            found += [data[at : at + header.size_in_bytes] for at, header in scan(data)]
        return found

    def rows(self) -> list[Row]:
        return cleaning.rows(self.log)

    def raw(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(row.key, row.value) for row in self.rows()]

    def records(self) -> list[Decoded]:
        return [decode(row.key, row.value) for row in self.rows()]

    @property
    def size(self) -> int:
        return self.log.size

    # --- events -----------------------------------------------------------------------------------------------

    @property
    def held_back(self) -> int | None:
        """The high watermark while replicas lag; None: it is the log end."""
        return self._held_back

    @held_back.setter
    def held_back(self, value: int | None) -> None:
        self._held_back = self.log.high_watermark = value
        self.is_held = value is not None

    @property
    def writes_surely(self) -> bool:
        """Whether the next records are appended and replicated at once, unless the disk is full."""
        return self.fail_with is None and self.refuses_with is None and self.held_back is None

    def replicate(self) -> None:
        """The replicas have all records now."""
        if self._held_back is not None:
            self.held_back = self.log_end_offset

    def put(self, *records: tuple[bytes | None, bytes | None]) -> None:
        """Writes records without the coordinator's knowledge."""
        rows = [SimpleNamespace(key=key, value=value, timestamp_ms=None) for key, value in records]
        self.append(encode_batch(rows, now_ms=self.world.clock()))

    def crash(self) -> None:
        """Simulates kill -9 of the broker and its next start, which reads the log."""
        cleaned = self.log.removals.cleaned_offset
        self.log.abandon()
        self.files.crash()
        self.open_log = self._opened()
        self.log.removals.cleaned_offset = cleaned  # the broker stores this offset in a checkpoint file
        self.held_back = self._held_back

    def rewrite(self, batches: list[bytes]) -> None:
        """Replaces the whole log by these batches, whose headers have their offsets. Then opens the log again."""
        self.log.abandon()
        for path in [path for path in self.files.data if self._path in path.parents]:
            del self.files.data[path]
        self.files.write(self._path / f"{0:020}.log", b"".join(batches))
        self.open_log = self._opened()

    def truncate_to_high_watermark(self) -> int:
        """The next leader is a replica without the end of the log. Returns the number of lost records."""
        lost = self.log_end_offset - self.high_watermark
        self.log.removals.truncate_to(self.high_watermark, self.world.clock())
        return lost

    def roll(self) -> None:
        """Begins a segment. Records in the earlier segments may then be compacted."""
        self.log.roll(self.world.clock())

    def compact(self, *, knows_last: bool = True) -> int:
        """Cleans the segments that may be cleaned, like the broker for small logs. Returns the number of saved bytes.

        Without ``knows_last`` the end of the last cleaning is unknown, so that the whole log is dirty.
        """
        if not knows_last:
            self.log.removals.cleaned_offset = None
        before = self.size
        dirt = measure(self.log, self.world.clock())
        if dirt.first_dirty_offset < dirt.end_offset:
            cleaning.compact(self.log, self.world.clock(), files=self.files)
        return before - self.size


def reload(runtime: Runtime[Any], log: WorldLog) -> None:
    """Loads the log again, as after a deletion and a creation."""
    runtime.unload(log.index)
    runtime.load(log.index, log, 0)
