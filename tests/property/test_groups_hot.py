"""The packed reply of OffsetCommit equals what the schemas write, for every version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.errors import ErrorCode
from odradek.wire import schemas
from odradek.wire.hot import CommittedTopic, offset_commit_response
from odradek.wire.schemas import Kind

codes = st.sampled_from([code.value for code in ErrorCode])
rows = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), codes), max_size=5) | st.integers(120, 140).map(
    lambda count: [(index, 0) for index in range(count)]
)
names = st.text(st.characters(codec="utf-8"), max_size=90) | st.just("t" * 249)
topics = st.lists(st.tuples(names, st.none() | st.uuids(version=4), rows), max_size=4)


@pytest.mark.parametrize("version", range(2, 11))
@given(topics=topics)
def test_offset_commit_replies(version: int, topics: list[tuple[str, object, list[tuple[int, int]]]]) -> None:
    packed = offset_commit_response(
        version,
        [CommittedTopic(name, topic_id, [n for row in rows for n in row]) for name, topic_id, rows in topics],
    )
    message = {
        "topics": [
            {
                "name": name,
                "topic_id": topic_id,
                "partitions": [{"partition_index": index, "error_code": code} for index, code in rows],
            }
            for name, topic_id, rows in topics
        ]
    }
    assert packed == schemas.encode(8, version, Kind.RESPONSE, message)
