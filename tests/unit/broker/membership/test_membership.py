"""The membership of a broker: what it does at errors of its disk, and after its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.controlled_cluster import new_catalog
from support.memory_files import MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.membership.incarnation import ClusterMembership
from odradek.broker.membership.observer_log import ObserverLog
from odradek.broker.metadata_log.snapshot import KeylessRecord
from odradek.catalog.records import MetadataRecord, encode
from odradek.cluster.metadata_log.log_observer import LogObserver, RecordsReply
from odradek.cluster.nodes.lifecycle import BrokerLifecycle, HeartbeatReply, LifecycleTimes
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.records import NoOpRecord
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode

CONTROLLER = 100


def batch(base: int, *values: bytes) -> bytes:
    """A batch of the first epoch, with its offset."""
    data = encode_batch([KeylessRecord(value) for value in values], now_ms=5)
    return base.to_bytes(8, "big") + data[8:12] + bytes(4) + data[16:]


NOOPS = batch(0, *[encode(NoOpRecord())] * 3)


class _Broker:
    """A broker with one pending request of each kind. Work runs when ``shares`` are called."""

    def __init__(self) -> None:
        self.now = 0
        self.files = MemoryFiles()
        self.ends: list[str] = []
        self.applied: list[tuple[int, int]] = []
        self.asked: dict[str, Callable[[Any], None]] = {}
        self.shares: list[Callable[[], None]] = []
        self.caught_up = 0
        self.copy = ObserverLog.open_copy(
            Path("/b"), new_catalog().replay, (CONTROLLER,), now_ms=lambda: self.now, files=self.files
        )
        asked = NewBroker(3, "c", UUID(int=1), (), (), None, (UUID(int=5 << 64),), -1)
        self.membership = ClusterMembership(
            self, self, BrokerLifecycle(asked, LifecycleTimes(), 0), LogObserver(self.copy, 1, -1, 0), self.copy
        )
        self.membership.begin()

    def now_ms(self) -> int:
        return self.now

    def call_after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.alarm = work

    def start(self, steps: Steps[None]) -> Deferred[Exception | None]:
        promise: Deferred[Exception | None] = Deferred()

        def share() -> None:
            try:
                finish(steps)
            except Exception as error:
                promise.resolve(error)
            else:
                promise.resolve(None)

        self.shares.append(share)
        return promise

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
        self.applied.append((offset, len(changes)))
        yield None

    def replace(self, values: Iterator[bytes]) -> Steps[None]:
        yield None

    def on_caught_up(self) -> None:
        self.caught_up += 1

    def on_end(self, failure: str) -> None:
        self.ends.append(failure)

    def register(self, asked: Any, answer: Callable[[Any], None]) -> None:
        self.asked["register"] = answer

    def beat(self, asked: Any, answer: Callable[[Any], None]) -> None:
        self.asked["beat"] = answer

    def read(self, asked: Any, answer: Callable[[Any], None]) -> None:
        self.asked["read"] = answer

    def read_part(self, asked: Any, answer: Callable[[Any], None]) -> None:
        self.asked["part"] = answer


def records(data: bytes = NOOPS, watermark: int = 3) -> RecordsReply:
    return RecordsReply(ErrorCode.none, CONTROLLER, 1, watermark, data)


@pytest.fixture
def broker() -> _Broker:
    return _Broker()


def test_committed_records_are_applied_in_order_and_once(broker: _Broker) -> None:
    broker.asked.pop("read")(records(NOOPS, 0))
    assert not broker.shares, "nothing is committed yet"
    broker.asked.pop("read")(records(b"", 3))
    (share,) = broker.shares
    broker.asked.pop("read")(records(batch(3, *[encode(NoOpRecord())] * 3), 6))
    assert broker.shares == [share], "one task at a time"
    share()
    assert broker.applied == [(0, 3), (3, 3)]
    assert broker.copy.applied.end_offset == 6


def test_a_log_that_cannot_be_read_ends_the_broker(broker: _Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.asked.pop("read")(records(batch(0, b"\x01\x63\x00\x00"), 1))
    broker.shares.pop()()
    assert broker.ends == ["the metadata log cannot be followed: a record of type 99 (unknown, version 0)"]
    assert "cannot be followed" in caplog.text
    broker.asked["register"](7)
    assert "beat" not in broker.asked, "no request after the end"


def test_a_full_disk_is_waited_for(broker: _Broker) -> None:
    broker.files.free_bytes = 0
    broker.asked.pop("read")(records())
    assert (broker.copy.end.end_offset, broker.ends) == (0, [])
    broker.files.free_bytes = None
    broker.now = 1_000
    broker.alarm()
    broker.asked.pop("read")(records())
    broker.shares.pop()()
    assert broker.applied == [(0, 3)]


def test_the_logs_are_opened_once(broker: _Broker) -> None:
    broker.asked.pop("register")(7)
    for _ in range(3):
        broker.asked.pop("beat")(HeartbeatReply(True, True, False))
        broker.now += 3_000
        broker.alarm()
    assert broker.caught_up == 1


def test_replies_after_the_broker_has_left_are_ignored(broker: _Broker) -> None:
    broker.membership.leave()
    broker.asked["register"](7)
    broker.asked["read"](records())
    broker.alarm()
    assert (broker.membership.lifecycle.epoch, broker.copy.end.end_offset, broker.ends) == (-1, 0, [])


def test_an_end_is_reported_once(broker: _Broker) -> None:
    broker.membership.begin_shutdown()
    broker.membership.begin_shutdown()
    assert broker.ends == [""]


def test_a_refused_registration_is_named_at_once_with_its_remedy(
    broker: _Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        broker.asked["register"](ErrorCode.invalid_registration)
        broker.now += 1_000
        broker.membership._drive()
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith(
        "the controller does not register this broker: INVALID_REGISTRATION. Perhaps another broker has a directory"
    )
    assert not broker.ends


def test_the_id_of_another_cluster_is_one_line(broker: _Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.asked["register"](ErrorCode.inconsistent_cluster_id)
    assert caplog.messages == []
    (end,) = broker.ends
    assert end.endswith("choose the right one, or format an empty one with the cluster's id")
