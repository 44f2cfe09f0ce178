"""Client quotas over the wire (KIP-219): a client above its quota gets a throttle time and is muted."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, ThrottleEvent
from support.brokers import RunningBroker, Wire, eventually, unique
from test_server_frames import connect, create, fetch, produce

from odradek.wire import frames
from odradek.wire.schemas import milliseconds


@pytest.fixture
def wire(bootstrap: str):
    with Wire(bootstrap) as connection:
        yield connection


def set_quota(wire: Wire, entity: dict[str, str | None], **limits: float | None) -> int:
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in limits.items()]
    rows = [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in entity.items()]
    reply = wire.call(49, 1, {"entries": [{"entity": rows, "ops": ops}], "validate_only": False})
    return int(reply.entries[0].error_code)


def kept(wire: Wire) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    reply = wire.call(48, 1, {"components": [], "strict": False})
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {v.key: v.value for v in entry.values}
        for entry in reply.entries
    }


def took_ms(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return (time.monotonic() - started) * 1000


def written(wire: Wire, topic: str, size: int) -> int:
    """Produces one record with a value of ``size`` bytes. Returns the throttle time of the reply in ms."""
    from odradek.batches.encode import encode_batch
    from odradek.core.effects import SimpleRecord

    data = encode_batch([SimpleRecord(b"k", b"v" * size)], now_ms=int(time.time() * 1000))
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    message = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}
    reply = wire.call(0, 9, message)
    assert reply.responses[0].partition_responses[0].error_code == 0
    return milliseconds(reply.throttle_time)


def test_a_producer_over_its_rate_is_served_and_throttled(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic)
    client = unique("client")
    assert set_quota(wire, {"client_id": client}, producer_byte_rate=10_000) == 0
    with Wire(bootstrap, client_id=client) as limited, Wire(bootstrap, client_id=client) as twin:
        assert written(limited, topic, 1000) == 0
        began = time.monotonic()
        throttle_ms = written(limited, topic, 144_000)
        assert 3000 < throttle_ms < 6000
        assert took_ms(twin.versions) < throttle_ms / 2, "another connection is not muted until it writes"
        limited.versions()
        assert (time.monotonic() - began) * 1000 >= throttle_ms
        assert took_ms(limited.versions) < throttle_ms / 2
        # A client with another name is not affected.
        assert written(wire, topic, 100_000) == 0
    assert set_quota(wire, {"client_id": client}, producer_byte_rate=None) == 0
    with Wire(bootstrap, client_id=client) as free:
        assert written(free, topic, 104_000) == 0


def test_requests_sent_while_muted_are_answered_later_in_order(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic)
    client = unique("client")
    set_quota(wire, {"client_id": client}, producer_byte_rate=10_000)
    with Wire(bootstrap, client_id=client) as limited:
        assert written(limited, topic, 105_000) > 300
        sent = [limited.send(18, 0, {}) for _ in range(5)]
        assert took_ms(lambda: [limited.receive(18, 0, one) for one in sent]) > 200
    set_quota(wire, {"client_id": client}, producer_byte_rate=None)


def test_a_consumer_over_its_rate_gets_no_records_until_the_throttle_time_ends(
    bootstrap: str, wire: Wire, topic: str
) -> None:
    create(wire, topic)
    for _ in range(40):
        produce(wire, topic, [b"x" * 1000])
    client = unique("client")
    set_quota(wire, {"client_id": client}, consumer_byte_rate=2000)
    with Wire(bootstrap, client_id=client) as limited:
        some = {"max_bytes": 15_000}
        first = limited.call(1, 11, fetch(topic, max_wait_ms=0) | some)
        assert 0 < len(first.responses[0].partitions[0].records) <= 15_000
        second = limited.call(1, 11, fetch(topic, 13, max_wait_ms=0) | some)
        assert milliseconds(second.throttle_time) > 1000
        assert second.responses == ()
    full = wire.call(1, 11, fetch(topic, max_wait_ms=0))
    assert len(full.responses[0].partitions[0].records) > 40_000
    set_quota(wire, {"client_id": client}, consumer_byte_rate=None)


def test_a_client_with_too_much_request_time_is_throttled(bootstrap: str, wire: Wire) -> None:
    client = unique("client")
    set_quota(wire, {"client_id": client}, request_percentage=0.0001)
    with Wire(bootstrap, client_id=client) as limited:
        throttle_ms = [milliseconds(limited.call(3, 9, METADATA).throttle_time) for _ in range(2)]
    assert max(throttle_ms) > 0
    assert max(throttle_ms) <= 1000
    set_quota(wire, {"client_id": client}, request_percentage=None)


METADATA = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False}  # fmt: skip


def test_creating_and_deleting_partitions_is_limited_by_a_rate(bootstrap: str, wire: Wire, topic: str) -> None:
    client = unique("client")
    set_quota(wire, {"client_id": client}, controller_mutation_rate=1.0)

    def make(connection: Wire, name: str, count: int, version: int = 7):
        row = {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        return connection.call(19, version, {"topics": [row], "timeout": 1000, "validate_only": False})

    with Wire(bootstrap, client_id=client) as maker:
        assert make(maker, topic, 13).topics[0].error_code == 0
        refused = make(maker, unique("topic"), 1)
        assert refused.topics[0].error_code == 89
        assert 0 < milliseconds(refused.throttle_time) <= 2000
    with Wire(bootstrap, client_id=client) as old:  # version 5 has no such error, so the request is served
        served = make(old, unique("topic"), 1, version=5)
        assert served.topics[0].error_code == 0
        assert milliseconds(served.throttle_time) > 0
    rows = {"topics": [{"name": topic, "topic_id": None}], "timeout": 1000}
    with Wire(bootstrap, client_id=client) as remover:
        assert remover.call(20, 6, rows).responses[0].error_code == 89
    more = {"topics": [{"name": topic, "count": 20, "assignments": None}], "timeout": 1000, "validate_only": False}
    with Wire(bootstrap, client_id=client) as maker:
        assert maker.call(37, 3, more).results[0].error_code == 89
    set_quota(wire, {"client_id": client}, controller_mutation_rate=None)
    assert wire.call(20, 6, rows).responses[0].error_code == 0


def test_an_address_with_too_many_new_connections_is_refused(own_broker: Callable[..., RunningBroker]) -> None:
    # Three connections at once are allowed. The fifth comes within a second, even on a busy machine, and is refused.
    running = own_broker(**{"quota.window.num": "2", "quota.window.size.seconds": "3"})
    with Wire(running.bootstrap) as wire:
        assert set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=1) == 0
        made = [connect(running.bootstrap) for _ in range(5)]
        made[0].sendall(frames.encode_request(18, 0, 1, "c", {}))
        assert made[0].recv(4)
        last = made[-1]
        last.sendall(frames.encode_request(18, 0, 1, "c", {}))
        last.settimeout(10)
        try:
            assert last.recv(4) == b""
        except ConnectionResetError:
            pass
        for connection in made:
            connection.close()
        assert wire.versions()
        assert set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=None) == 0
    with Wire(running.bootstrap) as wire:
        assert wire.versions()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_quotas_survive_a_restart(own_broker: Callable[..., RunningBroker], topic: str, how: str) -> None:
    running = own_broker()
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        assert set_quota(wire, {"client_id": "me", "user": None}, producer_byte_rate=1000, request_percentage=2.5) == 0
        assert set_quota(wire, {"user": "you"}, consumer_byte_rate=5) == 0
        assert set_quota(wire, {"user": "you"}, consumer_byte_rate=None) == 0
    getattr(running, how)()
    running.start()
    with Wire(running.bootstrap, client_id="me") as wire:
        entity = (("client-id", "me"), ("user", None))
        assert kept(wire) == {entity: {"producer_byte_rate": 1000.0, "request_percentage": 2.5}}
        assert written(wire, topic, 20_000) > 0


def test_librdkafka_gets_the_throttle_time(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic)
    client = unique("client")
    set_quota(wire, {"client_id": client}, producer_byte_rate=20_000)
    heard: list[ThrottleEvent] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": client, "linger.ms": 0, "throttle_cb": heard.append}
    )
    for _ in range(3):
        producer.produce(topic, b"x" * 90_000)
        assert producer.flush(20) == 0
    eventually(lambda: producer.poll(0.05) is not None and heard)
    assert 0 < heard[0].throttle_time < 10
    set_quota(wire, {"client_id": client}, producer_byte_rate=None)


def test_a_muted_connection_can_be_closed(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic)
    client = unique("client")
    set_quota(wire, {"client_id": client}, producer_byte_rate=1)
    limited = Wire(bootstrap, client_id=client)
    assert written(limited, topic, 1000) > 10_000
    limited.socket.shutdown(socket.SHUT_RDWR)
    limited.socket.close()
    assert wire.versions()
    set_quota(wire, {"client_id": client}, producer_byte_rate=None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1000.5, "producer_byte_rate cannot be a fractional value."),
        (1000.0000001, None),
        (1e308, "Proposed value for producer_byte_rate is too large for a LONG."),
        (0.0, "Quota producer_byte_rate must be greater than 0"),
        (-1.0, "Quota producer_byte_rate must be greater than 0"),
    ],
)
def test_limits_are_integers_apart_from_rounding_errors(wire: Wire, value: float, message: str | None) -> None:
    """The messages of Apache Kafka 4.3."""
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": unique("client")}],
        "ops": [{"key": "producer_byte_rate", "value": value, "remove": False}],
    }
    (reply,) = wire.call(49, 1, {"entries": [entry], "validate_only": True}).entries
    assert (reply.error_code, reply.error_message) == (42 if message else 0, message)
