"""Tagged fields (KIP-482): unknown fields are ignored in every structure, and their number in a request is limited."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from kio.schema.index import api_key_map
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._introspect import classify_field, get_field_tag, is_optional
from kio.serial._serialize import get_field_writer
from support.instances import Instances
from support.peers import Peer, serving

from odradek.broker.loop.scheduler import finish
from odradek.core.varints import read_uvarint, uvarint
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, FETCH, FIND_COORDINATOR, METADATA
from odradek.wire.request_limits import MAX_ELEMENTS
from odradek.wire.schemas import Kind

Path_ = tuple[str, ...]

UNKNOWN = {40: b"", 41: b"x", 99: b"\xff" * 3, 12_345: b"y" * 200}


class Filled(Instances):
    """Messages in which every array has elements and every structure is present."""

    def value(self, field: Any) -> Any:
        kind = classify_field(field)
        kafka_type = field.metadata.get("kafka_type")
        if kind.is_array:
            return tuple(self.one(kafka_type, kind.type_) for _ in range(self.random.choice([1, 3])))
        return super().value(field) if kafka_type is not None else self.of(kind.type_)


def structures(entity: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The path to each structure of a message, by field names; () is the message itself."""
    yield path
    for field in fields(entity):
        if "kafka_type" not in field.metadata:
            yield from structures(classify_field(field).type_, (*path, field.name))


def packed(instance: Any, more_at: Path_ | None, path: Path_ = ()) -> bytes:
    """A message with unknown tagged fields in one structure of it, or in all structures if ``more_at`` is None."""
    out = io.BytesIO()
    tagged: dict[int, bytes] = {}
    for field in fields(instance):
        value, tag = getattr(instance, field.name), get_field_tag(field)
        if tag is None:
            out.write(packed_field(field, value, more_at, path))
        elif value is not None and value != field.default and value != get_tagged_field_default(field):
            tagged[tag] = packed_field(field, value, more_at, path, tagged=True)
    if more_at is None or path == more_at:
        tagged |= UNKNOWN
    out.write(uvarint(len(tagged)))
    for tag, content in sorted(tagged.items()):
        out.write(uvarint(tag) + uvarint(len(content)) + content)
    return out.getvalue()


def packed_field(field: Any, value: Any, more_at: Path_ | None, path: Path_, *, tagged: bool = False) -> bytes:
    kind = classify_field(field)
    if "kafka_type" in field.metadata:
        out = io.BytesIO()
        get_field_writer(field, flexible=True, is_request_header=False, is_tag=tagged)(out, value)
        return out.getvalue()
    inner = (*path, field.name)
    if kind.is_array:
        return uvarint(len(value) + 1) + b"".join(packed(each, more_at, inner) for each in value)
    return (b"\x01" if is_optional(field) and not tagged else b"") + packed(value, more_at, inner)


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=schemas.api_name)
def test_unknown_tagged_fields_are_ignored_in_every_structure_of_every_message(api_key: int) -> None:
    oldest, newest = schemas.known_versions(api_key)
    for version in range(oldest, newest + 1):
        if not schemas.is_flexible(api_key, version):
            continue
        for kind in Kind:
            entity = schemas.message_type(api_key, version, kind)
            instance = Filled(version).of(entity)
            for more_at in (*structures(entity), None):
                data = packed(instance, more_at)
                read = schemas.decode(api_key, version, kind, b"head" + data + b"behind", 4)
                assert read == (instance, len(data)), (version, kind, more_at)
                in_steps = schemas.decode_in_steps(api_key, version, kind, b"head" + data + b"behind", 4)
                assert finish(in_steps) == instance, (version, kind, more_at)


def test_a_reply_of_a_newer_broker_is_read() -> None:
    entity = schemas.message_type(METADATA, 12, Kind.RESPONSE)
    instance = Filled(1).of(entity)
    head = b"\0\0\0\7" + b"\2" + uvarint(3) + b"\1z" + uvarint(500) + uvarint(300) + b"z" * 300
    assert frames.decode_reply(METADATA, 12, memoryview(head + packed(instance, None))) == (7, instance)


def unknown(count: int) -> bytes:
    return uvarint(count) + b"\x28\0" * count


