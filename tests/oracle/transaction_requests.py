"""Functions that send the requests about transactions: a transactional producer, readers of partitions, the transaction
log.

The checksum of a batch depends on its producer id, which differs between runs. So the trace has the decoded fields of
batches (``read``).

Suites of transactions are ``SERIAL``. With requests of several connections at once, Apache Kafka's reply to a request
outside of a transaction varies between INVALID_TXN_STATE and TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from recording import Raw, Run, Varying
from scenarios_log import START_MS, batch, fetch_message

from odradek.batches.header import scan
from odradek.batches.rows import Row, batch_rows, iter_records
from odradek.codecs.transaction_state import TRANSACTION_LOG, Transaction, decode
from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_group
from odradek.wire.api_keys import FETCH, FIND_COORDINATOR, LIST_OFFSETS, PRODUCE

INIT, ADD, ADD_OFFSETS, END, MARKERS, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 27, 28
UPDATE_FEATURES, DESCRIBE_PRODUCERS, DESCRIBE, LIST = 57, 61, 65, 66
TRANSACTIONS_TOPIC = "__transaction_state"
CONFIG = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.roll.hours": "876000",  # markers are years later than the records of most scenarios
    "log.retention.ms": "-1",
}
COMPLETE = ("Empty", "CompleteCommit", "CompleteAbort")
LATE_COORDINATOR = 1000
"""A coordinator epoch that no coordinator reaches in these scenarios."""
SEGMENT_MS = "600000"
"""The ``segment.ms`` of scenarios with several segments. It is longer than any run. Markers have the present time, so a
slow run with a shorter ``segment.ms`` would end a segment between two markers."""
GAP_MS = 1_200_000
"""The time between two records that ends a segment with `SEGMENT_MS`. Twice this time is less than
message.timestamp.after.max.ms."""
_FIRST_ID = 1000
"""The least producer id in a scenario. Smaller ids could equal other numbers in the trace by chance."""

Where = tuple[str, int]


def by_topic(partitions: Sequence[Where], name: str = "partitions") -> list[dict[str, Any]]:
    """Rows of a request: each topic with its partitions."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [{"name": topic, name: indexes} for topic, indexes in topics.items()]


