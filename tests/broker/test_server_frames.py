"""Bytes on a connection: invalid requests close only their connection, and replies keep their order."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.brokers import RunningBroker, Wire, eventually, unique
from support.last_requests import create_topic, log_end, unacknowledged

from odradek.wire import frames, schemas
from odradek.wire.schemas import Kind

API_VERSIONS_REQUEST = frames.encode_request(18, 0, 5, "c", {})


def connect(bootstrap: str, timeout_s: float = 10) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def closes(connection: socket.socket) -> bytes:
    """Returns all bytes until the broker closes the connection. Fails if the broker does not close it."""
    received = b""
    while True:
        try:
            data = connection.recv(1 << 16)
        except ConnectionResetError:
            return received
        if not data:
            return received
        received += data


def request(api_key: int, version: int, body: bytes = b"", client_id: bytes = b"c") -> bytes:
    head = struct.pack(">hhih", api_key, version, 9, len(client_id)) + client_id
    return struct.pack(">i", len(head) + len(body)) + head + body


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",  # negative length
        struct.pack(">i", 200 << 20),  # beyond socket.request.max.bytes
        b"\0\0\0\0",  # no header
        b"\0\0\0\x02\0\x12",  # half a header
        request(999, 0),
        request(7, 0),  # ControlledShutdown: known, not served
        request(3, 99),
        request(0, 0, b"\0" * 10),  # advertised for old versions of librdkafka, not served
        request(3, 1, b"\x7f\xff\xff\xff"),  # an impossible array length
        request(19, 2, b"\0\0\0\x05"),  # an incomplete body
        request(18, 4, b"\0\xff\xff\xff\xff\xff"),
    ],
)
def test_invalid_bytes_close_only_their_connection(bootstrap: str, data: bytes) -> None:
    with Wire(bootstrap) as other, connect(bootstrap) as bad:
        other.versions()
        bad.sendall(data)
        assert closes(bad) == b""
        assert other.versions()


def test_millions_of_names_close_only_their_connection(bootstrap: str) -> None:
    """The broker could parse the names, but it would be busy for many seconds. Kafka has threads for such work."""
    count = 10_000_000
    with Wire(bootstrap) as other, connect(bootstrap) as greedy:
        other.versions()
        greedy.sendall(request(3, 1, count.to_bytes(4, "big") + bytes(2 * count)))
        assert closes(greedy) == b""
        assert other.versions()


def test_requests_before_invalid_bytes_are_answered(bootstrap: str) -> None:
    with connect(bootstrap) as connection:
        connection.sendall(API_VERSIONS_REQUEST + b"\xff\xff\xff\xff")
        received = closes(connection)
    _, reply = frames.decode_reply(18, 0, received[4:])
    assert reply.error_code == 0


def test_api_versions_of_an_unknown_version_gets_the_known_versions(bootstrap: str) -> None:
    with connect(bootstrap) as connection:
        connection.sendall(request(18, 99, b"\0\x01a\x01b\0"))
        size = int.from_bytes(connection.recv(4), "big")
        data = connection.recv(size)
    reply, _ = schemas.decode(18, 0, Kind.RESPONSE, data, 4)
    assert reply.error_code == 35
    assert [(api.api_key, api.min_version, api.max_version) for api in reply.api_keys] == [(18, 0, 4)]


def test_all_advertised_versions_are_in_the_schemas(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        for api_key, (oldest, newest) in wire.versions().items():
            known_oldest, known_newest = schemas.known_versions(api_key)
            assert newest <= known_newest
            assert oldest >= known_oldest or (api_key, oldest) == (0, 0)


def test_half_a_request_waits_without_affecting_others(bootstrap: str) -> None:
    with connect(bootstrap) as slow, Wire(bootstrap) as other:
        slow.sendall(API_VERSIONS_REQUEST[:7])
        assert other.versions()
        slow.sendall(API_VERSIONS_REQUEST[7:])
        assert int.from_bytes(slow.recv(4), "big") > 100


def test_requests_may_arrive_byte_by_byte(bootstrap: str) -> None:
    with connect(bootstrap) as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in API_VERSIONS_REQUEST * 2:
            slow.sendall(bytes([byte]))
        reader, received = frames.FrameReader(), []
        while len(received) < 2:
            received.extend(reader.feed(slow.recv(1 << 16)))
    assert received[0] == received[1]


def test_replies_are_in_the_order_of_requests(bootstrap: str, topic: str) -> None:
    with Wire(bootstrap) as wire:
        create(wire, topic)
        started = time.monotonic()
        waiting = wire.send(1, 11, fetch(topic, max_wait_ms=400))
        quick = wire.send(18, 0, {})
        assert wire.receive(1, 11, waiting).error_code == 0
        assert time.monotonic() - started >= 0.35
        wire.receive(18, 0, quick)


@pytest.mark.parametrize("is_reset", [False, True])
def test_requests_are_served_that_came_before_the_client_left(bootstrap: str, topic: str, is_reset: bool) -> None:
    """Kafka's SslTransportLayerTest.testClosePlaintext. A reset may overtake what the broker has not read yet."""
    with Wire(bootstrap) as wire:
        create_topic(wire, topic)
        end = 0
        for count in (300, 20):
            with connect(bootstrap) as connection:
                connection.sendall(unacknowledged(topic, count))
                if is_reset:
                    eventually(lambda: log_end(wire, topic) > end, what="the first request is served")  # noqa: B023
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end += count
            eventually(lambda: log_end(wire, topic) == end, what="all requests are served")  # noqa: B023


