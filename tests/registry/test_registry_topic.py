"""The registry and its topic: restarts, several registries, a broker that is away, topics that are none."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry_calls import call, register
from support.brokers import unique

import odradek
from odradek.client import PartitionReader, TopicPartition
from odradek.client.config import as_config
from odradek.core.ids import LATEST

Start = Callable[..., odradek.SchemaRegistry]


def schema(number: int) -> str:
    return json.dumps({"type": "fixed", "name": f"F{number}", "size": number + 1})


def rows(bootstrap: str, topic: str) -> list[tuple[str, Any]]:
    """The keys and values of a topic."""
    tp = TopicPartition(topic, 0)
    with odradek.Admin(bootstrap) as admin:
        end = admin.list_offsets({tp: LATEST})[tp].offset
    return [
        ((row.key or b"").decode(), None if row.value is None else json.loads(row.value))
        for row in PartitionReader(as_config(bootstrap), tp).read_rows(0, end)
    ]


def test_the_topic_is_that_of_confluents_registry(registries: Start, bootstrap: str) -> None:
    topic = unique("schemas")
    registry = registries(topic=topic)
    assert register(registry.url, "s", '"int"') == 1
    assert call(registry.url, "/subjects/s", "DELETE")[0] == 200
    assert rows(bootstrap, topic) == [
        ('{"keytype":"NOOP","magic":0}', {"newestIds": {}}),
        (
            '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            {"subject": "s", "version": 1, "id": 1, "schemaType": "AVRO", "schema": '"int"', "deleted": False},
        ),
        ('{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', {"subject": "s", "version": 1}),
    ]
    with odradek.Admin(bootstrap) as admin:
        settings = {one.name: one.value for one in admin.describe_configs("topic", [topic])[topic]}
        assert settings["cleanup.policy"] == "compact"
        assert len(admin.describe_topics([topic])[topic].partitions) == 1


def test_records_of_confluents_registry_are_read(registries: Start, bootstrap: str) -> None:
    """Also those of older versions: without schemaType, with magic 0; a record of another program is left out."""
    topic = unique("schemas")
    with odradek.Admin(bootstrap) as admin:
        admin.create_topics([odradek.client.NewTopic(topic, 1, 1, {"cleanup.policy": "compact"})])
    given: list[tuple[str, str | None]] = [
        ('{"keytype":"NOOP","magic":0}', None),
        ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"NONE"}'),
        ('{"keytype":"SCHEMA","subject":"s","version":1,"magic":0}',
         '{"subject":"s","version":1,"id":21,"schema":"\\"int\\"","deleted":false}'),
        ("not a key", "x"),
        ('{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
         '{"subject":"s","version":2,"id":41,"md5":null,"schemaType":"JSON","schema":"{\\"type\\":\\"null\\"}","deleted":true}'),
        ('{"keytype":"SCHEMA","subject":"t","version":1,"magic":1}',
         '{"subject":"t","version":1,"id":21,"schema":"\\"long\\"","deleted":false}'),
    ]  # fmt: skip
    with odradek.Producer(bootstrap) as producer:
        for key, value in given:
            producer.send(topic, None if value is None else value.encode(), key=key.encode())
    registry = registries(topic=topic)
    assert call(registry.url, "/subjects?deleted=true")[1] == ["s"], "an id of another schema counts once"
    assert call(registry.url, "/config")[1] == {"compatibilityLevel": "NONE"}
    assert call(registry.url, "/subjects/s/versions?deleted=true")[1] == [1, 2]
    assert call(registry.url, "/schemas/ids/41")[1]["schemaType"] == "JSON"
    assert register(registry.url, "s", '"string"') == 42


def test_two_registries_never_give_one_id_to_two_schemas(registries: Start) -> None:
    """Four threads register at two registries at the same time, partly the same schemas."""
    made = [registries(), registries()]
    ids: list[tuple[int, int]] = []
    failures: list[Any] = []

    def work(at: int) -> None:
        for number in range(at * 4, at * 4 + 10):
            found = register(made[at % 2].url, f"subject-{at}-{number}", schema(number))
            if isinstance(found, int):
                ids.append((found, number))
            else:
                failures.append(found)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures
    assert len(ids) == 40
    assert len({schema_id for schema_id, _ in ids}) == len({number for _, number in ids}) == len(set(ids))
    for registry in made:
        for schema_id, number in set(ids):
            assert json.loads(call(registry.url, f"/schemas/ids/{schema_id}")[1]["schema"])["size"] == number + 1


def test_a_registry_that_starts_again_has_the_same_schemas(registries: Start) -> None:
    registry = registries()
    assert register(registry.url, "s", schema(1)) == 1
    registry.stop()
    with pytest.raises(OSError, match=r"refused|reset"):
        call(registry.url, "/subjects")
    registry.start()
    assert call(registry.url, "/subjects/s/versions/1")[1]["id"] == 1
    assert register(registries().url, "t", schema(2)) == 2
    assert register(registry.url, "u", schema(3)) == 3


def test_an_id_is_never_given_again(registries: Start, bootstrap: str) -> None:
    """After the schema has gone, and after a compaction has removed its records."""
    topic = unique("schemas")
    registry = registries(topic=topic)
    for number in range(2):
        assert register(registry.url, f"s{number}", schema(number)) == number + 1
    for path in ("/subjects/s1", "/subjects/s1?permanent=true"):
        call(registry.url, path, "DELETE")
    left = [row for row in rows(bootstrap, topic) if "s1" not in row[0]]
    newest = dict(left)
    compacted = unique("schemas")
    with odradek.Admin(bootstrap) as admin:
        admin.create_topics([odradek.client.NewTopic(compacted, 1, 1, {"cleanup.policy": "compact"})])
    with odradek.Producer(bootstrap) as producer:
        for key, value in newest.items():
            producer.send(compacted, json.dumps(value).encode(), key=key.encode())
    assert register(registries(topic=compacted).url, "new", schema(9)) == 3


def test_a_broker_that_is_away_leaves_what_is_known(tmp_path: Path) -> None:
    with (
        odradek.Broker() as broker,
        odradek.SchemaRegistry({"bootstrap.servers": broker.bootstrap_servers}) as registry,
    ):
        assert register(registry.url, "s", schema(1)) == 1
        broker.stop()
        assert call(registry.url, "/schemas/ids/1")[0] == 200
        broker.start()
        assert register(registry.url, "s2", schema(2)) == 2
    with odradek.SchemaRegistry("127.0.0.1:1") as alone:
        status, found = call(alone.url, "/subjects")
        assert (status, found["error_code"]) == (500, 50001)
        assert "127.0.0.1:1" in found["message"]


def test_topics_that_no_registry_can_use(registries: Start, bootstrap: str) -> None:
    for partitions, policy, reason in ((2, "compact", "2 partitions"), (1, "delete", "not compacted")):
        topic = unique("schemas")
        with odradek.Admin(bootstrap) as admin:
            admin.create_topics([odradek.client.NewTopic(topic, partitions, 1, {"cleanup.policy": policy})])
        status, found = call(registries(topic=topic).url, "/subjects")
        assert status == 500
        assert reason in found["message"]


class Served:
    """``odradek serve --schema-registry``."""

    def __init__(self, folder: Path, *options: str, code: int | None = None) -> None:
        command = [sys.executable, "-m", "odradek", "serve", "--data-dir", str(folder), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if code is None:
            assert self.process.stdout.readline().startswith("ready 127.0.0.1:")
            found = re.fullmatch(r"schema registry (http://127\.0\.0\.1:\d+)\n", self.process.stdout.readline())
            assert found is not None
            self.url = found[1]
        else:
            self.error = self.process.communicate(timeout=120)[1]
            assert self.process.returncode == code

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=120)
        return self.process.returncode


def test_serve_keeps_schemas_over_kill_and_stop(tmp_path: Path) -> None:
    for number, how in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        served = Served(tmp_path / "data", "--schema-registry", "127.0.0.1:0")
        assert len(call(served.url, "/subjects")[1]) == number
        assert register(served.url, f"s{number}", schema(number)) == number + 1
        assert served.end(how) == (0 if how == signal.SIGTERM else -signal.SIGKILL)


def test_wrong_addresses_of_serve_give_one_line(tmp_path: Path, registry: odradek.SchemaRegistry) -> None:
    for options, message in (
        (["--schema-registry", "nowhere"], "--schema-registry takes HOST:PORT"),
        (["--schema-registry", "127.0.0.1:0", "--brokers", "2"], "leave --brokers out"),
        (["--schema-registry", f"127.0.0.1:{registry.port}"], "choose another address"),
    ):
        error = Served(tmp_path / "data", *options, code=2).error
        assert message in error
        assert error.count("\n") == 1