def test_a_structure_of_too_many_tagged_fields_is_refused() -> None:
    name = b"\x02a\x02b"  # ApiVersions: the name and the version of the client software
    message, size = schemas.decode(API_VERSIONS, 3, Kind.REQUEST, name + unknown(1000))
    assert message.client_software_name == "a"
    assert size == len(name + unknown(1000))
    for count in (1001, 5_000_000):
        with pytest.raises(ValueError, match=f"{count:,} tagged fields in one structure"):
            schemas.decode(API_VERSIONS, 3, Kind.REQUEST, name + unknown(count))
    topic = bytes(16) + b"\x02t" + unknown(1001)
    with pytest.raises(ValueError, match="1,001 tagged fields in one structure"):
        schemas.decode(METADATA, 12, Kind.REQUEST, uvarint(2) + topic + bytes(3))


def test_tagged_fields_count_as_elements_of_a_request() -> None:
    topic = bytes(16) + b"\x02t" + unknown(999)
    most = MAX_ELEMENTS // 1000
    message, _ = schemas.decode(METADATA, 12, Kind.REQUEST, uvarint(most + 1) + topic * most + bytes(4))
    assert len(message.topics) == most
    for decode in (schemas.decode, lambda *what: finish(schemas.decode_in_steps(*what))):
        with pytest.raises(ValueError, match="more than 250,000 elements"):
            decode(METADATA, 12, Kind.REQUEST, uvarint(most + 2) + topic * (most + 1) + bytes(4))


def test_each_occurrence_of_a_known_tagged_field_counts() -> None:
    body = fetch_body(b"")[:-1]
    times = 20_000
    with pytest.raises(ValueError, match="20,000 tagged fields in one structure"):
        schemas.decode(FETCH, 12, Kind.REQUEST, body + uvarint(times) + b"\0\2\2c" * times)


def fetch_body(topics: bytes, count: int = 0) -> bytes:
    """The body of a Fetch request of version 12 to 14 that waits for nothing and has no session and no rack."""
    return b"\xff" * 4 + bytes(12) + b"\0" + bytes(8) + uvarint(count + 1) + topics + b"\1\1\0"


def test_a_known_tagged_field_must_have_the_declared_size() -> None:
    # kio reads such a field by its type and ignores the declared size. If the size is wrong, kio and the check of
    # lengths continue at different positions, and kio could allocate memory for a length that was never checked.
    partition = bytes(4) + b"\xff" * 4 + bytes(8) + b"\xff" * 4 + bytes(8) + bytes(4)

    def body(size: int) -> bytes:
        topics = bytes(16) + b"\2" + partition + b"\1\0" + uvarint(size) + b"\1" * 16 + b"\0"
        return fetch_body(topics, 1)[4:]  # from version 15 on, the replica is a tagged field

    message, _ = schemas.decode(FETCH, 17, Kind.REQUEST, body(16))
    assert message.topics[0].partitions[0].replica_directory_id.bytes == b"\1" * 16
    for size in (0, 3, 15, 17, 40):
        with pytest.raises(ValueError, match=r"tagged field 0 (does not fill|declares)"):
            schemas.decode(FETCH, 17, Kind.REQUEST, body(size) + bytes(8))


def test_a_header_of_too_many_tagged_fields_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(data: Any, at: int) -> tuple[int, int]:
        nonlocal read
        read += 1
        return read_uvarint(data, at)

    monkeypatch.setattr(frames, "read_uvarint", counted)
    head = b"\0\x12\0\3\0\0\0\1\0\1c"
    body = b"\x02a\x02b\0"
    with pytest.raises(frames.FrameError, match="5,000,000 tagged fields in the header"):
        frames.read_request_head(head + unknown(5_000_000) + body)
    assert read == 1
    some = frames.read_request_head(head + unknown(1000) + body)
    assert some.body == len(head + unknown(1000))


REQUESTS = {
    "ApiVersions 3": (API_VERSIONS, 3, b"\x02a\x02b"),
    "Metadata 12": (METADATA, 12, b"\0\1\0"),
    "FindCoordinator 4": (FIND_COORDINATOR, 4, b"\0\2\2g"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_broker_answers_a_request_with_unknown_tagged_fields(name: str, tmp_path: Path) -> None:
    api_key, version, body = REQUESTS[name]

    async def ask() -> bytes | None:
        async with serving(tmp_path) as broker:
            request = frames.encode_request(api_key, version, 7, "c", b"")[4:] + body + unknown(3)
            return await Peer(broker).exchange(frames.frame(request))

    data = asyncio.run(ask())
    assert data is not None, "the connection was closed"
    correlation_id, reply = frames.decode_reply(api_key, version, data)
    assert correlation_id == 7
    assert getattr(reply, "error_code", 0) == 0
