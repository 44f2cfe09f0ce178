"""The request and the reply of a single batch are those of the general codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.ids import TopicPartition
from odradek.net.produce_exchange import FLEXIBLE_FROM, SingleBatch
from odradek.wire import frames, schemas
from odradek.wire.api_keys import PRODUCE
from odradek.wire.schemas import Kind

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200)
VERSIONS = range(FLEXIBLE_FROM, 13)


def reply(version: int, tp: TopicPartition, base_offset: int, **changed: Any) -> memoryview:
    row = {
        "index": tp.partition, "error_code": 0, "base_offset": base_offset, "log_append_time": -1,
        "log_start_offset": 7, "record_errors": [], "error_message": None,
    }  # fmt: skip
    row |= {name: value for name, value in changed.items() if name in row}
    message = {
        "responses": [{"name": changed.get("name", tp.topic), "partition_responses": [row]}],
        "throttle_time": changed.get("throttle_time", 0),
    }
    head = frames.reply_head(PRODUCE, version, 5)
    return memoryview(head + schemas.encode(PRODUCE, version, Kind.RESPONSE, message))


@pytest.mark.parametrize("version", VERSIONS)
@given(
    topic=NAMES, partition=st.integers(0, 2**31 - 1), client=st.text(max_size=20),
    limits=st.tuples(st.sampled_from([-1, 1]), st.integers(0, 2**31 - 1)), records=st.binary(min_size=1, max_size=400),
    number=st.integers(0, 2**31 - 1), offset=st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_the_bytes_are_those_of_the_codec(
    version: int, topic: str, partition: int, client: str, limits: tuple[int, int], records: bytes, number: int,
    offset: int,
) -> None:  # fmt: skip
    tp = TopicPartition(topic, partition)
    one = SingleBatch(version, client, limits, tp)
    message = {
        "transactional_id": None, "acks": limits[0], "timeout": limits[1],
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }  # fmt: skip
    assert one.pack(number, records) == frames.encode_request(PRODUCE, version, number, client, message)
    assert one.base_offset(reply(version, tp, offset)) == offset


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "changed",
    [
        {"error_code": 3}, {"index": 4}, {"name": "other"}, {"throttle_time": 5}, {"error_message": "m"},
        {"record_errors": [{"batch_index": 0, "batch_index_error_message": None}]},
    ],
)  # fmt: skip
def test_any_other_reply_has_no_base_offset(version: int, changed: dict[str, Any]) -> None:
    tp = TopicPartition("topic", 3)
    one = SingleBatch(version, "c", (-1, 1000), tp)
    assert one.base_offset(reply(version, tp, 9, **changed)) is None
    assert one.base_offset(reply(version, tp, 9)[:-1]) is None
