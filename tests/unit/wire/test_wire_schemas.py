"""Our writer compared with kio's, for every message and version of kio, and reads of the written messages."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import api_key_map
from kio.serial import entity_writer
from support.instances import Instances, plain

from odradek.broker.loop.scheduler import finish
from odradek.core.effects import result_of
from odradek.wire import schemas
from odradek.wire.long_requests import count_in_steps
from odradek.wire.request_limits import MAX_ELEMENTS, is_strict, length_check, structure_walk
from odradek.wire.schemas import Kind

EXAMPLES = 6


def messages(api_key: int) -> Iterator[tuple[int, Kind, Any]]:
    oldest, newest = schemas.known_versions(api_key)
    for version in range(oldest, newest + 1):
        for kind in Kind:
            yield version, kind, schemas.message_type(api_key, version, kind)


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=schemas.api_name)
def test_every_version_is_written_as_kio_writes_it(api_key: int) -> None:
    for version, kind, entity in messages(api_key):
        theirs = entity_writer(entity)
        for seed in range(EXAMPLES):
            instance = Instances(seed).of(entity)
            buffer = io.BytesIO()
            theirs(buffer, instance)
            expected = buffer.getvalue()
            packed = schemas.encode(api_key, version, kind, plain(instance))
            assert packed == expected, (version, kind, instance)
            read, size = schemas.decode(api_key, version, kind, b"head" + packed, 4)
            assert (read, size) == (instance, len(packed)), (version, kind)
            assert finish(schemas.decode_in_steps(api_key, version, kind, b"head" + packed, 4)) == instance
            in_steps = schemas.encode_in_steps(api_key, version, kind, plain(instance), lambda size: None)
            assert b"".join(finish(in_steps)) == expected


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=schemas.api_name)
def test_cut_messages_are_value_errors(api_key: int) -> None:
    for version, kind, entity in messages(api_key):
        packed = schemas.encode(api_key, version, kind, plain(Instances(3).of(entity)))
        for size in {0, 1, len(packed) // 2, len(packed) - 1} & set(range(len(packed))):
            with pytest.raises(ValueError, match="malformed"):
                schemas.decode(api_key, version, kind, packed[:size])
            with pytest.raises(ValueError, match="malformed"):
                finish(schemas.decode_in_steps(api_key, version, kind, packed[:size]))


def test_a_mapping_may_have_fields_of_other_versions() -> None:
    row = {"error_code": 0, "partition_index": 3, "no_such_field_in_any_version": 1}
    reply = {"topics": [{"name": "t", "topic_id": UUID(int=9), "partitions": [row]}]}
    for version in range(2, 11):
        message, _ = schemas.decode(8, version, Kind.RESPONSE, schemas.encode(8, version, Kind.RESPONSE, reply))
        (topic,) = message.topics
        assert topic.partitions[0].partition_index == 3
        assert (getattr(topic, "name", "t"), getattr(topic, "topic_id", UUID(int=9))) == ("t", UUID(int=9))


def test_the_error_names_a_missing_field() -> None:
    with pytest.raises(KeyError, match="partition_index"):
        schemas.encode(8, 8, Kind.RESPONSE, {"topics": [{"name": "t", "partitions": [{"error_code": 0}]}]})


def test_unknown_apis_and_versions_raise_an_error() -> None:
    for api_key, version in ((8, 99), (8, 0), (9_999, 0), (-1, 0)):
        with pytest.raises(schemas.UnknownMessage):
            schemas.message_type(api_key, version, Kind.REQUEST)
    assert schemas.api_name(9_999) == "api_9999"
    assert schemas.api_name(8) == "offset_commit"
    assert schemas.known_versions(8) == (2, 10)
    assert [schemas.is_flexible(8, version) for version in (7, 8)] == [False, True]


def test_null_in_place_of_an_array_is_refused() -> None:
    # Kafka closes the connection; a handler must not get such a message.
    nulls = {
        (15, 0): b"\xff\xff\xff\xff",  # DescribeGroups: groups
        (15, 5): b"\x00\x00\x00",
        (8, 2): b"\0\1g\xff\xff\xff\xff\0\1m" + bytes(8) + struct.pack(">ih", 1, 1) + b"t\xff\xff\xff\xff",
    }
    for (api_key, version), body in nulls.items():
        with pytest.raises(ValueError, match="null"):
            schemas.decode(api_key, version, Kind.REQUEST, body)
    # Null is accepted if it has a meaning: all topics.
    assert schemas.decode(3, 1, Kind.REQUEST, b"\xff\xff\xff\xff")[0].topics is None


@pytest.mark.parametrize("claimed", [1 << 20, (1 << 31) - 1])
def test_an_array_longer_than_its_message_is_refused(claimed: int) -> None:
    # kio allocates memory for the claimed length: a request of 20 bytes with a length of 2^31 could end the process.
    legacy, compact = struct.pack(">i", claimed), bytearray()
    rest = claimed + 1
    while rest > 0x7F:
        compact.append(rest & 0x7F | 0x80)
        rest >>= 7
    compact.append(rest)
    claims = {
        (15, 0): legacy,
        (15, 5): bytes(compact),
        (8, 2): b"\0\1g\xff\xff\xff\xff\0\1m" + bytes(8) + struct.pack(">ih", 1, 1) + b"t" + legacy,
        (0, 9): b"\0\xff\xff\0\0\0\1" + bytes(compact),
        (0, 3): b"\xff\xff\xff\xff\0\0\0\1\0\0\0\1\0\1t" + legacy,
    }
    for (api_key, version), body in claims.items():
        with pytest.raises(ValueError, match="declares"):
            schemas.decode(api_key, version, Kind.REQUEST, body)
        with pytest.raises(ValueError, match="declares"):
            schemas.decode(api_key, version, Kind.REQUEST, b"head" + body + b"x" * 100, 4)


def _names(count: int) -> bytes:
    return struct.pack(">i", count) + b"\0\0" * count


def test_a_request_of_too_many_elements_is_refused_before_it_is_read() -> None:
    decode, request = schemas.decode, Kind.REQUEST
    assert len(decode(3, 1, request, _names(MAX_ELEMENTS))[0].topics) == MAX_ELEMENTS
    with pytest.raises(ValueError, match="more than 250,000 elements"):
        decode(3, 1, request, _names(MAX_ELEMENTS + 1))
    # All arrays are counted together: each of these has few elements.
    topic = b"\0\1t" + struct.pack(">i", 1000) + bytes(4) * 1000
    head = b"\0\1g"
    assert decode(9, 1, request, head + struct.pack(">i", 249) + topic * 249)
    with pytest.raises(ValueError, match="more than 250,000 elements"):
        decode(9, 1, request, head + struct.pack(">i", 250) + topic * 250)
    # A reply may have more elements than a request.
    reply = b"".join(b"\0\1g" + b"\0\0" for _ in range(MAX_ELEMENTS + 1))
    listed, _ = decode(16, 0, Kind.RESPONSE, bytes(2) + struct.pack(">i", MAX_ELEMENTS + 1) + reply)
    assert len(listed.groups) == MAX_ELEMENTS + 1


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=schemas.api_name)
def test_the_check_of_lengths_covers_every_byte_of_a_message(api_key: int) -> None:
    for version, kind, entity in messages(api_key):
        walk, check = structure_walk(entity, is_strict(entity)), length_check(entity)
        for seed in range(EXAMPLES):
            packed = schemas.encode(api_key, version, kind, plain(Instances(seed).of(entity)))
            assert walk(b"head" + packed, 4, len(packed) + 4, [1 << 31]) == len(packed) + 4, (version, kind)
            left = [MAX_ELEMENTS, MAX_ELEMENTS]
            assert check is None or check(packed, 0, len(packed), left) <= len(packed)


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=schemas.api_name)
def test_a_request_is_counted_before_it_is_read(api_key: int) -> None:
    for version, kind, entity in messages(api_key):
        if kind is not Kind.REQUEST:
            continue
        strict = is_strict(entity)
        for seed in range(EXAMPLES):
            packed = schemas.encode(api_key, version, kind, plain(Instances(seed).of(entity)))
            left = [MAX_ELEMENTS, MAX_ELEMENTS]
            structure_walk(entity, strict)(packed, 0, len(packed), left)
            steps = count_in_steps(entity, packed, 0)
            assert result_of(steps) == MAX_ELEMENTS - left[0], (version, seed)
            if kind is Kind.REQUEST and (check := length_check(entity)) is not None:
                counted = [MAX_ELEMENTS, MAX_ELEMENTS]
                check(packed, 0, len(packed), counted)
                assert left[0] <= counted[0], "a check that ends early counts the elements of the last array"
