"""What must be true of a whole broker: copies of its logs, and what its replies have promised.

* A record that a reply has acknowledged is in the log at its offset. After a power cut the log is a prefix of what it
  was, at least up to its recovery point.
* No value is in a log twice: clients repeat only idempotent batches.
* The last stable offset is that of the records: the first record of an open transaction, or the end.
* A committed transaction is whole, an aborted one has no record for readers of committed records.
* The catalogue equals the replay of its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from support.memory_files import MemoryFiles

from odradek.batches.control import COMMIT, read_control
from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.broker.metadata.committed_catalog import CommittedCatalog
from odradek.broker.metadata_log.log import DIRECTORY, MetadataLog
from odradek.catalog.state import CatalogState

if TYPE_CHECKING:
    from sim_broker import BrokerStage

    from odradek.storage.log import Log

Place = tuple[UUID, int]
"""A partition: topic id and index."""
_READ_BYTES = 1 << 20


class SeenBatch(NamedTuple):
    """A batch of a log. ``values`` by offset; ``ends``: whether it is a marker, and then if it commits."""

    base_offset: int
    next_offset: int
    producer: tuple[int, int]
    is_transactional: bool
    values: dict[int, bytes]
    ends: bool | None
    data: bytes


class LogCopy:
    """A copy of a log, which grows with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: list[SeenBatch] = []
        self.end = 0
        self.start = 0
        self.recovery_point = 0
        self.offsets: dict[bytes, int] = {}
        self.acknowledged = 0
        """The end of acknowledged records."""
        self.is_after_power_cut = False
        self.stopped_start: int | None = None
        """The log's start when the process ended, if that is known. It does not rise at a start."""

    def add(self, batch: SeenBatch) -> None:
        self.batches.append(batch)
        self.end = batch.next_offset
        for offset, value in batch.values.items():
            self.offsets[value] = offset

    def follow_start(self, start: int) -> None:
        self.start = max(self.start, start)

    def truncate(self, end: int) -> None:
        while self.batches and self.batches[-1].next_offset > end:
            for value in self.batches.pop().values.values():
                self.offsets.pop(value, None)
        self.end = self.batches[-1].next_offset if self.batches else 0

    def transactions(self) -> tuple[dict[tuple[int, int], int], set[int], set[int]]:
        """Returns the open transactions (producer → first offset) and the batches that were committed or aborted."""
        opened: dict[int, tuple[int, int, list[int]]] = {}
        committed: set[int] = set()
        aborted: set[int] = set()
        for number, batch in enumerate(self.batches):
            producer, epoch = batch.producer
            if batch.ends is not None:
                _, _, numbers = opened.pop(producer, (0, 0, []))
                (committed if batch.ends else aborted).update(numbers)
            elif batch.is_transactional:
                opened.setdefault(producer, (epoch, batch.base_offset, []))[2].append(number)
        return {(pid, epoch): first for pid, (epoch, first, _) in opened.items()}, committed, aborted

    def fates(self) -> dict[bytes, str]:
        """Returns for each value of a transaction whether it is committed, aborted or open."""
        _, committed, aborted = self.transactions()
        return {
            value: "committed" if number in committed else "aborted" if number in aborted else "open"
            for number, batch in enumerate(self.batches)
            if batch.is_transactional
            for value in batch.values.values()
        }

    def stable_offset(self) -> int:
        return min(self.transactions()[0].values(), default=self.end)

    def readable(self, *, is_committed: bool) -> list[bytes]:
        """Returns the values that a reader gets."""
        opened, _, aborted = self.transactions()
        end = min(opened.values(), default=self.end) if is_committed else self.end
        values = []
        for number, batch in enumerate(self.batches):
            if batch.ends is not None or (is_committed and number in aborted):
                continue
            values += [value for offset, value in batch.values.items() if self.start <= offset < end]
        return values