class Producer:
    """A transactional producer. ``id`` and ``epoch`` are those of its last reply."""

    def __init__(self, run: Run, label: str = "a", *, client: str = "c", timeout_ms: int = 60_000) -> None:
        self.run, self.label, self.client, self.timeout_ms = run, label, client, timeout_ms
        self.name = run.fresh("tx", label)
        self.id = self.epoch = -1
        self.stays_prepared = False
        self._sequences: dict[tuple[str, int, int, int], int] = {}
        self.wait_until_served()
        self._partition = partition_for_group(self.name, 50)
        self._begin = log_end(run, TRANSACTIONS_TOPIC, self._partition)
        raise_producer_ids(run)

    def wait_until_served(self) -> None:
        """Waits until the coordinator of the transactional id is available."""
        asked = {"key_type": 1, "coordinator_keys": [self.name]}
        self.run.until(FIND_COORDINATOR, 4, asked, lambda reply: reply.coordinators[0].error_code == 0)
        stranger = {"transactional_id": self.name, "producer_id": -2, "producer_epoch": 0, "committed": False}
        self.run.until(END, 4, stranger, lambda r: r.error_code is ErrorCode.invalid_producer_id_mapping)

    def called(self, api_key: int, version: int, message: dict[str, Any], *unordered: str) -> Any:
        return self.run.call(api_key, version, message, client=self.client, unordered=unordered)

    def become(self, producer_id: int, epoch: int) -> None:
        """Keeps this id and epoch. A new id gets a name in the trace."""
        if producer_id != self.id:
            name_producer(self.run, producer_id, self.label)
        self.id, self.epoch = producer_id, epoch

    def init(self, *, version: int = 5, **said: Any) -> Any:
        """InitProducerId. ``said``: fields of the request."""
        message = {"transactional_id": self.name, "transaction_timeout": self.timeout_ms}
        reply = self.called(INIT, version, message | {"producer_id": -1, "producer_epoch": -1} | said)
        if reply is not None and reply.error_code is ErrorCode.none:
            self.become(reply.producer_id, reply.producer_epoch)
        return reply

    def recover(self, epoch: int | None = None, **said: Any) -> Any:
        """InitProducerId with the present id and epoch."""
        return self.init(**({"producer_id": self.id, "producer_epoch": self.epoch if epoch is None else epoch} | said))

    def identity(self, said: dict[str, Any]) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | said

    def add(self, *partitions: Where, version: int = 3, **said: Any) -> Any:
        """AddPartitionsToTxn. From version 4 on a request may be for several transactions; this one is for one."""
        row = self.added(*partitions, **said)
        if version >= 4:
            return add_batch(self.run, row, version=version)
        row.pop("verify_only")
        message = {f"v3_and_below_{field}": value for field, value in row.items()}
        return self.called(ADD, version, message, "results_by_partition", "results_by_topic_v3_and_below")

    def added(self, *partitions: Where, **said: Any) -> dict[str, Any]:
        """The row of this transaction for ``add_batch``."""
        return self.identity({"verify_only": False, "topics": by_topic(partitions)} | said)

    def add_offsets(self, group: str, *, version: int = 4, **said: Any) -> Any:
        return self.called(ADD_OFFSETS, version, self.identity({"group_id": group} | said))

    def end(self, commit: bool = True, *, version: int = 5, **said: Any) -> Any:
        reply = self.called(END, version, self.identity({"committed": commit} | said))
        if version >= 5 and reply.error_code is ErrorCode.none and reply.producer_epoch >= 0:
            self.become(reply.producer_id, reply.producer_epoch)
        return reply

    def end_and_wait(self, commit: bool = True, **said: Any) -> None:
        """Ends the transaction, and waits until it is complete if the request was not refused."""
        if self.end(commit, **said).error_code is ErrorCode.none:
            self.wait_for(*COMPLETE)

    def commit(self, **said: Any) -> None:
        """Commits, and waits until the transaction is complete."""
        self.end(True, **said)
        self.wait_for(*COMPLETE)

    def abort(self, **said: Any) -> None:
        """Aborts, and waits until the transaction is complete."""
        self.end(False, **said)
        self.wait_for(*COMPLETE)

    def send(self, topic: str, count: int = 1, *, partition: int = 0, version: int = 12, **said: Any) -> Any:
        """Produce with one batch. ``said``: options of the batch; ``name`` is the transactional id of the request."""
        name = said.pop("name", self.name)
        said = {"producer_id": self.id, "producer_epoch": self.epoch, "transactional": True} | said
        key = (topic, partition, said["producer_id"], said["producer_epoch"])
        sequence = said.pop("base_sequence", None)
        if sequence is None:
            sequence = self._sequences.get(key, 0)
        data = Varying(batch(count, base_sequence=sequence, **said))
        where = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
        parts = [{"index": partition, "records": data}]
        message = {"transactional_id": name, "acks": -1, "timeout": 10_000}
        reply = self.called(PRODUCE, version, message | {"topic_data": [where | {"partition_data": parts}]})
        if reply is not None and reply.responses[0].partition_responses[0].error_code is ErrorCode.none:
            self._sequences[key] = sequence + count
        return reply

    def commit_offsets(self, group: str, *rows: tuple[Any, ...], version: int = 5, **said: Any) -> Any:
        """TxnOffsetCommit. ``rows``: (topic, partition, offset[, metadata[, leader epoch]])."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, *row in rows:
            metadata, leader_epoch = (*row[2:], *("", -1)[len(row) - 2 :])
            part = {"partition_index": row[0], "committed_offset": row[1], "committed_metadata": metadata,
                    "committed_leader_epoch": leader_epoch}  # fmt: skip
            topics.setdefault(topic, []).append(part)
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        shown = [{"name": name, "partitions": parts} for name, parts in topics.items()]
        return self.called(
            TXN_OFFSET_COMMIT, version, self.identity({"group_id": group, "topics": shown} | member | said)
        )

    # --- its state ----------------------------------------------------------------------------------------------

    def describe(self) -> Any:
        return self.run.call(DESCRIBE, 0, {"transactional_ids": [self.name]}, unordered=("partitions", "topics"))

    def state(self) -> str:
        """Returns the state from ListTransactions, or "" for an unknown id.

        The schemas cannot decode a DescribeTransactions reply for a transaction that has not begun.
        """
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        reply = self.run.quietly(LIST, 2, asked | {"transactional_id_pattern": self.name})
        assert reply.error_code is ErrorCode.none, reply
        found = [row.transaction_state for row in reply.transaction_states if row.transactional_id == self.name]
        return str(found[0]) if found else ""

    def wait_for(self, *states: str, within_s: float = 15) -> None:
        """Waits until the transaction has one of these states."""
        deadline = time.monotonic() + within_s
        while (found := self.state()) not in states:
            assert time.monotonic() < deadline, f"{found}, not {states} within {within_s} s"
            time.sleep(0.005)

    def log(self) -> None:
        """Adds to the trace the records of the transactional id that were written since the previous call."""
        rows = [row for row in self._new_rows() if row.key == b"\0\0" + _text(self.name)]
        self.run.note("records", {"of": self.name}, [_record_shown(row) for row in rows])

    def _new_rows(self) -> list[Row]:
        end, rows = log_end(self.run, TRANSACTIONS_TOPIC, self._partition), []
        while self._begin < end:
            asked = fetch_message(TRANSACTIONS_TOPIC, self._begin, self._partition, max_wait=500, min_bytes=1)
            reply = self.run.quietly(FETCH, 12, asked)
            for row in iter_records(bytes(reply.responses[0].partitions[0].records)):
                if row.offset >= self._begin:
                    self._begin = row.offset + 1
                    rows.append(row)
        return rows


def _text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def _record_shown(row: Row) -> Any:
    """The fields of a record of the transaction log. The partitions are sorted: Kafka writes them in a hash's order."""
    if row.value is None:
        return None
    found = decode(row.key, row.value)
    assert isinstance(found, tuple), found
    state = found[1]
    assert isinstance(state, Transaction)
    shown = dict(state._asdict())
    for name in ("previous_producer_id", "next_producer_id"):
        shown[name] = getattr(state, name)
    topics = sorted({topic for topic, _ in state.partitions})
    shown["state"] = state.state.title
    shown["partitions"] = [
        {"topic": topic, "partitions": sorted(index for name, index in state.partitions if name == topic)}
        for topic in topics
    ]
    return {"version": int.from_bytes(row.value[:2], "big")} | shown


