"""A broker's process whose disk is full for a while, or which reaches the limit of a file's size, beside clients."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import odradek
from odradek.core.errors import OdradekError
from odradek.core.ids import ConsumerGroupMetadata

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and tmpfs need Linux")
GO_ON_S = 60.0
"""The longest wait of this test. The time is printed; docs/long-suites.md has times without other load."""
CONFIG = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "log.segment.bytes": 1 << 20,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "200000",
    "file.delete.delay.ms": "0",
}


class _Disk:
    """The broker's directory, and how to make its writes fail and succeed."""

    def __init__(self, directory: Path, fill: Callable[[Any], None], free: Callable[[Any], None]) -> None:
        self.directory = directory
        self.fill = fill
        self.free = free


def _fill_with_ballast(directory: Path) -> None:
    with (directory / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(size))


def _limited_files(directory: Path) -> _Disk:
    """A disk on which the broker reaches the limit of a file's size instead."""

    def limit(size: int) -> Callable[[odradek.Broker], None]:
        def set_limit(broker: odradek.Broker) -> None:
            assert broker.pid is not None
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        return set_limit

    return _Disk(directory / "data", limit(100), limit(resource.RLIM_INFINITY))


@contextlib.contextmanager
def _small_disk(directory: Path) -> Iterator[_Disk]:
    """A file system of 48 MB. Raises OSError or CalledProcessError if it cannot be mounted."""
    mounted = directory / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(mounted)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield _Disk(
            mounted / "data",
            lambda _: _fill_with_ballast(mounted),
            lambda _: (mounted / "ballast").unlink(missing_ok=True),
        )
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.fixture(params=["full disk", "file size"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Disk]:
    if request.param == "file size":
        yield _limited_files(tmp_path)
        return
    with contextlib.ExitStack() as stack:
        try:
            mounted = stack.enter_context(_small_disk(tmp_path))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a small file system cannot be mounted: {error}")
        yield mounted


@pytest.fixture
def possible_disk(tmp_path: Path) -> Iterator[_Disk]:
    """A small disk; where none can be mounted, the limit of a file's size."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(_small_disk(tmp_path))
        except (OSError, subprocess.CalledProcessError):
            found = _limited_files(tmp_path)
        yield found


class _Load:
    """Clients that write all the time: idempotent producers to a plain and to a compacted topic, transactions with
    offsets, plain commits.

    ``acked``, ``newest``, ``committed`` and ``offset`` have what the broker has acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: list[bytes] = []
        self.newest: dict[bytes, int] = {}
        self.replaced = 0
        self.committed: list[bytes] = []
        self.offset = -1
        self.failures: list[str] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,))
            for work in (self._produce, self._replace, self._transact, self._commit)
        ]

    def __enter__(self) -> _Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def counts(self) -> tuple[int, int, int, int]:
        return len(self.acked), len(self.committed), self.offset, self.replaced

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.failures.append(repr(error))

    def _produce(self) -> None:
        self._send("t", lambda number: (None, b"%d" % number + os.urandom(500)), lambda m: self.acked.append(m.value()))

    def _replace(self) -> None:
        """Writes new values of some keys of the compacted topic."""

        def on_success(message: Any) -> None:
            self.newest[message.key()] = int(message.value()[:8])
            self.replaced += 1

        self._send("c", lambda number: (b"key-%d" % (number % 20), b"%08d" % number + os.urandom(1000)), on_success)

    def _send(
        self, topic: str, record: Callable[[int], tuple[bytes | None, bytes]], on_success: Callable[[Any], None]
    ) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 50}
        )

        def on_delivery(error: object, message: Any) -> None:
            on_success(message) if error is None else self.failures.append(str(error))

        number = 0
        while not self._stop.is_set():
            if len(producer) < 100:
                key, value = record(number)
                producer.produce(topic, value, key, on_delivery=on_delivery, partition=0)
                number += 1
            producer.poll(0)
            time.sleep(0.004)  # a faster client would fill the disk by itself
        producer.flush(30)

    def _transact(self) -> None:
        """Uses our own producer: after a lost connection, librdkafka's may wait for ever in the call that sends the
        offsets (its issues 5456 and 5511)."""
        group = ConsumerGroupMetadata("of-transactions")
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": "x", "retry.backoff.ms": "50"}
        number, producer = 0, None
        while not self._stop.is_set():
            values = [b"%d-%d" % (number, row) for row in range(3)]
            number += 1  # if the outcome is unknown, the next values are new ones
            try:
                if producer is None:
                    producer = odradek.Producer(settings)
                    producer.init_transactions()
                producer.begin_transaction()
                for value in values:
                    producer.send("x", value, partition=0)
                producer.send_offsets_to_transaction({odradek.TopicPartition("t", 0): number}, group)
                producer.commit_transaction()
                self.committed += values
            except OdradekError:
                if producer is not None:
                    with contextlib.suppress(OdradekError):
                        producer.close(0)
                producer = None
                time.sleep(0.1)
        if producer is not None:
            producer.close(10)

    def _commit(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "g", "enable.auto.commit": False})
        offset = 0
        while not self._stop.is_set():
            offset += 1
            try:
                consumer.commit(offsets=[TopicPartition("t", 1, offset)], asynchronous=False)
                self.offset = offset
            except KafkaException:
                time.sleep(0.05)
        consumer.close()


