"""Clients of the registry: confluent-kafka's serializers, TLS and logins, and the faults of a test."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from registry_calls import call, register

import odradek
from odradek.core.errors import ConfigError
from odradek.schemas.protobuf.schema import parse_protobuf

pytest.importorskip("confluent_kafka.schema_registry", reason="needs confluent-kafka[schemaregistry]")
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
)
from confluent_kafka.serialization import MessageField, SerializationContext

pytest_plugins = ["pytester"]

Start = Callable[..., odradek.SchemaRegistry]
ORDER = """
syntax = "proto3"; package shop;
message Order { message Line { string sku = 1; int32 count = 2; } enum State { NEW = 0; PAID = 1; }
  int64 id = 1; repeated Line lines = 2; State state = 3; map<string, double> prices = 4;
  oneof pay { string card = 5; bool cash = 6; } optional bytes raw = 7; Inner inner = 8; }
message Inner { repeated sint32 numbers = 1; fixed64 wide = 2; float ratio = 3; }
"""


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.fixture
def client(registry: odradek.SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient(registry.client_settings) as made:
        yield made


def test_avro_goes_through_confluents_serializer(
    registry: odradek.SchemaRegistry, client: SchemaRegistryClient
) -> None:
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

    given = json.dumps({"type": "record", "name": "U", "fields": [{"name": "a", "type": ["null", "int"]}]})
    serialize = AvroSerializer(client, given)
    values = [serialize({"a": number}, context("t")) for number in range(5)]
    assert {value[:5] for value in values} == {b"\0\0\0\0\1"}
    with SchemaRegistryClient(registry.client_settings) as other:
        read = AvroDeserializer(other)
        assert [read(value, context("t"))["a"] for value in values] == [0, 1, 2, 3, 4]
    paths = [one.path for one in registry.faults.calls]
    assert paths.count("/schemas/ids/1") == 1


def test_json_goes_through_confluents_serializer(client: SchemaRegistryClient) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

    given = json.dumps({"title": "T", "type": "object", "properties": {"a": {"type": "integer"}}})
    value = JSONSerializer(given, client)({"a": 1}, context("j"))
    assert JSONDeserializer(given, schema_registry_client=client)(value, context("j")) == {"a": 1}


def test_protobuf_goes_through_confluents_serializer(
    registry: odradek.SchemaRegistry, client: SchemaRegistryClient
) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    data = base64.b64decode(parse_protobuf(ORDER, {}, is_new=True).formatted("serialized"))
    file = descriptor_pb2.FileDescriptorProto.FromString(data)
    file.name = "shop.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order_class: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    order = order_class(id=5, state=1, prices={"a": 1.5}, card="x", raw=b"\x00\xff")
    order.lines.add(sku="s", count=-3)
    order.inner.numbers.extend([-1, 5])
    value = ProtobufSerializer(order_class, client)(order, context("p"))
    assert ProtobufDeserializer(order_class, schema_registry_client=client)(value, context("p")) == order
    with SchemaRegistryClient(registry.client_settings) as other:
        assert ProtobufDeserializer(order_class, schema_registry_client=other)(value, context("p")) == order
        stored = other.get_latest_version("p-value").schema
    assert stored.schema_type == "PROTOBUF"
    assert "message Order {" in stored.schema_str


def test_confluents_client_works_with_subjects(client: SchemaRegistryClient) -> None:
    part = Schema('{"type":"record","name":"Part","fields":[]}', "AVRO")
    assert client.register_schema("part", part) == 1
    whole = Schema(
        '{"type":"record","name":"Whole","fields":[{"name":"p","type":"Part"}]}', "AVRO",
        references=[SchemaReference("Part", "part", 1)],
    )  # fmt: skip
    assert client.register_schema("whole", whole) == 2
    assert client.get_latest_version("whole").schema.references == [SchemaReference("Part", "part", 1)]
    assert client.lookup_schema("whole", whole).version == 1
    assert client.get_subjects() == ["part", "whole"]
    assert client.test_compatibility("part", Schema('"int"', "AVRO")) is False
    assert client.set_compatibility("part", "NONE")["compatibility"] == "NONE"
    assert client.get_compatibility("part") == "NONE"
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("part")
    assert refused.value.error_code == 42206
    with pytest.raises(SchemaRegistryError) as unknown:
        client.get_schema(99)
    assert (unknown.value.http_status_code, unknown.value.error_code) == (404, 40403)


def test_tls_and_logins(registries: Start, bootstrap: str) -> None:
    pytest.importorskip("cryptography", reason="needs odradek[security]")
    registry = registries(user="ann:se:cret", tls=True)
    assert registry.url.startswith("https://")
    with SchemaRegistryClient(registry.client_settings) as client:
        assert client.register_schema("s", Schema('"int"', "AVRO")) == 1
    with SchemaRegistryClient(registry.client_settings | {"basic.auth.user.info": "ann:other"}) as stranger:
        with pytest.raises(SchemaRegistryError) as refused:
            stranger.get_subjects()
        assert refused.value.http_status_code == 401
    with_token = registries(token="s3cret")
    assert call(with_token.url, "/subjects")[0] == 401
    assert call(with_token.url, "/subjects", Authorization="Bearer s3cret") == (200, ["s"])
    with SchemaRegistryClient(with_token.client_settings) as client:
        assert client.get_subjects() == ["s"]
    with pytest.raises(ConfigError, match="expected NAME:PASSWORD"):
        odradek.SchemaRegistry(bootstrap, user="ann")


def test_faults(registry: odradek.SchemaRegistry) -> None:
    url, faults = registry.url, registry.faults
    assert register(url, "s", '"int"') == 1
    faults.clear()
    first = faults.error(503, path="/schemas", times=2)
    second = faults.error(500, path="/schemas/ids/1", code=50001, message="the store is away")
    assert [call(url, "/schemas/ids/1")[0] for _ in range(2)] == [503, 503]
    assert call(url, "/schemas/ids/1") == (500, {"error_code": 50001, "message": "the store is away"})
    assert call(url, "/schemas/ids/1")[0] == 200
    assert faults.fired == [first, first, second]
    assert [one.path for one in faults.calls] == ["/schemas/ids/1"] * 4
    faults.disconnect(method="POST")
    with pytest.raises(OSError, match=r"closed|reset"):
        register(url, "t", '"int"')
    assert register(url, "t", '"int"') == 1
    faults.delay(0.3, path="/subjects", times=None)
    begun = time.monotonic()
    assert call(url, "/subjects")[1] == ["s", "t"]
    assert time.monotonic() - begun >= 0.3
    faults.clear()
    assert faults.fired == []


def test_the_fixture(pytester: pytest.Pytester) -> None:
    """The plugin ends the faults after each test, and starts a registry again that a test has stopped."""
    pytester.makepyfile(
        """
        import json, urllib.request

        def ids(registry, subject):
            body = json.dumps({"schema": '"int"'}).encode()
            asked = urllib.request.Request(registry.url + f"/subjects/{subject}/versions", body, method="POST")
            with urllib.request.urlopen(asked) as reply:
                return json.loads(reply.read())["id"]

        def test_one(odradek_schema_registry, odradek_broker):
            assert ids(odradek_schema_registry, "a") == 1
            odradek_schema_registry.faults.error(500, times=None)
            odradek_schema_registry.stop()

        def test_two(odradek_schema_registry):
            assert ids(odradek_schema_registry, "b") == 1
        """
    )
    pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=2)
