"""The clients of the simulated broker: producers, transactions, commits, readers and administrators."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from sim_broker import BrokerStage, Gone, Session

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.core.effects import SimpleRecord
from odradek.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

TOPICS = ("t0", "t1", "kept")
"""The topics of producers. ``kept`` is never deleted."""
ATTEMPTS = 25
PAUSE_MS = 300
RETRIABLE = frozenset({5, 6, 7, 14, 15, 16, 51, 56, 3, 100})
STORAGE_ERROR = 56
UNKNOWN_TOPIC = frozenset({3, 100})


class SimulatedClient:
    """A client with one session. ``chance`` is its own, so that shrinking a schedule changes no other client."""

    def __init__(self, stage: BrokerStage, name: str, seed: int) -> None:
        self.stage = stage
        self.name = name
        self.chance = random.Random(f"{name} {seed}")
        self.session = Session(stage, name, self.chance)
        self.is_busy = False
        self.made = 0

    async def ask(self, key: int, version: int, message: dict[str, Any]) -> Any:
        reply = await self.session.ask(key, version, message)
        self.stage.counts["replies"] += 1
        return reply

    def note(self, what: str, *values: Any) -> None:
        self.stage.note(self.name, what, *values)

    def topic_id(self, name: str) -> UUID | None:
        """Returns a topic's id, as a client knows it from metadata."""
        node = self.stage.node
        topic = node.broker.catalog.topic(name) if node is not None else None
        return None if topic is None else topic.id

    def new_values(self, count: int) -> list[bytes]:
        self.made += count
        return [b"v:%s:%d" % (self.name.encode(), self.made - count + number) for number in range(count)]

    def run(self, work: Any) -> None:
        """Starts a piece of work, unless the former one has not ended."""
        if self.is_busy:
            work.close()
            return
        self.is_busy = True
        self.stage.spawn(self._until_done(work))

    async def _until_done(self, work: Any) -> None:
        try:
            await work
        finally:
            self.is_busy = False

    async def produce(self, topic_id: UUID, index: int, batch: bytes, transactional_id: str | None = None) -> Any:
        """Returns the row of the reply. Raises Gone."""
        part = {"index": index, "records": batch}
        message = {
            "transactional_id": transactional_id, "acks": -1, "timeout": 3000,
            "topic_data": [{"topic_id": topic_id, "partition_data": [part]}],
        }  # fmt: skip
        reply = await self.ask(PRODUCE, 13, message)
        return reply.responses[0].partition_responses[0]

    async def new_identity(self, transactional_id: str | None, known: tuple[int, int] = (-1, -1)) -> tuple[int, int]:
        """Returns a producer id and its epoch. Raises Gone."""
        for _ in range(ATTEMPTS):
            message = {
                "transactional_id": transactional_id, "transaction_timeout": 20_000, "producer_id": known[0],
                "producer_epoch": known[1],
            }  # fmt: skip
            try:
                if transactional_id is not None:
                    await self.find("coordinator", 1, transactional_id)
                reply = await self.ask(INIT_PRODUCER_ID, 4, message)
            except Gone:
                await self.stage.sleep(PAUSE_MS)
                continue
            if not reply.error_code:
                return reply.producer_id, reply.producer_epoch
            await self.stage.sleep(PAUSE_MS)
        raise Gone

    async def find(self, _: str, kind: int, key: str) -> None:
        await self.ask(FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": (key,)})


class SimulatedProducer(SimulatedClient):
    """A producer. With ``is_idempotent`` it repeats each batch until it knows its fate; without, it never does."""

    def __init__(self, stage: BrokerStage, name: str, seed: int, *, is_idempotent: bool) -> None:
        super().__init__(stage, name, seed)
        self.is_idempotent = is_idempotent
        self._identity = (-1, -1)
        self._sequences: dict[tuple[UUID, int], int] = {}
        self._began_ms = 0

    async def send(self) -> None:
        topic_id = self.topic_id(self.chance.choice(TOPICS))
        if topic_id is None:
            return
        place = topic_id, self.chance.randrange(2)
        values = self.new_values(self.chance.randrange(1, 5))
        records = [SimpleRecord(None, value) for value in values]
        now_ms = self.stage.world.clock()
        if not self.is_idempotent:
            row = await self.produce(*place, encode_batch(records, now_ms=now_ms))
            if not row.error_code:
                self.stage.ledger.check_acknowledged(place, row.base_offset, values)
            return
        if self._identity[0] < 0:
            self._identity, self._sequences = await self.new_identity(None), {}
            self._began_ms = now_ms
        sequence = self._sequences.get(place, 0)
        batch = encode_batch(
            records, now_ms=now_ms, producer_id=self._identity[0], producer_epoch=self._identity[1],
            base_sequence=sequence,
        )  # fmt: skip
        self._sequences[place] = sequence + len(values)
        await self._repeat(place, batch, values)

    async def _repeat(self, place: tuple[UUID, int], batch: bytes, values: list[bytes]) -> None:
        for _ in range(ATTEMPTS):
            try:
                row = await self.produce(*place, batch)
            except Gone:
                await self.stage.sleep(PAUSE_MS)
                continue
            if not row.error_code:
                self.note("has {} at {}", values, row.base_offset)
                self.stage.ledger.check_acknowledged(place, row.base_offset, values)
                return
            if row.error_code not in RETRIABLE:
                self._refused(row.error_code, place)
            elif row.error_code not in UNKNOWN_TOPIC:
                await self.stage.sleep(PAUSE_MS)
                continue
            break
        self._identity = (-1, -1)  # the fate of the batch is unknown, so its sequence number cannot be used again

    def _refused(self, code: int, place: tuple[UUID, int]) -> None:
        self.note("is refused with {}", code)
        if self.stage.lost_power_ms < self._began_ms and code != 46:
            raise self.stage.fail(f"{self.name} is refused with {code}, but no record was lost", self.name)


class SimulatedTransactions(SimulatedClient):
    """A transactional producer. Each transaction has records in some partitions, and maybe the offsets of its group.

    ``is_old``: it adds partitions and offsets by requests of their own, as clients without KIP-890 do.
    """

    def __init__(self, stage: BrokerStage, name: str, seed: int, *, is_old: bool) -> None:
        super().__init__(stage, name, seed)
        self._is_old = is_old
        self._identity = (-1, -1)
        self._began_ms = 0
        self._number = 0
        self._sequences: dict[tuple[UUID, int], int] = {}
        self.ended: list[tuple[bool, dict[tuple[UUID, int], list[bytes]]]] = []
        """The transactions whose end was acknowledged: whether they committed, and
        their records."""
        self.unknown: list[dict[tuple[UUID, int], list[bytes]]] = []
        """Transactions whose fate no reply says."""
        self.committed_offsets: list[int] = []
        """Offsets of the group in committed transactions, and -1 in place of each transaction with an unknown fate."""
        self.possible: set[int] = {-1}
        self.aborted = -1
        """The newest offset of an aborted transaction. A power cut that takes the abort leaves the transaction open,
        and the next one has the same epoch: its commit commits this offset too."""

    @property
    def group(self) -> str:
        return f"{self.name}-group"

    async def transact(self) -> None:
        if self._identity[0] < 0:
            self._began_ms = self.stage.world.clock()
            self._identity, self._sequences = await self.new_identity(self.name), {}
        written: dict[tuple[UUID, int], list[bytes]] = {}
        offset = -1
        try:
            for _ in range(self.chance.randrange(1, 4)):
                await self._write(written)
            if self.chance.random() < 0.5:
                self._number += 1
                offset = self._number
                await self._commit_offset(offset)
            is_commit = self.chance.random() < 0.7
            await self._end(is_commit=is_commit)
        except (Gone, _Refused) as error:
            self.note("does not know the end of its transaction: {!r}", error)
            self._identity = (-1, -1)
            self.unknown.append(written)
            if offset >= 0:
                self.possible.add(offset)
            return
        self._note_end(written, offset, is_commit=is_commit)

    def _note_end(self, written: dict[tuple[UUID, int], list[bytes]], offset: int, *, is_commit: bool) -> None:
        self.note("{} {}", "commits" if is_commit else "aborts", written)
        self.ended.append((is_commit, written))
        if offset >= 0 and is_commit:
            self.possible = {offset}
        elif offset >= 0:
            self.aborted = offset
        check_transaction(self.stage, is_commit=is_commit, written=written)

    async def _write(self, written: dict[tuple[UUID, int], list[bytes]]) -> None:
        name = self.chance.choice(TOPICS)
        topic_id = self.topic_id(name)
        if topic_id is None:
            return
        place = topic_id, self.chance.randrange(2)
        if self._is_old:
            topic = {"name": name, "partitions": (place[1],)}
            await self._until_done_or_refused(
                ADD_PARTITIONS_TO_TXN, 3,
                {"v3_and_below_transactional_id": self.name, "v3_and_below_producer_id": self._identity[0],
                 "v3_and_below_producer_epoch": self._identity[1], "v3_and_below_topics": (topic,)},
                lambda reply: reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            )  # fmt: skip
        values = self.new_values(self.chance.randrange(1, 4))
        sequence = self._sequences.get(place, 0)
        batch = encode_batch(
            [SimpleRecord(None, value) for value in values], now_ms=self.stage.world.clock(),
            producer_id=self._identity[0], producer_epoch=self._identity[1], base_sequence=sequence, transactional=True,
        )  # fmt: skip
        written.setdefault(place, []).extend(values)
        for _ in range(ATTEMPTS):
            try:
                row = await self.produce(*place, batch, self.name)
            except Gone:
                await self.stage.sleep(PAUSE_MS)
                continue
            if not row.error_code:
                self._sequences[place] = sequence + len(values)
                if self.stage.lost_power_ms < 0:  # otherwise the coordinator may repeat an epoch, with its sequences
                    self.stage.ledger.check_acknowledged(place, row.base_offset, values)
                return
            self._check_refusal(row.error_code)
            await self.stage.sleep(PAUSE_MS)
        raise _Refused(0)

    def _check_refusal(self, code: int) -> None:
        if code in UNKNOWN_TOPIC or code not in RETRIABLE:
            if code not in UNKNOWN_TOPIC and self.stage.lost_power_ms < 0 and code in {45, 59}:
                raise self.stage.fail(f"{self.name} is refused with {code}, but no record was lost", self.name)
            raise _Refused(code)

    async def _until_done_or_refused(self, key: int, version: int, message: dict[str, Any], code_of: Any) -> Any:
        for _ in range(ATTEMPTS):
            try:
                reply = await self.ask(key, version, message)
            except Gone:
                await self.stage.sleep(PAUSE_MS)
                continue
            code = code_of(reply)
            if not code:
                return reply
            self._check_refusal(code)
            await self.stage.sleep(PAUSE_MS)
        raise _Refused(0)

    async def _commit_offset(self, offset: int) -> None:
        own = {
            "transactional_id": self.name, "group_id": self.group, "producer_id": self._identity[0],
            "producer_epoch": self._identity[1],
        }  # fmt: skip
        await self.find("coordinator", 0, self.group)
        if self._is_old:
            await self._until_done_or_refused(ADD_OFFSETS_TO_TXN, 3, own, lambda reply: reply.error_code)
        part = {
            "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "",
        }  # fmt: skip
        topic = {"name": "kept", "partitions": (part,)}
        await self._until_done_or_refused(
            TXN_OFFSET_COMMIT, 3 if self._is_old else 5,
            own | {"generation_id": -1, "member_id": "", "group_instance_id": None, "topics": (topic,)},
            lambda reply: reply.topics[0].partitions[0].error_code,
        )  # fmt: skip

    async def _end(self, *, is_commit: bool) -> None:
        message = {
            "transactional_id": self.name, "producer_id": self._identity[0], "producer_epoch": self._identity[1],
            "committed": is_commit,
        }  # fmt: skip
        reply = await self._until_done_or_refused(
            END_TXN, 3 if self._is_old else 5, message, lambda reply: reply.error_code
        )
        if not self._is_old:
            self._identity = reply.producer_id, reply.producer_epoch
            self._sequences = {}


class _Refused(Exception):
    """A request of a transaction was refused for good: only a new epoch helps."""


def check_transaction(
    stage: BrokerStage, *, is_commit: bool, written: dict[tuple[UUID, int], list[bytes]], is_final: bool = False
) -> None:
    """Checks a transaction whose end was acknowledged: its markers are in all its partitions, or follow when the disk
    has room again (``is_final``: now).

    After a power cut that has taken records nothing is promised: the coordinator may repeat an epoch."""
    if stage.lost_power_ms >= 0:
        return
    stage.ledger.follow()
    for place, values in written.items():
        copy = stage.ledger.copies.get(place)
        if copy is None or not stage.ledger.is_there(place):
            continue  # the topic was deleted
        fates = copy.fates()
        found = {value: fates[value] for value in values if value in fates}
        if not is_final:
            found = {value: fate for value, fate in found.items() if fate != "open"}
        wanted = "committed" if is_commit else "aborted"
        if any(fate != wanted for fate in found.values()):
            raise stage.fail(f"a {wanted} transaction is {found} in {copy.name}", copy.name)


class SimulatedCommitter(SimulatedClient):
    """A program that commits rising offsets of its own group without members, and reads them again."""

    def __init__(self, stage: BrokerStage, name: str, seed: int) -> None:
        super().__init__(stage, name, seed)
        self._last = 0
        self.possible = {-1}
        self._acknowledged_ms = 0

    async def commit(self) -> None:
        self._last += self.chance.randrange(1, 9)
        offset = self._last
        self.possible.add(offset)
        await self.find("coordinator", 0, self.name)
        part = {
            "partition_index": 1, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "",
        }  # fmt: skip
        message = {
            "group_id": self.name, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": ({"name": "kept", "partitions": (part,)},),
        }  # fmt: skip
        began_ms = self.stage.world.clock()
        reply = await self.ask(OFFSET_COMMIT, 8, message)
        if not reply.topics[0].partitions[0].error_code and self.stage.lost_power_ms < began_ms:
            self.note("has committed {}", offset)
            self.possible = {offset}

    async def read(self) -> None:
        before_ms = self.stage.world.clock()
        found = await read_offset(self, self.name, 1)
        if found is None or before_ms <= self.stage.lost_power_ms:
            return
        check_offset(self.stage, self.name, self.possible, found)
        self.possible = {found}


async def read_offset(client: SimulatedClient, group: str, index: int) -> int | None:
    """Returns the committed offset of a group in ``kept``, -1 without one; None if the broker does not say it."""
    await client.find("coordinator", 0, group)
    reply = await client.ask(
        OFFSET_FETCH, 7,
        {"group_id": group, "topics": ({"name": "kept", "partition_indexes": (index,)},),
         "require_stable": client.stage.lost_power_ms < 0},
    )  # fmt: skip
    if reply.error_code or reply.topics[0].partitions[0].error_code:
        return None
    return int(reply.topics[0].partitions[0].committed_offset)


def check_offset(stage: BrokerStage, group: str, possible: set[int], found: int) -> None:
    """Checks a committed offset. An unsynced power cut may have taken any number of commits."""
    if found not in possible and not (stage.lost_power_ms >= 0 and found <= max(possible)):
        raise stage.fail(f"{group} has the offset {found}, not one of {sorted(possible)}", group)


class SimulatedReader(SimulatedClient):
    """A consumer without a group: it reads a partition from its start, as a reader of committed records or of all."""

    async def read(self) -> None:
        name = self.chance.choice(TOPICS)
        topic_id, index = self.topic_id(name), self.chance.randrange(2)
        node, ledger = self.stage.node, self.stage.ledger
        if topic_id is None or node is None:
            return
        is_committed = self.chance.random() < 0.7
        ledger.follow()
        copy = ledger.copies.get((topic_id, index))
        if copy is None:
            return
        before = copy.readable(is_committed=is_committed)
        reply = await self._fetch(topic_id, index, copy.start, is_committed=is_committed)
        if reply is None or self.stage.node is not node:
            return
        ledger.follow()
        got = _values(reply, is_committed=is_committed)
        after = copy.readable(is_committed=is_committed)
        if copy.start > reply[2]:
            return  # records were deleted meanwhile
        if got[: len(before)] != before or got != after[: len(got)]:
            raise self.stage.fail(f"a reader of {copy.name} got {got}, between {before} and {after}", copy.name)

    async def _fetch(self, topic_id: UUID, index: int, offset: int, *, is_committed: bool) -> Any:
        part = {
            "partition": index, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
            "log_start_offset": -1, "partition_max_bytes": 1 << 20,
        }  # fmt: skip
        data, aborted, start = b"", [], offset
        for _ in range(40):  # a reply has records of one segment
            message = {
                "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20,
                "isolation_level": int(is_committed), "session_id": 0, "session_epoch": -1,
                "topics": ({"topic_id": topic_id, "partitions": (part,)},), "forgotten_topics_data": (), "rack_id": "",
            }  # fmt: skip
            reply = await self.ask(FETCH, 13, message)
            if reply.error_code or not reply.responses or reply.responses[0].partitions[0].error_code:
                return None
            row = reply.responses[0].partitions[0]
            records = bytes(row.records or b"")
            aborted += [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
            last = [header.last_offset for _, header in scan(records)]
            if not last:
                break
            data += records
            part["fetch_offset"] = last[-1] + 1
        return data, aborted, start


def _values(fetched: Any, *, is_committed: bool) -> list[bytes]:
    """Returns the values that a client's reader keeps: without the batches of aborted transactions."""
    data, aborted, start = fetched
    waiting = sorted(set(aborted), key=lambda one: one[1])
    skipped: set[int] = set()
    values = []
    for pos, header in scan(data):
        while waiting and waiting[0][1] <= header.base_offset:
            skipped.add(waiting.pop(0)[0])
        if header.is_control:
            skipped.discard(header.producer_id)
        elif not (is_committed and header.is_transactional and header.producer_id in skipped):
            values += [row.value or b"" for row in batch_rows(data, pos, header) if row.offset >= start]
    return values


class SimulatedAdministrator(SimulatedClient):
    """Creates, extends, alters and deletes topics, and deletes records."""

    async def create(self, name: str | None = None) -> None:
        name = name or self.chance.choice(("t0", "t1", "x0", "x1"))
        topic = {
            "name": name, "num_partitions": 2, "replication_factor": 1, "assignments": (),
            "configs": ({"name": "segment.ms", "value": "3000"},),
        }  # fmt: skip
        reply = await self.ask(CREATE_TOPICS, 7, {"topics": (topic,), "timeout": 10_000, "validate_only": False})
        if not reply.topics[0].error_code:
            self.note("has created {}", name)
            self.stage.ledger.topics[name] = reply.topics[0].topic_id

    async def delete(self) -> None:
        name = self.chance.choice(("t0", "t1", "x0", "x1"))
        self.stage.ledger.topics.pop(name, None)
        self.stage.ledger.settings.pop(name, None)
        reply = await self.ask(
            DELETE_TOPICS, 6, {"topics": ({"name": name, "topic_id": UUID(int=0)},), "timeout": 10_000}
        )
        self.note("deletes {}: {}", name, int(reply.responses[0].error_code))

    async def alter(self) -> None:
        name = self.chance.choice(("t0", "t1", "kept"))
        value = str(self.chance.randrange(10**9, 10**10))
        self.stage.ledger.settings.pop(name, None)
        setting = {"name": "retention.ms", "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": name, "configs": (setting,)}
        reply = await self.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": (resource,), "validate_only": False})
        if not reply.responses[0].error_code:
            self.stage.ledger.settings[name] = value

    async def extend(self) -> None:
        topic = {"name": self.chance.choice(("x0", "x1")), "count": self.chance.randrange(2, 6), "assignments": None}
        await self.ask(CREATE_PARTITIONS, 3, {"topics": (topic,), "timeout": 10_000, "validate_only": False})

    async def delete_records(self) -> None:
        part = {"partition_index": self.chance.randrange(2), "offset": self.chance.choice((-1, 1, 3, 10))}
        topic = {"name": self.chance.choice(("t0", "t1")), "partitions": (part,)}
        await self.ask(DELETE_RECORDS, 2, {"topics": (topic,), "timeout": 3000})