def test_thousands_of_requests_at_once_are_all_answered(bootstrap: str) -> None:
    count = 5000
    with connect(bootstrap, timeout_s=30) as connection:
        connection.sendall(b"".join(frames.encode_request(18, 0, n, "c", {}) for n in range(count)))
        reader, answered = frames.FrameReader(), []
        while len(answered) < count:
            answered.extend(int.from_bytes(f[:4], "big") for f in reader.feed(connection.recv(1 << 20)))
    assert answered == list(range(count))


def test_a_client_that_does_not_read_uses_limited_memory(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    running = own_broker()
    with Wire(running.bootstrap) as wire, connect(running.bootstrap) as greedy:
        create(wire, topic)
        produce(wire, topic, [b"x" * 900_000])
        before = resident_kib(running)
        # The client requests 2000 × 0.9 MB and reads nothing. The broker must not load all of it into memory.
        asked = frames.encode_request(1, 11, 1, "greedy", fetch(topic, max_wait_ms=0))
        greedy.settimeout(0.5)
        try:
            for _ in range(2000):
                greedy.sendall(asked)
        except TimeoutError:
            pass
        assert wire.versions(), "other clients are served meanwhile"
        assert resident_kib(running) - before < 60_000


def test_idle_connections_are_closed(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker(connections_max_idle_ms="700")
    with connect(running.bootstrap) as idle:
        started = time.monotonic()
        idle.sendall(API_VERSIONS_REQUEST)
        closes(idle)
        assert 0.6 <= time.monotonic() - started < 5


def test_connections_are_limited_per_address(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker(max_connections_per_ip="2")
    with Wire(running.bootstrap) as first:
        with Wire(running.bootstrap) as second, connect(running.bootstrap) as third:
            first.versions()
            second.versions()
            assert closes(third) == b""
        deadline = time.monotonic() + 10
        while True:  # the broker may notice the end of the second connection a little later
            try:
                with Wire(running.bootstrap) as again:
                    again.versions()
                    break
            except (ConnectionError, AssertionError):
                assert time.monotonic() < deadline


# --- requests that test modules share ---------------------------------------------------------------------------


def create(wire: Wire, topic: str, partitions: int = 1, **configs: str) -> None:
    rows = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    row = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": rows}
    reply = wire.call(19, 5, {"topics": [row], "timeout": 10_000, "validate_only": False})
    assert reply.topics[0].error_code == 0, reply


def produce(wire: Wire, topic: str, values: list[bytes], partition: int = 0, acks: int = -1):
    from odradek.batches.encode import encode_batch
    from odradek.core.effects import SimpleRecord

    data = encode_batch([SimpleRecord(b"k", value) for value in values], now_ms=int(time.time() * 1000))
    part = {"index": partition, "records": data}
    message = {"transactional_id": None, "acks": acks, "timeout": 1000,
               "topic_data": [{"name": topic, "partition_data": [part]}]}  # fmt: skip
    if acks == 0:
        return wire.send(0, 9, message)
    return wire.call(0, 9, message).responses[0].partition_responses[0]


def fetch(topic: str, offset: int = 0, *, max_wait_ms: int, min_bytes: int = 1, session=(0, -1), partition: int = 0):
    part = {"partition": partition, "current_leader_epoch": -1, "fetch_offset": offset, "log_start_offset": -1,
            "partition_max_bytes": 1 << 20}  # fmt: skip
    return {"replica_id": -1, "max_wait": max_wait_ms, "min_bytes": min_bytes, "max_bytes": 50 << 20,
            "isolation_level": 0, "session_id": session[0], "session_epoch": session[1],
            "topics": [{"topic": topic, "partitions": [part]}] if topic else [], "forgotten_topics_data": [],
            "rack_id": ""}  # fmt: skip


def resident_kib(running: RunningBroker) -> int:
    status = Path(f"/proc/{running.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_connections_leave_descriptors_to_the_logs(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    """A log that cannot open its next segment goes offline for good. So the broker refuses new connections first."""
    running = own_broker(socket_listen_backlog_size="1000")
    host, _, port = running.bootstrap.rpartition(":")
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (400, 400))
    with Wire(running.bootstrap) as wire, ExitStack() as idle:
        create(wire, topic, segment_bytes=str(1 << 20))
        produce(wire, topic, [b"x" * 600_000])
        others = [idle.enter_context(socket.create_connection((host, int(port)), timeout=30)) for _ in range(400)]
        with suppress(ConnectionResetError):
            assert others[-1].recv(1) == b"", "the connection is closed at once"
        for _ in range(5):  # each record begins a segment
            assert produce(wire, topic, [b"x" * 600_000]).error_code == 0
        asked = fetch(topic, max_wait_ms=0)
        assert len(bytes(wire.call(1, 11, asked).responses[0].partitions[0].records)) > 600_000

    def is_welcome() -> bool:
        with suppress(ConnectionError), Wire(running.bootstrap) as wire:
            return bool(produce(wire, topic, [b"y"]).error_code == 0)
        return False

    eventually(is_welcome, what="the other connections are closed")


def test_acks_0_gets_no_reply_and_failures_close_the_connection(bootstrap: str, topic: str) -> None:
    with Wire(bootstrap) as wire:
        create(wire, topic)
        produce(wire, topic, [b"a"], acks=0)
        correlation_id = wire.send(18, 0, {})
        # A Produce request with acks=0 has no reply, so the next reply belongs to the request after it.
        wire.receive(18, 0, correlation_id)
        produce(wire, unique("nowhere"), [b"a"], acks=0)
        with pytest.raises(ConnectionError):
            wire.versions()