class BrokerLedger:
    """The copies of the logs, and the checks of the running broker."""

    def __init__(self, stage: BrokerStage) -> None:
        self.copies: dict[Place, LogCopy] = {}
        self.checks = 0
        self.topics: dict[str, UUID] = {}
        """The topics whose creation was acknowledged, until somebody asks for their deletion."""
        self.settings: dict[str, str] = {}
        self._stage = stage
        self._unchecked: list[tuple[Place, int, list[bytes]]] = []
        """Acknowledged records to check after the next start."""
        self._checked: dict[Place, tuple[Any, int, int]] = {}

    def logs(self) -> Iterator[tuple[Place, str, Log]]:
        node = self._stage.node
        assert node is not None
        broker = node.broker
        for (name, index), partition in sorted(broker.partitions.items()):
            topic = broker.catalog.topic(name)
            if topic is not None and not partition.failure and partition.log.disk.offline is None:
                yield (topic.id, index), f"{name}-{index}", partition.log

    def is_there(self, place: Place) -> bool:
        """Returns whether the running broker has a log of this partition."""
        return self._stage.node is not None and any(one == place for one, _, _ in self.logs())

    # --- logs -----------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Copies what the logs have got since the last call, and checks their ends. Called after each event."""
        if self._stage.node is None:
            return
        for place, name, log in self.logs():
            if place in self.copies:  # a deletion of records changes the start without an append
                self.copies[place].follow_start(log.log_start_offset)
            known = self._checked.get(place)
            if known is not None and known[0] is log and known[1] == log.log_end_offset:
                continue
            self._checked[place] = log, log.log_end_offset, 0
            copy = self.copies.setdefault(place, LogCopy(name))
            self._copy(copy, log)
            self._check_stable(copy, log)

    def _copy(self, copy: LogCopy, log: Log) -> None:
        if log.log_end_offset < copy.end:
            raise self._stage.fail(f"{copy.name} ends at {log.log_end_offset}, and ended at {copy.end}", copy.name)
        for batch in _batches(log, max(copy.end, log.log_start_offset)):
            if batch.base_offset < copy.end:
                raise self._stage.fail(f"{copy.name} has offset {batch.base_offset} twice", copy.name)
            for value in batch.values.values():
                if value.startswith(b"v:") and value in copy.offsets:
                    raise self._stage.fail(f"{copy.name} has {value!r} twice", copy.name)
            copy.add(batch)
        copy.follow_start(log.log_start_offset)

    def _check_stable(self, copy: LogCopy, log: Log) -> None:
        self.checks += 1
        stable = min(copy.stable_offset(), log.high_watermark)
        if stable < log.log_start_offset:  # records of an open transaction were deleted: then it is the first batch
            first = (batch.base_offset for batch in copy.batches if batch.next_offset > log.log_start_offset)
            stable = next(first, log.log_start_offset)
        if log.last_stable_offset != stable:
            raise self._stage.fail(
                f"{copy.name} has the last stable offset {log.last_stable_offset}, not {stable}", copy.name
            )

    def check_acknowledged(self, place: Place, offset: int, values: list[bytes]) -> None:
        """Checks records at the moment of their reply."""
        self.follow()
        copy = self.copies.get(place)
        if copy is None or not self.is_there(place):  # the topic was deleted, the log failed, or the broker has died
            self._unchecked.append((place, offset, values))
            return
        found = [copy.offsets.get(value, -1) for value in values]
        if found != list(range(offset, offset + len(values))):
            raise self._stage.fail(f"{values} of {copy.name} is acknowledged at {offset}, but is at {found}", copy.name)
        copy.acknowledged = max(copy.acknowledged, offset + len(values))
        for where, name, log in self.logs():
            if where == place and self._stage.is_synced and log.recovery_point < copy.acknowledged:
                raise self._stage.fail(f"{name} is synced to {log.recovery_point}, not to {copy.acknowledged}", name)

    # --- a start --------------------------------------------------------------------------------------------------

    def note_end(self) -> None:
        """Notes the starts of the logs at the moment when the process ends."""
        self.follow()
        for place, _, log in self.logs():
            if place in self.copies:
                self.copies[place].stopped_start = log.log_start_offset

    def note_power_cut(self) -> None:
        """Notes what has to survive: the recovery points at the moment of the cut."""
        if self._stage.node is None:
            return
        self.note_end()
        self._unchecked.clear()
        for place, _, log in self.logs():
            if place in self.copies:
                self.copies[place].recovery_point = log.recovery_point
        for copy in self.copies.values():
            copy.is_after_power_cut = True

    def check_start(self) -> None:
        """Compares each log with its copy: equal after a kill, a prefix of it after a power cut."""
        self._checked.clear()
        for place, name, log in self.logs():
            copy = self.copies.get(place)
            if copy is None:
                continue
            least = copy.recovery_point if copy.is_after_power_cut else copy.end
            if log.log_end_offset < least:
                raise self._stage.fail(f"{name} ends at {log.log_end_offset} after a start, before {least}", name)
            noted, copy.stopped_start = copy.stopped_start, None
            if noted is not None and log.log_start_offset > noted:
                raise self._stage.fail(f"{name} starts at {log.log_start_offset}, and started at {noted}", name)
            copy.truncate(log.log_end_offset)
            found = list(_batches(log, log.log_start_offset))
            if copy.is_after_power_cut and not self._stage.is_synced:
                self._check_remains(copy, found, log)
                continue
            kept = [batch.data for batch in copy.batches if batch.next_offset > log.log_start_offset]
            if [batch.data for batch in found][: len(kept)] != kept:
                raise self._stage.fail(f"{name} has other records after a start", name)
        for copy in self.copies.values():
            copy.is_after_power_cut = False
        self.follow()
        unchecked, self._unchecked = self._unchecked, []
        for place, offset, values in unchecked:
            if self.is_there(place):
                self.check_acknowledged(place, offset, values)
        self.check_catalogue()

    def _check_remains(self, copy: LogCopy, found: list[SeenBatch], log: Log) -> None:
        """A disk writes unsynced pages in any order. So a part of the records is there, and all below the recovery
        point; the log goes on with these.

        Deleted records below the log's start may be on the disk, and a snapshot may know their transactions. If one was
        open, it may still be open, or be forgotten: Kafka does both, as there is a snapshot of the producers or not.
        """
        known = {batch.data for batch in copy.batches}
        needed = {batch.data for batch in copy.batches if copy.start < batch.next_offset <= copy.recovery_point}
        there = {batch.data for batch in found}
        if not needed <= there <= known:
            raise self._stage.fail(f"{copy.name} has other records after a power cut", copy.name)
        deleted = LogCopy(copy.name)
        deleted.batches = [batch for batch in copy.batches if batch.next_offset <= log.log_start_offset]
        opened = {pid: first for (pid, _), first in deleted.transactions()[0].items()}
        known_open = log.producers.open_transactions
        copy.batches = [
            batch
            for batch in deleted.batches
            if (pid := batch.producer[0]) not in opened
            or batch.base_offset < opened[pid]
            or known_open.get(pid) == opened[pid]
        ]
        copy.offsets = {}
        for batch in found:
            copy.add(batch)

    def check_catalogue(self) -> None:
        """Compares the catalogue with the replay of its log, and with the acknowledged changes."""
        node = self._stage.node
        if node is None or node.broker.quorum.is_syncing:
            return
        live = node.broker.catalog
        replayed = replay(self._stage.files, node)
        if replayed is not None and described(live) != (again := described(replayed)):
            raise self._stage.fail(f"the catalogue is {described(live)}, its log says {again}")
        names = {topic.name: topic.id for topic in live.topics()}
        for name, topic_id in self.topics.items():
            if names.get(name) != topic_id:
                raise self._stage.fail(f"the acknowledged topic {name} is gone", name)
        for name, value in self.settings.items():
            if name in self.topics and live.topic_configs(name).get("retention.ms") != value:
                raise self._stage.fail(f"the acknowledged setting {value} of {name} is gone", name)


