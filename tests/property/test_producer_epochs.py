"""Epochs of producers up to their end: the state machine of transactions with a partition's log, over restarts.

A producer goes from its first epoch to 32,766, where it gets a new producer id. In between come other ends of
transactions, fences, restarts of the coordinator and of the partition. No identity begins two transactions, and an
earlier identity can neither write, nor add a partition, nor end a transaction.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.damaged_directories import read_as_consumer
from support.memory_files import MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.codecs.transaction_state import TransactionState
from odradek.core.effects import Announce, Result, SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EndTransactionMarker, ProducerIdentity
from odradek.storage.config import MAX_LONG, LogConfig
from odradek.storage.log import Log
from odradek.storage.recovery.evidence import Witnesses
from odradek.transactions.config import TransactionConfig
from odradek.transactions.messages import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
    Markers,
    MarkersWritten,
    ProducerReply,
)
from odradek.transactions.shard import TransactionShard

PATH = Path("/logs/t-0")
T0 = 1_700_000_000_000
CONFIG = LogConfig(retention_ms=-1, segment_bytes=1 << 16, producer_id_expiration_ms=MAX_LONG)
REFUSED = (ErrorCode.invalid_producer_epoch, ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_txn_state)
CHECKED_EVERY = 1000
FENCED = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping)


class Epochs:
    """One transactional id, its coordinator's records, and one partition."""

    def __init__(self, seed: int, version: int, first_epoch: int) -> None:
        self.chance = random.Random(seed)
        self.version = version
        self.records: list[Any] = []
        self.next_id = 1000
        self.files = MemoryFiles(T0)
        self.log = Log.open(PATH, CONFIG, T0, clean=False, files=self.files)
        self.shard = self.new_shard()
        self.current = self.init()
        if first_epoch:
            self.shard.transactions["t"] = self.shard.transactions["t"]._replace(producer_epoch=first_epoch)
            self.current = self.init(self.current._replace(producer_epoch=first_epoch))
        self.used = {self.current}
        self.fences: set[ProducerIdentity] = set()
        """The identities that only the coordinator has used, in the markers of fences."""
        self.committed: set[bytes] = set()
        self.number = 0

    def new_shard(self) -> TransactionShard:
        return TransactionShard(TransactionConfig(), self.take_id, lambda: self.version, lambda: 1 << 20)

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def ask(self, request: Any) -> Any:
        result = self.shard.handle(T0, request)
        assert isinstance(result, Result)
        for record in result.records:
            self.records.append(SimpleRecord(record.key, record.value))
            self.shard.replay(0, record)
        announced = [effect.value for effect in result.effects if isinstance(effect, Announce)]
        for markers in announced:
            if self.chance.random() < 0.02:
                self.restart()  # the decision is in the log, its marker is not written
            self.write(markers)
        return result.reply

    def write(self, markers: Markers) -> None:
        version = markers.version
        marker = EndTransactionMarker(*markers.producer, 0, markers.commit, version)
        self.log.append_marker(marker, now_ms=T0, leader_epoch=0)
        assert self.ask(MarkersWritten("t", markers.producer)) is ErrorCode.none

    def restart(self) -> None:
        """Loads the coordinator's records and the log again."""
        self.records = self.records[-1:]
        self.shard = self.new_shard()
        for record in self.records:
            self.shard.replay(0, record)
        clean = self.chance.random() < 0.5
        if clean:
            self.log.close()
        else:
            self.log.abandon()
            self.files.crash()
        known = Witnesses(clean, self.log.recovery_point, self.log.log_start_offset)
        self.log = Log.reopen(PATH, CONFIG, T0, known, leader_epoch=0, files=self.files)

    def init(self, expected: ProducerIdentity | None = None) -> ProducerIdentity:
        reply = self.ask(InitProducerId("t", 60_000, expected))
        if reply.error is ErrorCode.concurrent_transactions:  # a fence; its marker is written now
            reply = self.ask(InitProducerId("t", 60_000, expected))
        assert reply.error is ErrorCode.none
        return reply.producer

    def become(self, identity: ProducerIdentity) -> None:
        if identity != self.current:
            assert identity not in self.used, "an identity is given twice"
            self.used.add(identity)
        self.current = identity

    def send(self, identity: ProducerIdentity, value: bytes) -> None:
        data = encode_batch(
            [SimpleRecord(b"k", value)], now_ms=T0, producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch, base_sequence=0, transactional=True,
        )  # fmt: skip
        self.log.append(data, now_ms=T0, leader_epoch=0)

    def transact(self) -> None:
        """One transaction, or a fence of an open one."""
        self.number += 1
        value = b"%d" % self.number
        assert self.ask(AddPartitions("t", self.current, [("t", 0)], self.version)) is ErrorCode.none
        self.send(self.current, value)
        how = self.chance.random()
        if how < 0.05 or self.version < 2:
            self.become_after_fence_or_end(value, is_fence=how < 0.05)
            return
        self.end(value)

    def end(self, value: bytes) -> None:
        is_commit = self.chance.random() < 0.7
        reply = self.ask(EndTransaction("t", self.current, is_commit, self.version))
        assert isinstance(reply, ProducerReply | type(None))
        after = self.shard.transactions["t"]
        assert after.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        if is_commit:
            self.committed.add(value)
        if self.version == 2:
            self.become(ProducerIdentity(after.producer_id, after.producer_epoch))

    def become_after_fence_or_end(self, value: bytes, *, is_fence: bool) -> None:
        if not is_fence:
            self.end(value)
        before = self.current
        if is_fence:
            self.fences.add(before._replace(producer_epoch=before.producer_epoch + 1))
        self.become(self.init())
        assert self.current not in self.fences
        self.check_fenced(before, in_log=is_fence or self.version == 2)

    def check_fenced(self, before: ProducerIdentity, *, in_log: bool = True) -> None:
        """The earlier identity can change nothing. Below version 2 a partition learns a new epoch only from a fence, so
        the broker asks the coordinator before a write."""
        end = self.log.log_end_offset
        if in_log:
            with pytest.raises(KafkaError) as caught:
                self.send(before, b"late")
            assert caught.value.code in REFUSED
            assert self.log.log_end_offset == end
        assert self.ask(AddPartitions("t", before, [("t", 0)], self.version)) in FENCED
        known = len(self.records)
        reply = self.ask(EndTransaction("t", before, True, self.version))
        assert reply.error is not ErrorCode.none or reply.producer == self.current
        assert len(self.records) == known

    def check_seen(self) -> None:
        """Readers see the committed transactions. Then they are deleted: a start takes as long as the log."""
        assert self.log.last_stable_offset == self.log.log_end_offset
        assert self.seen() == self.committed
        self.committed.clear()
        self.log.removals.delete_before(-1)
        self.log.removals.retain(T0)

    def seen(self) -> set[bytes]:
        found: set[Any] = set()
        assert not list(read_as_consumer(self.log, True, found))
        return {row[2] for row in found}