def _read(bootstrap: str, topic: str) -> list[bytes]:
    return [value for _, value in _read_pairs(bootstrap, topic)]


def _read_pairs(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "r", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, "a read waits"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return values
            values.append((message.key(), message.value()))
    finally:
        consumer.close()


def _check(bootstrap: str, load: _Load, *, is_over: bool) -> None:
    values, counts = _read(bootstrap, "t"), load.counts()
    acked = load.acked[: counts[0]] if is_over else load.acked[:]
    if is_over:
        assert len(values) == len(set(values)), "a record is there twice"
        assert [value for value in values if value in set(acked)] == acked
    else:
        assert set(acked[: len(values) // 2]) <= set(values)
    newest = dict(load.newest)
    found = {key: int(value[:8]) for key, value in _read_pairs(bootstrap, "c")}
    assert all(found[key] >= number for key, number in newest.items()), "the newest value of a key is lost"
    written = _read(bootstrap, "x")
    assert set(load.committed if is_over else load.committed[:-30]) <= set(written)
    assert len(written) == len(set(written))
    numbers = [int(value.split(b"-")[0]) for value in written]
    assert all(numbers.count(number) == 3 for number in set(numbers)), "a transaction is half there"


def _offset(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    try:
        return int(consumer.committed([TopicPartition("t", 1)], 20)[0].offset)
    finally:
        consumer.close()


def _run_rounds(disk: _Disk, rounds: int, *, kills: bool, full_s: float) -> None:
    with odradek.Broker(disk.directory, CONFIG) as broker:
        bootstrap = broker.bootstrap_servers
        for name in ("t", "x", "c"):
            broker.create_topic(name, 2, COMPACTED if name == "c" else None)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        with _Load(bootstrap) as load:
            _await_progress(load, GO_ON_S)
            for number in range(rounds):
                disk.fill(broker)
                asked = admin.create_topics([NewTopic(f"new-{number}", 2, 1)], request_timeout=20)
                time.sleep(full_s)
                _check(bootstrap, load, is_over=False)
                refused = asked[f"new-{number}"].exception(20)
                assert broker.running
                if kills and number % 2:
                    broker.kill()
                    disk.free(broker) if broker.pid else _free_without_process(disk)
                    broker.start()
                else:
                    disk.free(broker)
                print(f"round {number}: all clients go on after {_await_progress(load, GO_ON_S):.2f} s, ", end="")
                print(f"the cleaner after {_await_cleaning(disk.directory / 'c-0', GO_ON_S):.2f} s")
                known = admin.list_topics(timeout=10).topics
                assert refused is None or "KAFKA_STORAGE_ERROR" in str(refused), refused
                if refused is None or f"new-{number}" in known:
                    _produce_one(bootstrap, f"new-{number}")
        assert load.failures == []
        _check(bootstrap, load, is_over=True)
        assert _offset(bootstrap) >= load.offset
        lines = broker.log_tail().splitlines()
        warnings = [line for line in lines if line.startswith("WARNING:odradek.storage:")]
        assert 1 <= len(warnings) <= 3 * rounds, (
            lines
        )  # a line can be cut, because the limit of a file is the log's, too
        broker.kill()
        broker.start()
        _check(bootstrap, load, is_over=True)
        assert _offset(bootstrap) >= load.offset


def _free_without_process(disk: _Disk) -> None:
    if disk.directory.parent.name == "disk":  # the limit of a file's size has ended with the process
        disk.free(None)


def _produce_one(bootstrap: str, topic: str) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert errors == [None]


def _await_progress(load: _Load, seconds: float) -> float:
    """Waits until each client has got new acknowledgements. Returns the seconds."""
    before, began = load.counts(), time.monotonic()
    while not all(now > then for now, then in zip(load.counts(), before, strict=True)):
        assert not load.failures, load.failures
        assert time.monotonic() < began + seconds, (before, load.counts(), seconds)
        time.sleep(0.02)
    return time.monotonic() - began


def _await_cleaning(directory: Path, seconds: float) -> float:
    """Waits until the first segment has been replaced by a cleaned one. Returns the seconds."""
    first, began = directory / f"{0:020d}.log", time.monotonic()
    before = first.stat().st_ino
    while not first.exists() or first.stat().st_ino == before:
        assert time.monotonic() < began + seconds, (sorted(path.name for path in directory.iterdir()), seconds)
        time.sleep(0.02)
    return time.monotonic() - began


def test_a_broker_goes_on_when_its_disk_has_room_again(possible_disk: _Disk) -> None:
    _run_rounds(possible_disk, 1, kills=False, full_s=0.5)


@pytest.mark.slow
def test_a_broker_survives_many_full_disks_and_kills(disk: _Disk) -> None:
    _run_rounds(disk, 10, kills=True, full_s=2)
