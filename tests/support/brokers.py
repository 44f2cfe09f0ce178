"""Shared code of the broker tests: brokers under test, changes of their logs and catalogue, unique names, waits with a
deadline, a raw connection."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from odradek.catalog.state import AlterConfigs, DeleteTopic
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, FETCH
from support.fork_server import is_readable
from support.jvm import kafka_java_options

if TYPE_CHECKING:
    from odradek.broker.server import BrokerServer

T = TypeVar("T")


class RunningBroker(Protocol):
    """A broker in a separate process. Data and port are kept across ``kill`` (kill -9) and ``stop`` until ``start``."""

    bootstrap: str
    directory: Path
    """The logs are in ``data`` of this directory."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


begins_epochs = pytest.mark.skipif(
    os.environ.get("ODRADEK_TEST_ORACLE", "").startswith("3."),
    reason="Apache Kafka 3 begins no leader epoch if the only broker is back before the broker's session has ended",
)


def cut_back(running: RunningBroker, topic: str, end: int) -> None:
    """Removes the records of partition 0 from offset ``end`` on, like an unclean election or a power failure.

    ``end`` is the first offset of a batch. The function kills the broker, cuts the log, and starts the broker again.
    """
    running.kill()
    log = running.directory / "data" / f"{topic}-0" / f"{0:020}.log"
    data, at = log.read_bytes(), 0
    while at < len(data) and int.from_bytes(data[at : at + 8], "big") < end:
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    assert at < len(data), "there are no records to remove"
    assert int.from_bytes(data[at : at + 8], "big") == end
    with log.open("rb+") as file:
        file.truncate(at)
    for derived in [*log.parent.glob("*index"), *log.parent.glob("*.snapshot")]:
        derived.unlink()
    running.start()


def odradek_broker(directory: Path, config: dict[str, str]) -> RunningBroker:
    """Odradek's broker, not started yet."""
    from odradek.testing.process import BrokerProcess

    return BrokerProcess(directory, config=config)


def apache_broker(directory: Path, config: dict[str, str]) -> RunningBroker:
    """Apache Kafka from its jars. Tests that restart a broker must pass with Apache Kafka, too.

    ODRADEK_TEST_ORACLE is 1, or a release such as 3.9.1. Releases before 4.0 need a setting for the consumer protocol.
    """
    from bench.apache import ApacheBroker, class_path

    release = os.environ.get("ODRADEK_TEST_ORACLE", "1")
    if release == "1":
        return ApacheBroker(directory, config, heap="512m", java_options=kafka_java_options())
    if release.startswith("3."):
        config = {"group.coordinator.rebalance.protocols": "classic,consumer"} | config
    return ApacheBroker(directory, config, cp=class_path(version=release), heap="512m")


@contextlib.contextmanager
def kafka_with_transactions(directory: Path) -> Iterator[str]:
    """``host:port`` of a Kafka broker with transactions: the broker of ODRADEK_TEST_BOOTSTRAP, or Apache Kafka from
    its jars."""
    if given := os.environ.get("ODRADEK_TEST_BOOTSTRAP"):
        yield given
        return
    from bench.apache import Unavailable

    try:
        running = apache_broker(directory, {"group.initial.rebalance.delay.ms": "0"})
        running.start()
    except Unavailable as error:
        pytest.skip(f"no Apache Kafka: {error}")
    yield running.bootstrap
    running.stop()


CONFIG = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}


def make_broker(directory: Path, **config: str) -> RunningBroker:
    """The broker under test: odradek, or Apache Kafka if ODRADEK_TEST_ORACLE is set."""
    build = apache_broker if os.environ.get("ODRADEK_TEST_ORACLE") else odradek_broker
    return build(directory, CONFIG | {name.replace("_", "."): value for name, value in config.items()})


def unique(prefix: str) -> str:
    """A name that no other test and no other run uses."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def eventually(probe: Callable[[], T], *, within_s: float = 20, every_s: float = 0.05, what: str = "") -> T:
    """Calls ``probe`` until it returns a true value, and returns that value. Fails with the last value at the
    deadline."""
    deadline = time.monotonic() + within_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what or probe}; last answer {answer!r}")
        time.sleep(every_s)


def delete_topic(broker: BrokerServer, name: str) -> None:
    """Deletes a topic of a broker that runs on this event loop."""
    topic = broker.catalog.topic(name)
    assert topic is not None
    request = DeleteTopic(topic.id)
    broker.finish(broker.controller.steps_of(lambda change: change.add(request)))


def create_offsets_topic(broker: BrokerServer) -> None:
    """Creates ``__consumer_offsets`` at once if it does not exist, on a broker that runs on this event loop."""
    broker.finish(broker.controller.create_internal_topic(OFFSETS_TOPIC))


def alter_configs(broker: BrokerServer, request: AlterConfigs) -> None:
    """Changes settings of a broker that runs on this event loop."""
    broker.finish(broker.controller.steps_of(lambda change: change.add(request)))


class Wire:
    """One blocking connection. ``call`` waits for its reply; with ``send``, several requests may be in flight."""

    def __init__(self, bootstrap: str, client_id: str = "wire-test", timeout_s: float = 30) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.client_id = client_id
        self._reader = frames.FrameReader()
        self._ready: list[bytes] = []
        self._ids = itertools.count(1)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.socket.close()

    def send(self, api_key: int, version: int, message: Mapping[str, Any] | bytes) -> int:
        """Writes a request. Returns its correlation id."""
        correlation_id = next(self._ids)
        self.socket.sendall(frames.encode_request(api_key, version, correlation_id, self.client_id, message))
        return correlation_id

    def receive(self, api_key: int, version: int, correlation_id: int) -> Any:
        """Reads the next reply, which must be the one to ``correlation_id``."""
        answered, message = frames.decode_reply(api_key, version, self.receive_frame())
        assert answered == correlation_id
        return message

    def receive_frame(self) -> bytes:
        """Reads the next reply as bytes, without its length."""
        while not self._ready:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._ready.extend(self._reader.feed(data))
        return self._ready.pop(0)

    def has_reply(self, within_s: float) -> bool:
        """Returns whether a reply is available, or arrives within this time."""
        return bool(self._ready) or is_readable(self.socket, within_s)

    def call(self, api_key: int, version: int, message: Mapping[str, Any]) -> Any:
        return self.receive(api_key, version, self.send(api_key, version, message))

    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions that ApiVersions advertises."""
        reply = self.call(API_VERSIONS, 3, {"client_software_name": "t", "client_software_version": "1"})
        return {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in reply.api_keys}

    def newest(self, api_key: int) -> int:
        """The newest version that both the broker and our schemas support."""
        return min(self.versions()[api_key][1], schemas.known_versions(api_key)[1])


def fetched_at(bootstrap: str, topic: str) -> tuple[ErrorCode, int]:
    """Error code and size of a broker's reply to a fetch that only leaders serve (before version 11)."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "log_start_offset": -1,
            "current_leader_epoch": -1}  # fmt: skip
    message = {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "topics": [{"topic": topic, "partitions": [part]}], "forgotten_topics_data": [],
    }  # fmt: skip
    with Wire(bootstrap) as wire:
        row = wire.call(FETCH, 10, message).responses[0].partitions[0]
    return ErrorCode(row.error_code), len(row.records or b"")
