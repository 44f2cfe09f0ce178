"""Fetch replies of every version and assignments, decoded from bytes, also from damaged bytes. The client's errors.

No sockets.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from odradek.client import errors
from odradek.codecs.consumer_protocol import decode_assignment, encode_assignment
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.wire import fetch_messages, frames, schemas
from odradek.wire.api_keys import FETCH
from odradek.wire.schemas import Kind

TOPIC_ID = UUID("0a0b0c0d-0000-0000-0000-00000000000f")
VERSIONS = range(4, schemas.known_versions(FETCH)[1] + 1)

partitions = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 1 << 30),
        "error_code": st.sampled_from([0, 1, 6, 74]),
        "high_watermark": st.integers(-1, 1 << 60),
        "last_stable_offset": st.integers(-1, 1 << 60),
        "log_start_offset": st.integers(-1, 1 << 60),
        "aborted_transactions": st.none()
        | st.lists(
            st.fixed_dictionaries({"producer_id": st.integers(0, 1 << 60), "first_offset": st.integers(0, 1 << 60)}),
            max_size=3,
        ),
        "preferred_read_replica": st.integers(-1, 9),
        "records": st.none() | st.binary(max_size=300),
        "diverging_epoch": st.none() | st.fixed_dictionaries({"epoch": st.integers(0, 9), "end_offset": st.just(77)}),
    }
)
replies = st.fixed_dictionaries(
    {
        "throttle_time": st.integers(0, 10_000),
        "error_code": st.sampled_from([0, 70]),
        "session_id": st.integers(0, 1 << 30),
        "responses": st.lists(
            st.fixed_dictionaries(
                {
                    "topic": st.text(max_size=9),
                    "topic_id": st.just(TOPIC_ID),
                    "partitions": st.lists(partitions, max_size=3),
                }
            ),
            max_size=2,
        ),
    }
)


def encoded(version: int, message: dict[str, Any]) -> bytes:
    head = frames.reply_head(FETCH, version, 5)
    return head + schemas.encode(FETCH, version, Kind.RESPONSE, message)


@given(st.sampled_from(VERSIONS), replies)
@settings(max_examples=examples(50))
def test_fetch_replies_of_every_version_are_parsed(version: int, message: dict[str, Any]) -> None:
    reply = fetch_messages.parse_reply(version, memoryview(encoded(version, message)), 9)
    assert reply.throttle_ms == message["throttle_time"]
    if version >= 7:
        assert (reply.error_code.value, reply.session_id) == (message["error_code"], message["session_id"])
    sent = [(topic, row) for topic in message["responses"] for row in topic["partitions"]]
    assert len(reply.partitions) == len(sent)
    for found, (topic, row) in zip(reply.partitions, sent, strict=True):
        assert found.topic == (TOPIC_ID if version >= 13 else topic["topic"])
        assert (found.partition, found.error_code.value) == (row["partition_index"], row["error_code"])
        assert (found.high_watermark, found.last_stable_offset) == (row["high_watermark"], row["last_stable_offset"])
        assert found.log_start_offset == (row["log_start_offset"] if version >= 5 else -1)
        aborted = row["aborted_transactions"]
        assert found.aborted == (
            (aborted and tuple((a["producer_id"], a["first_offset"]) for a in aborted))
            or (None if aborted is None else ())
        )
        assert found.preferred_read_replica == (row["preferred_read_replica"] if version >= 11 else -1)
        assert bytes(found.records) == (row["records"] or b"")
        diverging = row["diverging_epoch"]
        expected = (diverging["epoch"], 77) if diverging and version >= 12 else None
        assert found.diverging_epoch == expected


def test_records_are_a_view_of_the_reply() -> None:
    row = {
        "partition_index": 0, "error_code": 0, "high_watermark": 1, "last_stable_offset": 1, "log_start_offset": 0,
        "aborted_transactions": None, "preferred_read_replica": -1, "records": b"abc",
    }  # fmt: skip
    message = {"throttle_time": 0, "responses": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": [row]}]}
    data = encoded(16, message | {"error_code": 0, "session_id": 0})
    reply = fetch_messages.parse_reply(16, memoryview(data), 1)
    assert reply.partitions[0].records.obj is data


@given(st.sampled_from(VERSIONS), replies, st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 200))
@settings(max_examples=examples(80))
def test_damaged_fetch_replies_are_parsed_or_raise_value_error(
    version: int, message: dict[str, Any], position: int, byte: int, cut: int
) -> None:
    data = bytearray(encoded(version, message))
    data[position % len(data)] = byte
    damaged = bytes(data[: max(4, len(data) - cut)])
    with contextlib.suppress(ValueError):
        reply = fetch_messages.parse_reply(version, memoryview(damaged), 9)
        assert sum(len(row.records) for row in reply.partitions) <= len(damaged)


@given(
    st.lists(st.tuples(st.text(max_size=9), st.integers(0, 1 << 30)).map(lambda row: TopicPartition(*row)), unique=True)
)
def test_assignments_are_read_back(assigned: list[TopicPartition]) -> None:
    found = decode_assignment(encode_assignment(tuple(assigned)))
    assert sorted(found) == sorted(assigned)


def test_an_assignment_in_javas_format_is_read() -> None:
    data = bytes.fromhex("0003 00000001 0005 666f6f2d61 00000002 00000000 00000002 ffffffff")
    assert decode_assignment(data) == (TopicPartition("foo-a", 0), TopicPartition("foo-a", 2))
    assert decode_assignment(b"") == ()


@given(st.binary(max_size=60))
def test_any_bytes_are_an_assignment_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert 4 * len(decode_assignment(b"\x00\x00" + data)) <= len(data)


@pytest.mark.parametrize(
    "error",
    [
        errors.OffsetOutOfRange(TopicPartition("a", 1), 5, 6, 9),
        errors.LogTruncated(TopicPartition("a", 1), 5, 4),
        errors.UnknownTopic("topic x"),
        errors.GroupNotEmpty("g"),
        KafkaError(ErrorCode.invalid_config, "m"),
        CorruptRecord("m"),
        errors.BrokerUnreachable("cannot reach a:1: connection refused"),
    ],
)
def test_errors_can_be_pickled(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


def test_the_out_of_range_error_has_the_bounds_of_the_log() -> None:
    error = errors.OffsetOutOfRange(TopicPartition("flights", 1), 5, 6, 9)
    assert str(error) == "OFFSET_OUT_OF_RANGE: offset 5 of flights-1: the log starts at 6 and ends at 9"
