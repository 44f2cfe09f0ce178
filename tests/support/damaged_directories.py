"""A data directory with all that a broker stores, damages of its files, and what a broker has after a damage.

``support/damage_rules`` says what a broker may have.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import odradek
from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.batches.control import ABORT, COMMIT, read_control
from odradek.batches.header import BatchHeader, crc_is_valid, scan
from odradek.batches.rows import iter_records
from odradek.broker.partitions.partition import Partition
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.codecs.offsets_topic import OffsetCommitValue, offset_key, offset_value
from odradek.core.errors import CorruptRecord, KafkaError, OdradekError
from odradek.core.ids import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC
from odradek.storage.log import Log
from odradek.storage.recovery.log_check import DataDirectory
from support.cleaning import marker, put

T0 = 1_790_000_000_000
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.cleaner.backoff.ms": "20",
    "log.segment.delete.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
}
SMALL = {"internal.segment.bytes": "3000", "retention.ms": "-1"}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
OBSERVED = {**SETTINGS, "log.cleaner.enable": "false"}  # a cleaning would remove records meanwhile
TOPICS = {
    "plain": SMALL,
    "single": {"retention.ms": "-1"},
    "money": SMALL,
    "table": COMPACTED,
    "trimmed": SMALL,
}
LATER = "later"
"""A topic that the older copies do not have."""

Row = tuple[int, bytes | None, bytes | None]
"""Offset, key and value of a record."""


@dataclass
class State:
    """What a broker has. ``records``: visible records by partition and isolation; ``lines``: its log from WARNING on.

    ``unreadable``: what a reader is refused, as offsets from the first to before the last, and the error. ``offline``:
    partitions that no one can read, and why. ``stable``: the last stable offsets. ``refusal``: the error of the start.
    """

    records: dict[tuple[str, bool], set[Row]] = field(default_factory=dict)
    commits: dict[str, dict[tuple[str, str, int], int]] = field(default_factory=dict)
    transactional_ids: dict[str, set[str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    unreadable: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    offline: dict[str, str] = field(default_factory=dict)
    stable: dict[str, int] = field(default_factory=dict)
    refusal: str = ""


class LinesOfBroker(logging.Handler):
    """Collects the broker's lines from WARNING on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


async def started(path: Path, settings: dict[str, str] = SETTINGS) -> BrokerServer:
    broker = BrokerServer(BrokerConfig(settings), path, ("127.0.0.1", 0))
    await broker.start()
    return broker


def _log(broker: BrokerServer, topic: str, index: int = 0) -> Log:
    found = broker.partition(topic, index)
    assert isinstance(found, Partition)
    return found.log


def _produce(broker: BrokerServer, part: int) -> None:
    """Appends records of each kind to the logs; ``part`` numbers the calls."""
    for topic in ("plain", "table", "single", "trimmed", *((LATER,) if part else ())):
        for number in range(part * 40, part * 40 + (40 if topic != "single" else 5)):
            put(_log(broker, topic), (b"k%d" % (number % 7), b"%d" % number * 30), now_ms=T0 + number)
    money = _log(broker, "money")
    for number in range(part * 12, part * 12 + 12):
        for sequence in (0, 1):
            put(money, (b"k", b"m%d" % number * 30), now_ms=T0, producer_id=500 + number, producer_epoch=0,
                base_sequence=sequence, transactional=True)  # fmt: skip
        marker(money, 500 + number, COMMIT if number % 3 else ABORT, now_ms=T0)
    for number in range(part * 60, part * 60 + 60):
        group = f"group-{number % 9}"
        index = broker.groups.partition_of(group)
        value = offset_value(OffsetCommitValue(number, -1, "", T0))
        put(_log(broker, OFFSETS_TOPIC, index), (offset_key(group, "plain", 0), value), now_ms=T0)


def _transact(bootstrap: str, part: int) -> None:
    for number in range(4):
        with odradek.Producer(bootstrap_servers=bootstrap, transactional_id=f"id-{part}-{number}") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("money", b"from a client", partition=0)
            if number % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


async def _fill(broker: BrokerServer, part: int) -> None:
    if not part:
        for name, configs in TOPICS.items():
            broker.create_topic(name, partition_count=1, configs=configs)
        for topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC):
            broker.create_topic(topic, partition_count=2, configs=COMPACTED)
    else:
        broker.create_topic(LATER, partition_count=1, configs=SMALL)
    await asyncio.to_thread(_transact, f"127.0.0.1:{broker.address[1]}", part)
    _produce(broker, part)
    trimmed = _log(broker, "trimmed")
    trimmed.removals.delete_before(trimmed.log_end_offset - 30)
    table = _log(broker, "table")
    before = table.removals.cleaned_offset
    for _ in range(200):
        broker.log_cleaner.wake()
        await asyncio.sleep(0.02)
        if table.removals.cleaned_offset != before and table.size < 20_000:
            break
    for partition in broker.partitions.values():
        partition.log.flush()
    broker.directory.upkeep.checkpoint_recovery_points()
    broker.directory.upkeep.checkpoint_log_starts()