def walk(version: int, first_epoch: int, transactions: int, seed: int) -> Epochs:
    epochs = Epochs(seed, version, first_epoch)
    for number in range(transactions):
        before = epochs.current
        epochs.transact()
        if epochs.current != before and (number % 50 == 0 or before.producer_epoch >= 32_764):
            epochs.check_fenced(before, in_log=version == 2)
        if epochs.chance.random() < 0.002:
            epochs.restart()
        if number % CHECKED_EVERY == CHECKED_EVERY - 1:
            epochs.check_seen()
    epochs.check_seen()
    return epochs


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_producer_crosses_its_last_epoch(version: int, seed: int) -> None:
    """From 32,760 on, so that some transactions are before and some behind the change of the producer id."""
    epochs = walk(version, 32_760, 24, seed)
    assert {one.producer_id for one in epochs.used} == {1000, 1001}
    assert max(one.producer_epoch for one in epochs.used if one.producer_id == 1000) == 32_766


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_uses_all_epochs_of_an_id(version: int) -> None:
    epochs = walk(version, 0, 70_000, 1)
    assert len({one.producer_id for one in epochs.used}) >= 3
    given = epochs.used | epochs.fences
    assert {one.producer_epoch for one in given if one.producer_id == 1000} - {32_767} == set(range(32_767))
