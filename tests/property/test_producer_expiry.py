"""The expiry of producers over restarts with snapshots, against a model with Kafka's rules.

A producer without an open transaction is forgotten after producer.id.expiration.ms, at a check or at a start. A start
after a clean stop or a kill has exactly the producers that a check at that time would leave. A forgotten producer may
begin with any sequence, as in Kafka; a known one has to continue its sequence, and a repeated batch is found.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.memory_files import MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EndTransactionMarker
from odradek.storage.appends import AppendInfo
from odradek.storage.config import LogConfig
from odradek.storage.log import Log
from odradek.storage.recovery.evidence import Witnesses

PATH = Path("/logs/t-0")
T0 = 1_700_000_000_000
EXPIRATION_MS = 10_000
CONFIG = LogConfig(retention_ms=-1, segment_bytes=1_500, producer_id_expiration_ms=EXPIRATION_MS)


@dataclass
class Known:
    """What a partition knows about a producer. ``last``: its last batch (first sequence, records, base offset)."""

    epoch: int
    used_ms: int
    last: tuple[int, int, int] | None
    is_open: bool = False


class Expiry:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = T0
        self.files = MemoryFiles(T0)
        self.log = Log.open(PATH, CONFIG, T0, clean=False, files=self.files)
        self.known: dict[int, Known] = {}
        self.late_batches = 0
        self.clients: dict[int, tuple[int, int]] = {}
        """The epoch and the next sequence of each client."""

    def send(self, producer: int, epoch: int, sequence: int, count: int) -> AppendInfo:
        data = encode_batch(
            [SimpleRecord(b"", b"v", self.now_ms)] * count, now_ms=self.now_ms, producer_id=producer,
            producer_epoch=epoch, base_sequence=sequence, transactional=producer >= 4,
        )  # fmt: skip
        return self.log.append(data, now_ms=self.now_ms, leader_epoch=0)

    def append(self) -> None:
        """A client continues with its epoch and sequence, whether the partition knows it or not, or begins an epoch."""
        producer, count = self.chance.randrange(7), self.chance.choice((1, 2, 5))
        known = self.known.get(producer)
        epoch, sequence = self.clients.get(producer, (0, 0))
        if (known is None or not known.is_open) and self.chance.random() < 0.1:
            epoch, sequence = epoch + 1, 0
        self.late_batches += known is None and sequence > 0
        info = self.send(producer, epoch, sequence, count)
        self.clients[producer] = epoch, sequence + count
        self.known[producer] = Known(epoch, self.now_ms, (sequence, count, info.base_offset), producer >= 4)

    def repeat_or_skip(self) -> None:
        known_ones = [(producer, known) for producer, known in self.known.items() if known.last is not None]
        if not known_ones:
            return
        producer, known = self.chance.choice(known_ones)
        assert known.last is not None
        first, count, base = known.last
        end = self.log.log_end_offset
        assert self.send(producer, known.epoch, first, count).base_offset == base
        with pytest.raises(KafkaError) as caught:
            self.send(producer, known.epoch, first + count + 1, 1)
        assert caught.value.code is ErrorCode.out_of_order_sequence_number
        if known.epoch:
            with pytest.raises(KafkaError) as caught:
                self.send(producer, known.epoch - 1, 0, 1)
            assert caught.value.code is ErrorCode.invalid_producer_epoch
        assert self.log.log_end_offset == end

    def end_transaction(self) -> None:
        for producer, known in self.known.items():
            if known.is_open and self.chance.random() < 0.5:
                marker = EndTransactionMarker(producer, known.epoch + 1, 0, self.chance.random() < 0.5, 2)
                self.log.append_marker(marker, now_ms=self.now_ms, leader_epoch=0)
                self.known[producer] = Known(known.epoch + 1, self.now_ms, None)
                self.clients[producer] = known.epoch + 1, 0

    def expire(self) -> None:
        for producer, known in list(self.known.items()):
            if not known.is_open and self.now_ms - known.used_ms >= EXPIRATION_MS:
                del self.known[producer]

    def restart(self) -> None:
        clean = self.chance.random() < 0.5
        if clean:
            self.log.close()
        else:
            if self.chance.random() < 0.5:
                self.log.flush()
            self.log.abandon()
            self.files.crash()
        self.now_ms += self.chance.choice((0, 1, EXPIRATION_MS // 2, 2 * EXPIRATION_MS))
        point = self.log.recovery_point if clean else self.chance.choice((0, self.log.recovery_point))
        self.log = Log.reopen(PATH, CONFIG, self.now_ms, Witnesses(clean, point), leader_epoch=0, files=self.files)
        self.expire()

    def check(self) -> None:
        found = {state.producer_id: (state.epoch, state.transaction_start >= 0) for state in self.log.producers}
        assert found == {producer: (known.epoch, known.is_open) for producer, known in self.known.items()}
        for producer, known in self.known.items():
            state = self.log.producers.get(producer)
            assert state is not None
            assert state.last_sequence == (-1 if known.last is None else known.last[0] + known.last[1] - 1)

    def step(self) -> None:
        self.now_ms += self.chance.choice((0, 10, 500, EXPIRATION_MS // 3))
        match self.chance.randrange(14):
            case 0 | 1:
                self.restart()
            case 2:
                for _ in self.log.expire_producers(self.now_ms):
                    pass
                self.expire()
            case 3 | 4:
                self.repeat_or_skip()
            case 5:
                self.end_transaction()
            case 6:
                self.log.roll(self.now_ms)
            case _:
                self.append()
        self.check()


@pytest.mark.parametrize("seed", range(6))
def test_producers_expire_alike_at_a_check_and_at_a_start(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    expiry = Expiry(seed)
    for _ in range(200):
        expiry.step()
    assert expiry.late_batches
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_producers_expire_alike_over_thousands_of_restarts(seed: int) -> None:
    for number in range(50):
        expiry = Expiry(seed * 100 + number)
        for _ in range(600):
            expiry.step()