def transaction_key(name: str) -> bytes:
    return TRANSACTION_LOG.number.to_bytes(2, "big") + _text(name)


def name_producer(run: Run, producer_id: int, label: str) -> None:
    """Gives a producer id a name in the trace, where it is a number or part of bytes."""
    known = run.symbol_of_number(producer_id)
    if known is None:
        symbol = f"producer {label}"
        while run.has_number_symbol(symbol):
            symbol += "'"
        run.name_number(producer_id, symbol)
        run.name_bytes(producer_id.to_bytes(8, "big"), symbol)


_PLAIN = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}


def wait_for_producer_ids(run: Run) -> None:
    """Waits until the broker has producer ids. Until then it refuses every request that needs a new id."""
    run.until(INIT, 4, _PLAIN, lambda reply: reply.producer_id >= 0)


def raise_producer_ids(run: Run) -> None:
    """Requests producer ids until they are at least `_FIRST_ID`. The requests are not in the trace."""
    wait_for_producer_ids(run)
    while run.quietly(INIT, 4, _PLAIN).producer_id < _FIRST_ID:
        pass


# --- partitions -------------------------------------------------------------------------------------------------


def log_end(run: Run, topic: str, partition: int) -> int:
    part = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
    asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}]}
    reply = run.until(LIST_OFFSETS, 6, asked, lambda found: found.topics[0].partitions[0].error_code == 0)
    end: int = reply.topics[0].partitions[0].offset
    return end


def read(run: Run, topic: Any, *, offset: int = 0, partition: int = 0, level: int = 1, **more: Any) -> None:
    """Fetches a partition up to its end, and adds the fields of each reply and of each batch to the trace.

    Without ``epochs``, the epochs of leaders and coordinators are left out, because a restart may raise them.
    """
    version, epochs = more.pop("version", 12), more.pop("epochs", True)
    asked = {"topic": topic, "partition": partition, "offset": offset, "isolation_level": level, "version": version}
    replies = []
    while True:
        reply = run.quietly(FETCH, version, fetch_message(topic, offset, partition, isolation_level=level, **more))
        (row,) = reply.responses[0].partitions
        names = ("error_code", "high_watermark", "last_stable_offset", "log_start_offset", "aborted_transactions")
        shown = {name: getattr(row, name, None) for name in names}
        data = bytes(row.records or b"")
        batches = list(scan(data))
        replies.append(shown | {"batches": [_batch_shown(data, *each, epochs) for each in batches]})
        if not batches:
            break
        offset = batches[-1][1].last_offset + 1
    run.note("read", asked | more, replies)