@dataclass(frozen=True)
class Golden:
    """Copies of one data directory: after kill -9, after a clean stop, and before its later records were written."""

    clean: Path
    killed: Path
    older: Path


def _copy_if_there(source: str, target: str) -> None:
    """Copies a file of a running broker, which may rename its temporary file, or remove a deleted one, meanwhile."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        if not source.endswith((".tmp", ".deleted")):
            raise


async def _build(path: Path) -> None:
    broker = await started(path / "live")
    await _fill(broker, 0)
    await broker.stop()
    shutil.copytree(path / "live", path / "older")
    broker = await started(path / "live")
    await _fill(broker, 1)
    _produce(broker, 2)  # not synced
    await asyncio.sleep(0.1)
    shutil.copytree(path / "live", path / "killed", copy_function=_copy_if_there)
    await broker.stop()
    shutil.copytree(path / "live", path / "clean")


def build(path: Path) -> Golden:
    """Makes the directories below ``path``."""
    asyncio.run(_build(path))
    return Golden(path / "clean", path / "killed", path / "older")


# --- damages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """A damage of one file of a data directory, or of files that belong together.

    ``older`` kinds put back an earlier copy: of the file, of all files of its segment, of its whole directory, or of
    the metadata log together with its mark.
    """

    kind: str
    file: str
    region: float = 0.0
    is_unsynced: bool = False
    """Whether the file is of the last segment after a kill, which no other file knows."""

    def in_state(self, directory: Path, *, is_killed: bool) -> Damage:
        """Returns the damage with what is known about its file."""
        last = max((path.stem for path in (directory / self.partition).glob("*.log")), default="")
        return replace(self, is_unsynced=is_killed and Path(self.file).stem == last)

    @property
    def partition(self) -> str:
        """The damaged partition, "" for a file of the broker."""
        return self.file.split("/")[0] if "/" in self.file else ""

    def apply(self, directory: Path, older: Path) -> bool:
        """Makes the damage. Returns whether something has changed."""
        match self.kind:
            case "older segment":
                stem = self.file.split(".")[0]
                return self._put_back(directory, older, lambda name: name.split(".")[0] == stem)
            case "older directory" if self.partition:
                return self._put_back(directory, older, lambda name: name.startswith(f"{self.partition}/"))
            case "older directory":
                with_mark = (f"{METADATA_TOPIC}-0/", MARK)
                return self._put_back(directory, older, lambda name: name.startswith(with_mark))
        target = directory / self.file
        data = target.read_bytes()
        changed = self._changed(data, older)
        if changed == data:
            return False
        if changed is None:
            target.unlink()
        else:
            target.write_bytes(changed)
        return True

    def _changed(self, data: bytes, older: Path) -> bytes | None:
        at = min(int(len(data) * self.region), max(len(data) - 1, 0))
        match self.kind:
            case "removed":
                return None
            case "emptied":
                return b""
            case "halved":
                return data[: len(data) // 2]
            case "last byte":
                return data[:-1]
            case "zeroed page":
                start = at // 4096 * 4096
                size = len(data[start : start + 4096])
                return data[:start] + bytes(size) + data[start + size :]
            case "older":
                copy = older / self.file
                return copy.read_bytes() if copy.exists() else data
        bit = 1 << int(self.region * 8_000_000) % 8
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if data else data

    def _put_back(self, directory: Path, older: Path, concerns: Callable[[str], bool]) -> bool:
        """Replaces the files that the older copy has; removes the others. Nothing if it has none of them."""
        copies = {name: (older / name).read_bytes() for name in files_of(older) if concerns(name)}
        before = {name: (directory / name).read_bytes() for name in files_of(directory) if concerns(name)}
        if not copies or before == copies:
            return False
        for name in before.keys() - copies.keys():
            (directory / name).unlink()
        for name, data in copies.items():
            (directory / name).write_bytes(data)
        return True


MARK = "metadata-recovery-point"
KINDS = (
    *("removed", "emptied", "halved", "last byte", "zeroed page"),
    *("older", "older segment", "older directory"),
    *("bit", "bit", "bit"),
)


def files_of(directory: Path) -> list[str]:
    """Returns all files that may be damaged, without the lock."""
    names = []
    for entry in os.scandir(directory):
        if entry.is_dir():
            names += [f"{entry.name}/{name}" for name in os.listdir(entry.path)]
        elif entry.name != ".lock":
            names.append(entry.name)
    return sorted(names)


def random_damages(directory: Path, count: int, seed: int) -> list[Damage]:
    """Returns damages: each kind of file equally often, then each kind of damage."""
    choice = random.Random(seed)
    kinds: dict[tuple[str, str], list[str]] = {}
    for name in files_of(directory):
        topic = name.split("/")[0].rpartition("-")[0] if "/" in name else ""
        kinds.setdefault((topic, Path(name).suffix or Path(name).name), []).append(name)
    order = sorted(kinds)
    return [
        Damage(choice.choice(KINDS), choice.choice(kinds[order[number % len(order)]]), choice.random())
        for number in range(count)
    ]


# --- what is there --------------------------------------------------------------------------------------------------


async def _observe(path: Path) -> State:
    state = State()
    lines = LinesOfBroker()
    logger = logging.getLogger("odradek")
    logger.addHandler(lines)
    try:
        broker = await started(path, OBSERVED)
    except OdradekError as error:
        state.refusal = str(error)
        logger.removeHandler(lines)
        state.lines = lines.found
        return state
    try:
        for _ in range(200):
            loads = [c.made_runtime for c in broker.coordinators if c.made_runtime is not None]
            if all(runtime.load_end(index) is None for runtime in loads for index in runtime.partitions()):
                break
            await asyncio.sleep(0.005)
        for (topic, index), partition in broker.partitions.items():
            _observe_partition(state, f"{topic}-{index}", partition)
        for coordinator in broker.coordinators:
            runtime = coordinator.made_runtime
            for index in runtime.partitions() if runtime is not None else ():
                assert runtime is not None
                shard = runtime.shard(index)
                if shard is None:
                    continue
                if coordinator.topic == OFFSETS_TOPIC:
                    found = {tuple(key): value.offset for key, value in shard.durable_state().offsets.items()}
                    state.commits[f"{coordinator.topic}-{index}"] = found
                else:
                    state.transactional_ids[f"{coordinator.topic}-{index}"] = set(shard.transactions)
    finally:
        await broker.stop()
        logger.removeHandler(lines)
    state.lines = lines.found
    return state


def observe(path: Path) -> State:
    """Starts a broker on a data directory, reads everything, and stops it."""
    return asyncio.run(_observe(path))


def accept(path: Path, partitions: list[str]) -> None:
    """Accepts the losses of partitions, as ``odradek log accept`` does."""
    directory = DataDirectory(path)
    try:
        for partition in partitions:
            directory.accept(partition)
    finally:
        directory.close()


def _observe_partition(state: State, name: str, partition: Partition) -> None:
    if partition.failure:
        state.offline[name] = partition.failure
        return
    state.stable[name] = partition.log.last_stable_offset
    for committed in (False, True):
        found = state.records[name, committed] = set()
        for refused in read_as_consumer(partition.log, committed, found):
            state.unreadable.setdefault(name, []).append(refused)


def read_as_consumer(log: Log, committed: bool, found: set[Row]) -> Iterator[tuple[int, int, str]]:
    """Reads a log like a consumer. Yields what it is refused, and goes on behind a batch with a wrong checksum."""
    offset = log.log_start_offset
    limit = log.last_stable_offset if committed else log.high_watermark
    while offset < limit:
        before = offset
        try:
            records = log.read(offset, 1 << 20, max_offset=limit)
            aborted = AbortedFilter(log.segment_list.aborted_for(offset, records) if committed else ())
            data = records.bytes()
            for position, header in scan(data):
                part = data[position : position + header.size_in_bytes]
                if header.last_offset < offset:
                    raise CorruptRecord(f"offset {header.base_offset} after {offset}")
                first, offset = offset, header.last_offset + 1
                if not crc_is_valid(part, 0, header):
                    yield first, offset, f"the CRC of the batch at {header.base_offset}"
                elif not aborted.hides(part, header) and not header.is_control:
                    rows = iter_records(part)
                    found |= {(row.offset, _plain(row.key), _plain(row.value)) for row in rows if row.offset >= first}
            if offset == before:
                raise CorruptRecord(f"nothing at {offset}")
        except (KafkaError, CorruptRecord) as error:
            yield offset, limit, str(error)
            return


class AbortedFilter:
    """The filter of a reader with read_committed: a transaction is aborted from its first offset to its marker."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=lambda one: one.first_offset, reverse=True)
        self._aborted: set[int] = set()

    def hides(self, batch: bytes, header: BatchHeader) -> bool:
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._aborted.add(self._coming.pop().producer_id)
        if header.is_control:
            control = read_control(batch, 0, header)
            if control is not None and control.kind == ABORT:
                self._aborted.discard(header.producer_id)
        return header.is_transactional and header.producer_id in self._aborted


def _plain(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
