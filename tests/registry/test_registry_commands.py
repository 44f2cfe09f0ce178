"""``odradek consume`` and ``odradek produce`` with a schema registry."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry_calls import register
from support.brokers import unique

import odradek
from odradek.cli.main import run
from odradek.core.errors import ConfigError
from odradek.registry.client import RegistryClient, RegistryRefusal, RegistryUnavailable

Start = Callable[..., odradek.SchemaRegistry]
ORDERS = [{"id": 1, "name": "é"}, {"id": -2, "name": None}]
FILES = {
    "order.avsc": json.dumps({"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}]}),
    "order.json": '{"type":"object","properties":{"id":{"type":"integer"}}}',
    "order.proto": 'syntax = "proto3"; message Order { int64 id = 1; optional string name = 2; }',
}  # fmt: skip


class Commands:
    """Runs commands of odradek in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._patch = capsys, patch

    def __call__(self, *arguments: str, given: str = "", code: int = 0) -> tuple[str, str]:
        self._capsys.readouterr()
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert run([*arguments]) == code
        out, err = self._capsys.readouterr()
        return out, err


@pytest.fixture
def odradek_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capsys, monkeypatch)


def new_topic(bootstrap: str) -> str:
    """A topic of one partition, in which records keep their order."""
    name = unique("orders")
    with odradek.Admin(bootstrap) as admin:
        admin.create_topics([odradek.client.NewTopic(name, 1, 1)])
    return name


def lines(values: list[Any]) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


@pytest.mark.parametrize("name", FILES)
def test_what_is_produced_is_consumed(
    name: str, registry: odradek.SchemaRegistry, bootstrap: str, odradek_command: Commands, tmp_path: Path
) -> None:
    topic, file = new_topic(bootstrap), tmp_path / name
    file.write_text(FILES[name])
    to = ("-b", bootstrap, "--schema-registry", registry.url)
    odradek_command("produce", topic, "--value-schema", str(file), *to, given=lines(ORDERS))
    odradek_command("produce", topic, *to, given=lines(ORDERS[:1]))
    registry.faults.clear()
    expected = [*ORDERS, ORDERS[0]]
    if name == "order.proto":  # a field without a value is left out
        expected = [{key: value for key, value in one.items() if value is not None} for one in expected]
    out, _ = odradek_command("consume", topic, *to)
    assert [json.loads(line) for line in out.splitlines()] == expected
    out, _ = odradek_command("consume", topic, "--json", *to)
    assert [json.loads(line)["value"] for line in out.splitlines()] == expected
    assert [one.path for one in registry.faults.calls] == ["/schemas/ids/1"] * 2, "one request for each id"
    again = new_topic(bootstrap)
    odradek_command("produce", again, "--format", "json", "--value-schema", str(file), *to, given=out)
    out, _ = odradek_command("consume", again, *to)
    assert [json.loads(line) for line in out.splitlines()] == expected


def test_confluents_deserializer_reads_what_produce_writes(
    registry: odradek.SchemaRegistry, bootstrap: str, odradek_command: Commands, tmp_path: Path
) -> None:
    pytest.importorskip("confluent_kafka.schema_registry", reason="needs confluent-kafka[schemaregistry]")
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    topic, file = new_topic(bootstrap), tmp_path / "order.avsc"
    file.write_text(FILES["order.avsc"])
    to = ("-b", bootstrap, "--schema-registry", registry.url)
    odradek_command("produce", topic, "--value-schema", str(file), *to, given=lines(ORDERS))
    with (
        odradek.Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
        SchemaRegistryClient(registry.client_settings) as client,
    ):
        consumer.assign([(topic, 0)])
        read = AvroDeserializer(client)
        values: list[Any] = []
        while len(values) < 2:
            values += [one.value for one in consumer.poll(5).records()]
        context = SerializationContext(topic, MessageField.VALUE)
        assert [read(value, context) for value in values] == ORDERS


def test_a_value_that_cannot_be_decoded_ends_the_command_in_one_line(
    registries: Start, bootstrap: str, odradek_command: Commands
) -> None:
    registry = registries()
    topic = new_topic(bootstrap)
    assert register(registry.url, "s", '"int"') == 1
    with odradek.Producer(bootstrap) as producer:
        for value in (b"\0\0\0\0\1\2", None, b"text", b"\0\0\0\0\1\4", b"\0\0\0\0\x09\2", b"\0\0\0\0\1"):
            producer.send(topic, value, partition=0)
    to = ("-b", bootstrap, "--schema-registry", registry.url)
    for start, shown, reason in (
        (
            "0",
            "1\nnull\n",
            f"offset 2 of {topic}-0 cannot be decoded: it has no schema id (it begins with 74",
        ),
        ("3", "2\n", f"the registry {registry.url} has no schema 9: give the registry of its producer"),
        ("5", "", "it is no value of schema 1: the value ends too early"),
    ):
        out, err = odradek_command("consume", f"{topic}:0", "--from", start, *to, code=1)
        assert out == shown
        assert reason in err
        assert f"--from {int(start) + shown.count(chr(10)) + 1}" in err
        assert err.count("\n") == 1
    registry.faults.error(503, times=None, message="busy")
    _, err = odradek_command("consume", topic, *to, code=1)
    assert f"schema registry {registry.url} fails with 503: busy" in err
    registry.stop()
    _, err = odradek_command("consume", topic, *to, code=1)
    away = f"schema registry {registry.url} cannot be reached: Connection refused. When it answers, "
    assert f"{away}read on with: odradek consume {topic}:0 --from 0 " in err
    _, err = odradek_command("consume", topic, "--group", topic, "--from", "earliest", *to, code=1)
    assert f"{away}run the same command\n" in err