def described(image: Any) -> list[Any]:
    return [
        (topic.name, topic.id, topic.partition_count, sorted(image.topic_configs(topic.name).items()),
         [one.leader_epoch for one in topic.partitions])
        for topic in sorted(image.topics(), key=lambda topic: topic.name)
    ]  # fmt: skip


def replay(files: MemoryFiles, node: Any) -> CommittedCatalog | None:
    """Returns the catalogue that the files of the metadata log have; None without one."""
    copy = MemoryFiles(files.now_ms)
    home = node.broker.directory.path
    for path, data in files.data.items():
        if path.parent == home / DIRECTORY or path.parent == home:
            copy.write(path, bytes(data))
    image = CommittedCatalog(CatalogState(lambda data: UUID(bytes=data), (node.broker.node_id,), UUID(int=0)))
    MetadataLog.open(
        home, image.replay, node.broker.metadata_log._mark, clean=False, now_ms=lambda: 0, files=copy
    )  # fmt: skip
    return image


def _batches(log: Log, offset: int) -> Iterator[SeenBatch]:
    while offset < log.log_end_offset:
        data = log.read(offset, _READ_BYTES, max_offset=log.log_end_offset).bytes()
        for pos, header in scan(data):
            if header.last_offset < offset:
                continue
            values: dict[int, bytes] = {}
            ends = None
            if header.is_control:
                control = read_control(data, pos, header)
                ends = control is not None and control.kind == COMMIT
            else:
                values = {row.offset: row.value or b"" for row in batch_rows(data, pos, header)}
            yield SeenBatch(
                header.base_offset, header.last_offset + 1, (header.producer_id, header.producer_epoch),
                header.is_transactional, values, ends, bytes(data[pos : pos + header.size_in_bytes]),
            )  # fmt: skip
            offset = header.last_offset + 1
