"""The checks of transactions: the notes of the producers, the records of the readers and the logs must agree.

* ``Ledger`` has the notes of the producers (support/transaction_worker).
* ``LogAudit`` reads every batch of a partition and decides itself which transactions are committed.
* ``Reader`` reads a partition with read_committed while transactions are open.
* ``check_marker`` and ``check_answered`` compare them while transactions are open.
* ``check`` compares them when no transaction is open.

While transactions are open, a reader may see less than all of a committed transaction. The coordinator writes a marker
to each partition of a transaction, in any order. So for a short time the offsets of a transaction may be visible while
its records are not, or the reverse. That is no fault, here or in Kafka.

Three things always hold:

* An offset of a transaction is visible only after its marker is in ``__consumer_offsets``.
* After the reply to EndTxn all partitions of the transaction have their markers, and the offsets are visible.
* A record whose marker is in the log is visible, unless an open transaction of another producer starts before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from odradek.batches.control import COMMIT, read_control
from odradek.batches.header import scan
from odradek.batches.rows import batch_rows, iter_records
from odradek.codecs.offsets_topic import OffsetCommitRecord, decode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire.api_keys import FETCH, LIST_OFFSETS, OFFSET_FETCH
from support.brokers import Wire
from support.transaction_worker import INPUT, PARTITIONS, TOPIC

Producer = tuple[int, int]
"""Producer id and epoch."""
MAX_EPOCH = 32_767


@dataclass(slots=True)
class Planned:
    """``counts``: the records in each partition. ``stage``: the last note about the transaction."""

    counts: dict[int, int]
    offset: int | None
    stage: str = "plan"


class Ledger:
    """The transactions of each producer by number."""

    def __init__(self) -> None:
        self.planned: dict[str, dict[int, Planned]] = {}

    def note(self, name: str, line: dict[str, Any]) -> None:
        known = self.planned.setdefault(name, {})
        if "plan" in line:
            counts = {int(partition): count for partition, count in line["counts"].items()}
            known[line["plan"]] = Planned(counts, line["offset"])
            return
        ((stage, number),) = line.items()
        known[number].stage = stage

    def count(self, stage: str) -> int:
        return sum(one.stage == stage for known in self.planned.values() for one in known.values())


def fetched(wire: Wire, topic: str, partition: int, offset: int, *, committed: bool) -> Any:
    """Fetches from one partition. Returns its row of the reply."""
    part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    part |= {"log_start_offset": -1, "last_fetched_epoch": -1}
    message = {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": int(committed),
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": topic, "partitions": [part]}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip
    (row,) = wire.call(FETCH, 11, message).responses[0].partitions
    assert row.error_code == 0, row
    return row


def end_offset(wire: Wire, topic: str, partition: int, *, committed: bool) -> int:
    part = {"partition_index": partition, "timestamp": -1}
    message = {"replica_id": -1, "isolation_level": int(committed)}
    row = wire.call(LIST_OFFSETS, 2, message | {"topics": [{"name": topic, "partitions": [part]}]})
    return int(row.topics[0].partitions[0].offset)


class LogAudit:
    """All batches of a partition in order. ``values``: the records of committed transactions by offset.

    A committed offset has the value ``group:partition:offset``.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self.where = (topic, partition)
        self.position = 0
        self.values: list[tuple[int, str]] = []
        self.ends: dict[Producer, bool] = {}
        """Whether the marker with this producer id and epoch commits."""
        self._open: dict[int, tuple[int, list[tuple[int, str]]]] = {}
        self._epochs: dict[int, int] = {}
        self._sequences: dict[Producer, int] = {}

    def read(self, wire: Wire) -> None:
        """Reads to the end of the log, and checks that no transaction is open there."""
        self.read_on(wire)
        self.end()

    def read_on(self, wire: Wire) -> None:
        """Reads to the end of the log."""
        end = end_offset(wire, *self.where, committed=False)
        while self.position < end:
            self.take(fetched(wire, *self.where, self.position, committed=False).records)

    def take(self, data: bytes) -> None:
        """Reads the next batches."""
        for at, header in scan(data):
            if header.is_control:
                self._marker(data, at, header)
            elif header.is_transactional:
                self._batch(data, at, header)
            self.position = header.last_offset + 1

    def end(self) -> None:
        assert not self._open, f"{self.where}: open transactions of producers {list(self._open)}"

    def _batch(self, data: bytes, at: int, header: Any) -> None:
        producer = header.producer_id, header.producer_epoch
        what = f"{self.where} at {header.base_offset}: producer {producer}"
        assert header.producer_epoch >= self._epochs.get(header.producer_id, -1), f"{what} has an old epoch"
        epoch, values = self._open.setdefault(header.producer_id, (header.producer_epoch, []))
        assert epoch == header.producer_epoch, f"{what} begins a transaction before the marker of epoch {epoch}"
        if self.where[0] == TOPIC:  # each batch of a coordinator has sequence 0
            expected = self._sequences.get(producer, 0)
            assert header.base_sequence == expected, f"{what} has sequence {header.base_sequence}, not {expected}"
            self._sequences[producer] = header.last_sequence + 1
            values += [(row.offset, (row.value or b"").decode()) for row in batch_rows(data, at, header)]
        elif self.where[0] == OFFSETS_TOPIC:
            values += [(row.offset, _committed_offset(row)) for row in batch_rows(data, at, header)]
        self._epochs[header.producer_id] = header.producer_epoch

    def _marker(self, data: bytes, at: int, header: Any) -> None:
        """Checks a marker. With transaction.version 2, its epoch is one more than the epoch of the transaction, or the
        largest epoch. Without an open transaction, a marker must not have an older epoch than the previous marker."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        what = f"{self.where} at {header.base_offset}: the marker of producer {producer_id} with epoch {epoch}"
        control = read_control(data, at, header)
        assert control is not None
        commit = control.kind == COMMIT
        begun, values = self._open.pop(producer_id, (None, []))
        if begun is None:
            assert epoch >= self._epochs.get(producer_id, -1), f"{what} is older than the previous marker"
        else:
            assert epoch == min(begun + 1, MAX_EPOCH), f"{what} ends the transaction of epoch {begun}"
        assert self.ends.setdefault((producer_id, epoch), commit) == commit, f"{what} contradicts an earlier one"
        self._epochs[producer_id] = epoch
        if commit:
            self.values = sorted(self.values + values) if values else self.values


def _committed_offset(row: Any) -> str:
    record = decode(row.key, row.value)
    assert isinstance(record, OffsetCommitRecord), record
    assert record.value is not None, record
    return f"{record.key.group}:{record.key.partition}:{record.value.offset}"


@dataclass
class Reader:
    """A read_committed reader of one partition. It continues while transactions are open."""

    partition: int
    position: int = 0
    values: list[tuple[int, str]] = field(default_factory=list)

    def read(self, wire: Wire) -> bool:
        """Fetches once. Returns whether the position has moved."""
        row = fetched(wire, TOPIC, self.partition, self.position, committed=True)
        return self.take(row.records or b"", row.aborted_transactions or ())

    def take(self, records: bytes, aborted_transactions: Iterable[Any]) -> bool:
        """Reads the next batches, without the records of these transactions."""
        aborted = sorted((each.first_offset, each.producer_id) for each in aborted_transactions)
        inside: set[int] = set()
        before = self.position
        for record in iter_records(records):
            while aborted and aborted[0][0] <= record.offset:
                inside.add(aborted.pop(0)[1])
            if record.is_control:
                inside.discard(record.producer_id)
            elif record.producer_id not in inside and record.offset >= self.position:
                self.values.append((record.offset, (record.value or b"").decode()))
            self.position = max(self.position, record.offset + 1)
        return self.position > before


def committed_offsets(wire: Wire, group: str, *, stable: bool) -> dict[int, int] | None:
    """Returns the committed offsets of a group, -1 for none; None after an error, such as while the coordinator loads.

    ``stable``: also None if offsets of an open transaction are pending.
    """
    asked = [{"name": INPUT, "partition_indexes": list(range(PARTITIONS))}]
    row = {"group_id": group, "topics": asked, "member_id": None, "member_epoch": -1}
    (found,) = wire.call(OFFSET_FETCH, 9, {"groups": [row], "require_stable": stable}).groups
    if found.error_code != 0:
        return None
    rows = [row for topic in found.topics for row in topic.partitions]
    if any(row.error_code != 0 for row in rows):
        return None
    return {row.partition_index: row.committed_offset for row in rows}


def check_marker(name: str, offsets: dict[int, int], audit: LogAudit) -> None:
    """Compares committed offsets with the log of ``__consumer_offsets``, which was read after them."""
    marked = {value for _, value in audit.values}
    early = {partition: offset for partition, offset in offsets.items() if offset != -1}
    early = {partition: offset for partition, offset in early.items() if f"{name}:{partition}:{offset}" not in marked}
    assert not early, f"{name}: a reader got the offsets {early} before the marker of their transaction was in the log"


def check_answered(name: str, number: int, planned: Planned, offsets: dict[int, int], audits: list[LogAudit]) -> None:
    """Compares a committed transaction with what was read after the reply to its EndTxn."""
    for audit in audits:
        if audit.where[0] == TOPIC:
            expected = {f"{name}:{number}:{place}" for place in range(planned.counts.get(audit.where[1], 0))}
            missing = sorted(expected - {value for _, value in audit.values})
            assert not missing, f"{audit.where}: after the answer to EndTxn the log has no marker after {missing}"
    if planned.offset is not None:
        assert min(offsets.values()) >= planned.offset, (
            f"{name}: after the answer to EndTxn of {number} a reader got the offsets {offsets}"
        )


def check(
    ledger: Ledger, audits: list[LogAudit], readers: list[Reader], offsets: dict[str, dict[int, int]]
) -> dict[str, set[int]]:
    """Compares everything. No transaction is open. Returns the committed transactions of each producer."""
    data = [audit for audit in audits if audit.where[0] == TOPIC]
    for audit, reader in zip(data, readers, strict=True):
        extra = sorted(set(reader.values) - set(audit.values))
        missing = sorted(set(audit.values) - set(reader.values))
        assert not extra, f"{audit.where}: a read_committed reader got aborted records: {extra[:5]}"
        assert not missing, f"{audit.where}: a read_committed reader did not get {missing[:5]}"
        assert reader.values == audit.values, f"{audit.where}: a reader got records twice or in another order"
    _check_markers(audits)
    visible = _visible(data)
    committed: dict[str, set[int]] = {}
    for name, planned in ledger.planned.items():
        committed[name] = _check_producer(name, planned, visible.pop(name, {}))
        _check_offsets(name, planned, committed[name], offsets[name])
    assert not visible, f"records of unknown producers: {list(visible)}"
    return committed


def _check_markers(audits: list[LogAudit]) -> None:
    """All partitions of a transaction have the same end."""
    ends: dict[Producer, bool] = {}
    for audit in audits:
        for producer, commit in audit.ends.items():
            known = ends.setdefault(producer, commit)
            assert known == commit, f"torn: {audit.where} has another end of the transaction of {producer}"


def _visible(audits: list[LogAudit]) -> dict[str, dict[int, dict[int, list[int]]]]:
    """The places of the committed records, by producer, transaction and partition."""
    found: dict[str, dict[int, dict[int, list[int]]]] = {}
    for audit in audits:
        for _, value in audit.values:
            name, number, place = value.split(":")
            by_partition = found.setdefault(name, {}).setdefault(int(number), {})
            by_partition.setdefault(audit.where[1], []).append(int(place))
    return found


def _check_producer(name: str, planned: dict[int, Planned], visible: dict[int, dict[int, list[int]]]) -> set[int]:
    unknown = sorted(set(visible) - set(planned))
    assert not unknown, f"{name}: {unknown} were never begun"
    for number, one in planned.items():
        found = visible.get(number, {})
        if not found:
            assert one.stage != "committed", f"{name}: the committed transaction {number} is lost"
            continue
        assert one.stage in ("committing", "committed"), f"{name}: {number} is visible, but its stage is {one.stage}"
        expected = {partition: list(range(count)) for partition, count in one.counts.items()}
        assert found == expected, f"{name}: {number} is torn, or has lost or duplicated records: {found} of {expected}"
    return set(visible)


def _check_offsets(name: str, planned: dict[int, Planned], committed: set[int], stored: dict[int, int]) -> None:
    newest = max((number for number in committed if planned[number].offset is not None), default=-1)
    assert set(stored.values()) == {newest}, f"{name}: the group has {stored}, but {newest} is the last commit"
