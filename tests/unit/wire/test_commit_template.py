"""The template of a member's commits packs the bytes that the general codec writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.wire import frames
from odradek.wire.api_keys import OFFSET_COMMIT
from odradek.wire.offset_commit_frames import CommitTemplate

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
ROW = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1), st.text(max_size=20))
TOPICS = st.lists(st.tuples(NAMES, st.lists(ROW, min_size=1, max_size=5)), min_size=1, max_size=5)


def request(version: int, topics: list[Any], correlation_id: int, change: int = 0) -> bytes:
    message = {
        "group_id": "g", "generation_id_or_member_epoch": 3, "member_id": "m", "group_instance_id": None,
        "retention_time": -1,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": index, "committed_offset": max(0, offset - change),
                        "committed_leader_epoch": epoch, "committed_metadata": metadata,
                    }
                    for index, offset, epoch, metadata in rows
                ],
            }
            for name, rows in topics
        ],
    }  # fmt: skip
    return frames.encode_request(OFFSET_COMMIT, version, correlation_id, "client", message)


@pytest.mark.parametrize("version", range(2, 10))
@given(topics=TOPICS, correlation_id=st.integers(0, 2**31 - 1), change=st.integers(0, 10))
def test_a_template_packs_the_bytes_of_the_codec(
    version: int, topics: list[Any], correlation_id: int, change: int
) -> None:
    template = CommitTemplate(request(version, topics, 0))
    rows = [row for _, found in topics for row in found]
    packed = template.pack(correlation_id, [max(0, row[1] - change) for row in rows], [row[2] for row in rows])
    assert packed == request(version, topics, correlation_id, change)


def test_an_unusual_request_has_no_template() -> None:
    with pytest.raises(ValueError, match="no layout"):
        CommitTemplate(request(8, [], 0))
