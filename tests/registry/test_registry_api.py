"""The HTTP API of the registry: paths, error codes, texts."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest
from registry_calls import call, register

import odradek

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
WIDER = RECORD | {"fields": [*RECORD["fields"], {"name": "b", "type": "string", "default": ""}]}
NARROW = RECORD | {"fields": [{"name": "a", "type": "string"}]}


def test_subjects_versions_and_ids(registry: odradek.SchemaRegistry) -> None:
    url = registry.url
    assert call(url, "/subjects") == (200, [])
    assert register(url, "a%2Fb-value", json.dumps(RECORD)) == 1
    assert register(url, "a%2Fb-value", json.dumps(RECORD)) == 1
    assert register(url, "a%2Fb-value", json.dumps(WIDER)) == 2
    assert register(url, "other", json.dumps(WIDER)) == 2
    assert call(url, "/subjects")[1] == ["a/b-value", "other"]
    assert call(url, "/subjects?subjectPrefix=a/")[1] == ["a/b-value"]
    assert call(url, "/subjects/a%2Fb-value/versions")[1] == [1, 2]
    latest = call(url, "/subjects/a%2Fb-value/versions/latest")[1]
    assert {name: latest[name] for name in ("subject", "version", "id", "schemaType", "deleted")} == {
        "subject": "a/b-value", "version": 2, "id": 2, "schemaType": "AVRO", "deleted": False,
    }  # fmt: skip
    assert json.loads(latest["schema"]) == WIDER
    assert call(url, "/subjects/a%2Fb-value/versions/1/schema")[1] == RECORD
    assert call(url, "/schemas/ids/2/schema")[1] == WIDER
    by_id = call(url, "/schemas/ids/2")[1]
    assert set(by_id) == {"schema", "schemaType", "guid", "ts", "deleted"}
    assert call(url, f"/schemas/guids/{by_id['guid']}")[1]["schema"] == by_id["schema"]
    assert call(url, f"/schemas/guids/{by_id['guid']}/ids")[1] == [{"context": ".", "id": 2}]
    assert call(url, "/schemas/ids/2?fetchMaxId=true&subject=other")[1]["maxId"] == 2
    assert call(url, "/schemas/ids/2/subjects")[1] == ["a/b-value", "other"]
    assert call(url, "/schemas/ids/2/versions")[1] == [
        {"subject": "a/b-value", "version": 2}, {"subject": "other", "version": 1},
    ]  # fmt: skip
    assert call(url, "/schemas/types")[1] == ["JSON", "PROTOBUF", "AVRO"]
    assert [one["id"] for one in call(url, "/schemas?latestOnly=true")[1]] == [2, 2]
    assert [one["id"] for one in call(url, "/schemas?limit=1&offset=1")[1]] == [2]
    found = call(url, "/subjects/other", "POST", {"schema": json.dumps(WIDER)})[1]
    assert (found["id"], found["version"]) == (2, 1)
    assert call(url, "/contexts") == (200, ["."])
    assert call(url, "/") == (200, {})
    assert call(url, "/v1/metadata/id")[1]["scope"]["clusters"]["kafka-cluster"]


ERRORS: list[tuple[str, str, Any, int, int]] = [
    ("GET", "/subjects/none/versions", None, 404, 40401),
    ("GET", "/subjects/none/versions/1", None, 404, 40401),
    ("GET", "/subjects/s/versions/7", None, 404, 40402),
    ("GET", "/subjects/s/versions/0", None, 422, 42202),
    ("GET", "/subjects/s/versions/first", None, 422, 42202),
    ("GET", "/schemas/ids/77", None, 404, 40403),
    ("GET", "/schemas/ids/x", None, 404, 404),
    ("GET", "/schemas/ids/77/versions", None, 404, 40403),
    ("GET", "/schemas/guids/x", None, 404, 40403),
    ("POST", "/subjects/none", {"schema": '"int"'}, 404, 40401),
    ("POST", "/subjects/s", {"schema": '"int"'}, 404, 40403),
    ("POST", "/subjects/s/versions", {"schema": json.dumps(NARROW)}, 409, 40901),
    ("POST", "/subjects/s/versions", {"schema": "no schema"}, 422, 42201),
    ("POST", "/subjects/s/versions", {"schema": '"int"', "schemaType": "XML"}, 422, 42201),
    ("POST", "/subjects/new/versions", {}, 422, 42201),
    ("POST", "/subjects/new/versions", {"schema": '"int"', "references": [{"name": "x"}]}, 422, 42201),
    *(
        ("POST", "/subjects/new/versions", {"schema": '"int"', name: value}, 422, 42201)
        for name, value in [
            ("references", 5),
            ("references", [{"name": "x", "subject": "s", "version": 1 << 40}]),
            ("metadata", "x"),
            ("metadata", {"tags": {"a": 5}}),
            ("ruleSet", [1]),
            ("ruleSet", {"domainRules": [5]}),
        ]
    ),
    ("POST", "/subjects/new/versions", {"schema": '"int"', "id": 4}, 422, 42205),
    ("POST", "/subjects/__EMPTY/versions", {"schema": '"int"'}, 422, 42208),
    ("POST", "/subjects/new/versions", [], 422, 42200),
    ("GET", "/config/s", None, 404, 40408),
    ("PUT", "/config/s", {"compatibility": "MOST"}, 422, 42203),
    ("GET", "/mode/s", None, 404, 40409),
    ("PUT", "/mode", {"mode": "OPEN"}, 422, 42204),
    ("PUT", "/mode", {"mode": "IMPORT"}, 422, 42205),
    ("DELETE", "/subjects/none", None, 404, 40401),
    ("DELETE", "/subjects/s?permanent=true", None, 404, 40405),
    ("DELETE", "/subjects/s/versions/1?permanent=true", None, 404, 40407),
    ("DELETE", "/config/s", None, 404, 40401),
    ("DELETE", "/mode/s", None, 404, 40401),
    ("POST", "/compatibility/subjects/s/versions/9", {"schema": '"int"'}, 404, 40402),
    ("GET", "/nothing", None, 404, 404),
    ("POST", "/schemas/ids/1", {}, 404, 404),
]


def test_errors_have_confluents_codes(registry: odradek.SchemaRegistry) -> None:
    register(registry.url, "s", json.dumps(RECORD))
    for method, path, body, status, code in ERRORS:
        found = call(registry.url, path, method, body)
        assert (found[0], found[1]["error_code"]) == (status, code), (method, path, found)
        assert found[1]["message"]


def test_the_reasons_of_an_incompatible_schema_are_in_the_reply(registry: odradek.SchemaRegistry) -> None:
    register(registry.url, "s", json.dumps(RECORD))
    status, code, message = register(registry.url, "s", json.dumps(NARROW))
    assert (status, code) == (409, 40901)
    for part in ("TYPE_MISMATCH", "reader type: STRING not compatible with writer type: INT", "/fields/0/type",
                 "{oldSchema: '{\"type\":\"record\"", "compatibility: 'BACKWARD'"):  # fmt: skip
        assert part in message
    path = "/compatibility/subjects/s/versions"
    assert call(registry.url, path, "POST", {"schema": json.dumps(NARROW)})[1] == {"is_compatible": False}
    verbose = call(registry.url, f"{path}/latest?verbose=true", "POST", {"schema": json.dumps(NARROW)})[1]
    assert "TYPE_MISMATCH" in verbose["messages"][0]
    assert call(registry.url, f"{path}/1?verbose=true", "POST", {"schema": json.dumps(WIDER)})[1] == {
        "is_compatible": True, "messages": [],
    }  # fmt: skip


def test_configs_and_modes(registry: odradek.SchemaRegistry) -> None:
    url = registry.url
    assert call(url, "/config") == (200, {"compatibilityLevel": "BACKWARD"})
    assert call(url, "/config", "PUT", {"compatibility": "full_transitive"}) == (
        200,
        {"compatibility": "FULL_TRANSITIVE"},
    )
    assert call(url, "/config/s?defaultToGlobal=true") == (200, {"compatibilityLevel": "FULL_TRANSITIVE"})
    assert call(url, "/config/s", "PUT", {"normalize": True})[1]["normalize"] is True
    register(url, "s", '{"b":1,"a":2}', "JSON")
    assert register(url, "s", '{"a":2,"b":1}', "JSON") == 1
    assert call(url, "/config/s", "DELETE")[1]["normalize"] is True
    assert call(url, "/mode") == (200, {"mode": "READWRITE"})
    assert call(url, "/mode/s", "PUT", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert register(url, "s", '{"c":3}', "JSON")[:2] == (422, 42205)
    assert call(url, "/mode/s", "DELETE") == (200, {"mode": "READONLY"})
    assert call(url, "/mode/s?defaultToGlobal=true") == (200, {"mode": "READWRITE"})


def test_deletions(registry: odradek.SchemaRegistry) -> None:
    url = registry.url
    for schema in (RECORD, WIDER):
        register(url, "s", json.dumps(schema))
    assert call(url, "/subjects/s/versions/latest", "DELETE") == (200, 2)
    assert call(url, "/subjects/s/versions")[1] == [1]
    assert call(url, "/subjects/s/versions?deleted=true")[1] == [1, 2]
    assert call(url, "/subjects/s/versions?deletedOnly=true")[1] == [2]
    assert call(url, "/subjects/s/versions?deletedAsNegative=true")[1] == [1, -2]
    assert call(url, "/subjects/s/versions/2?deleted=true")[1]["deleted"] is True
    assert call(url, "/schemas/ids/2")[0] == 200
    assert call(url, "/subjects/s", "DELETE") == (200, [1])
    assert call(url, "/subjects") == (200, [])
    assert call(url, "/subjects?deleted=true") == (200, ["s"])
    assert call(url, "/subjects/s?permanent=true", "DELETE") == (200, [1, 2])
    assert call(url, "/schemas/ids/2")[0] == 404
    assert register(url, "s", json.dumps(WIDER)) == 3


@pytest.mark.parametrize("form", ["chunked", "whole"])
def test_connections_stay_open(registry: odradek.SchemaRegistry, form: str) -> None:
    """Java's clients keep connections, and some send bodies in chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", registry.port, timeout=60)
    body = json.dumps({"schema": json.dumps(RECORD)}).encode()
    ids = []
    for _ in range(3):
        given: Any = iter([body[:10], body[10:]]) if form == "chunked" else body
        connection.request("POST", "/subjects/s/versions", given, encode_chunked=form == "chunked",
                           headers={"Transfer-Encoding": "chunked"} if form == "chunked" else {})  # fmt: skip
        ids.append(json.loads(connection.getresponse().read())["id"])
    assert ids == [1, 1, 1]
    connection.close()


def test_bad_requests_get_an_error_and_the_registry_goes_on(registry: odradek.SchemaRegistry) -> None:
    for given in (
        b"POST /subjects/s/versions HTTP/1.1\r\nContent-Length: 3\r\n\r\n{{{",
        b"POST /subjects/s/versions HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
        b"POST /subjects/s/versions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GARBAGE\r\n\r\n",
        b"POST /subjects/s/versions HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000,
    ):
        with socket.create_connection(("127.0.0.1", registry.port), timeout=60) as raw:
            raw.sendall(given)
            assert b" 400 " in raw.recv(1000).split(b"\r\n")[0]
    assert call(registry.url, "/subjects") == (200, [])