def _batch_shown(data: bytes, pos: int, header: Any, epochs: bool) -> dict[str, Any]:
    """The fields of a batch without its checksum. A marker's key and value are shown byte by byte."""
    names = ("base_offset", "length", "leader_epoch", "attributes", "last_offset_delta", "base_timestamp",
             "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count")  # fmt: skip
    shown = {name: getattr(header, name) for name in names if epochs or name != "leader_epoch"}
    rows = list(batch_rows(data, pos, header))
    if header.is_control:
        size = 6 if epochs else 2  # a marker's version and the coordinator's epoch
        return shown | {"markers": [[Raw(row.key or b""), Raw((row.value or b"")[:size])] for row in rows]}
    return shown | {"offsets": [row.offset for row in rows], "keys": [Raw(row.key or b"") for row in rows]}


def offsets(run: Run, topic: str, *times: int, level: int = 1, partition: int = 0, version: int = 11) -> None:
    """ListOffsets, one request for each time."""
    for time_ms in times:
        part = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": time_ms}
        message = {"replica_id": -1, "isolation_level": level, "timeout": 5000}
        run.call(LIST_OFFSETS, version, message | {"topics": [{"name": topic, "partitions": [part]}]})


def producers(run: Run, *partitions: Where, epochs: bool = True) -> None:
    """DescribeProducers. Without ``epochs``, the coordinator epochs are left out, because a restart may raise them."""
    message = {"topics": by_topic(partitions, "partition_indexes")}
    if epochs:
        run.call(DESCRIBE_PRODUCERS, 0, message, unordered=("active_producers",))
        return
    reply = run.quietly(DESCRIBE_PRODUCERS, 0, message)
    names = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp", "current_txn_start_offset")
    found = [row for topic in reply.topics for part in topic.partitions for row in part.active_producers]
    rows = sorted(found, key=lambda row: run.symbol_of_number(row.producer_id) or "")
    run.note("describe_producers", message, [{name: getattr(row, name) for name in names} for row in rows])


def marker(producer: Producer, commit: bool, *partitions: Where, **said: Any) -> dict[str, Any]:
    """A row of WriteTxnMarkers."""
    row = {"producer_id": producer.id, "producer_epoch": producer.epoch, "transaction_result": commit}
    row |= {"topics": by_topic(partitions, "partition_indexes"), "coordinator_epoch": 0, "transaction_version": 0}
    return row | said


def add_batch(run: Run, *rows: dict[str, Any], version: int = 5) -> Any:
    """AddPartitionsToTxn for several transactions, as brokers send it."""
    unordered = ("results_by_partition", "topic_results", "results_by_transaction")
    return run.call(ADD, version, {"transactions": list(rows)}, unordered=unordered)


def write_markers(run: Run, *rows: dict[str, Any], version: int = 2) -> Any:
    return run.call(MARKERS, version, {"markers": list(rows)}, unordered=("partitions", "topics", "markers"))


def initialised(run: Run, label: str = "a", *, times: int = 1, **said: Any) -> Producer:
    """A producer that has sent InitProducerId ``times`` times, so its epoch is ``times - 1``."""
    producer = Producer(run, label, **said)
    for _ in range(times):
        producer.init()
    return producer


def opened(run: Run, topic: str, label: str = "a", *, old: bool = False, **said: Any) -> Producer:
    """A producer with an open transaction that has one record. If ``old``, it uses the protocol before
    transaction.version 2."""
    producer = initialised(run, label, **said)
    if old:
        producer.add((topic, 0))
    producer.send(topic, version=11 if old else 12)
    return producer


def prepared(
    run: Run, topic: str, label: str = "a", *, commit: bool = True, old: bool = False, **said: Any
) -> Producer:
    """A producer whose transaction stays prepared.

    The partition already has a marker with a later coordinator epoch, so it refuses the coordinator's own marker.
    """
    producer = opened(run, topic, label, old=old, **said)
    write_markers(run, marker(producer, commit, (topic, 0), coordinator_epoch=LATE_COORDINATOR), version=1)
    producer.stays_prepared = True
    producer.end(commit, version=4 if old else 5)
    producer.wait_for("PrepareCommit" if commit else "PrepareAbort")
    return producer


__all__ = ["GAP_MS", "SEGMENT_MS", "START_MS", "Producer", "Transaction"]