def test_wrong_options_and_values_give_one_line(
    registry: odradek.SchemaRegistry, bootstrap: str, odradek_command: Commands, tmp_path: Path
) -> None:
    topic, to = new_topic(bootstrap), ("-b", bootstrap, "--schema-registry", registry.url)
    schema = tmp_path / "order.avsc"
    schema.write_text(FILES["order.avsc"])
    broken = tmp_path / "broken.avsc"
    broken.write_text('{"type":"record"}')
    reals = tmp_path / "reals.avsc"
    reals.write_text('{"type":"record","name":"R","fields":[{"name":"f","type":"float"}]}')
    with_schema = (*to, "--value-schema", str(schema))
    for command, given, reason in (
        (("produce", topic, *to), "", f"Subject '{topic}-value' not found: add --value-schema FILE"),
        (("produce", f"{topic}-other", *to), "", f"Subject '{topic}-other-value' not found: add --value-schema FILE"),
        (
            ("produce", topic, *to, "--subject", "reals", "--value-schema", str(reals)),
            '{"f":3.41e38}\n',
            "record 1: f: '3.41e+38' is no float",
        ),
        (
            ("produce", topic, *to, "--subject", "reals", "--value-schema", str(reals)),
            '{"f":1e400}\n',
            "record 1: f: 'inf' is no float",
        ),
        (("produce", topic, *to, "--value-schema", "x.txt"), "", "expected a file .avsc"),
        (("produce", topic, *to, "--value-schema", str(tmp_path / "no.avsc")), "", "No such file"),
        (("produce", topic, *to, "--value-schema", str(broken)), "", "No name in schema"),
        (("produce", topic, *with_schema), "{}\n", "record 1: id is missing"),
        (("produce", topic, *with_schema), '{"id":1}\n{"id":"x"}\n', "record 2: id: 'x' is no long"),
        (("produce", topic, *with_schema), "text\n", "record 1: 'text' is no JSON, which --schema-registry needs"),
        (("produce", topic, "--subject", "s", "-b", bootstrap), "", "--subject s: it needs --schema-registry URL"),
        (("consume", topic, *to, "--grep", "x"), "", "--grep compares the encoded bytes"),
        (("consume", topic, "--schema-registry", "x:1", "-b", bootstrap), "", "expected http://HOST:PORT"),
    ):
        _, err = odradek_command(*command, given=given, code=2)
        assert reason in err, command
        assert err.count("\n") == 1
    with odradek.Admin(bootstrap) as admin:
        assert f"{topic}-other" not in admin.topics(), "a missing schema creates no topic"


def test_logins_and_tls_are_in_the_properties_file(
    registries: Start, bootstrap: str, odradek_command: Commands, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography", reason="needs odradek[security]")
    registry = registries(user="ann:se:cret", tls=True)
    topic, schema, file = new_topic(bootstrap), tmp_path / "order.avsc", tmp_path / "client.properties"
    schema.write_text(FILES["order.avsc"])
    authority = registry.client_settings["ssl.ca.location"]
    file.write_text(f"schema.registry.basic.auth.user.info=ann:se:cret\nschema.registry.ssl.ca.location={authority}\n")
    to = ("-b", bootstrap, "--schema-registry", registry.url, "--command-config", str(file))
    odradek_command("produce", topic, "--value-schema", str(schema), *to, given=lines(ORDERS))
    out, err = odradek_command("consume", topic, *to)
    assert len(out.splitlines()) == 2
    assert err == ""
    file.write_text(f"schema.registry.ssl.ca.location={authority}\n")
    _, err = odradek_command("consume", topic, *to, code=1)
    assert "refuses the login: check schema.registry.basic.auth.user.info" in err
    assert "cret" not in err


def test_the_client_by_itself(registries: Start) -> None:
    registry = registries(token="s3cret")
    with pytest.raises(RegistryRefusal, match="refuses the login"):
        RegistryClient(registry.url).latest("s")
    client = RegistryClient(registry.url, {"bearer.auth.token": "s3cret"})
    assert client.register("s", '"int"', "AVRO").id == 1
    assert client.latest("s").id == client.latest("s").id == 1
    assert client.schema(1).canonical == '"int"'
    with pytest.raises(RegistryRefusal, match="Schema 9 not found"):
        client.schema(9)
    registry.stop()
    assert client.schema(1).canonical == '"int"', "known ids go on"
    with pytest.raises(RegistryUnavailable, match="cannot be reached") as away:
        client.schema(2)
    assert away.value.retriable
    for url, settings in (
        ("ftp://x", {}), ("http://u:p@x:1", {"bearer.auth.token": "t"}), ("http://x:1", {"what": "1"}),
        ("http://x:99999", {}),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as wrong:
            RegistryClient(url, settings)
        assert "u:p" not in str(wrong.value)
