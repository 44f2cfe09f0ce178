"""The directly encoded replies of OffsetCommit and OffsetFetch equal those of the schemas, for every version with
such replies: OffsetCommit 2 to 10, OffsetFetch 6 to 10. A commit or a deletion ends the cache of fetched rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.group_harness import GroupHarness

from odradek.core.errors import ErrorCode
from odradek.groups.offsets import committed_offsets as offsets
from odradek.wire import schemas
from odradek.wire.offset_replies import (
    CommittedTopic,
    FetchedGroup,
    FetchedTopic,
    offset_commit_reply,
    offset_fetch_reply,
    offset_fetch_rows,
    refused_fetch_rows,
)
from odradek.wire.schemas import Kind

codes = st.sampled_from([code.value for code in ErrorCode])
rows = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), codes), max_size=5) | st.integers(120, 140).map(
    lambda count: [(index, 0) for index in range(count)]
)
names = st.text(st.characters(codec="utf-8"), max_size=90) | st.just("t" * 249)
topics = st.lists(st.tuples(names, st.none() | st.uuids(version=4), rows), max_size=4)


@pytest.mark.parametrize("version", range(2, 11))
@given(topics=topics)
def test_offset_commit_replies_equal_those_of_the_schemas(
    version: int, topics: list[tuple[str, object, list[tuple[int, int]]]]
) -> None:
    packed = offset_commit_reply(
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


values = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.just("") | st.text(st.characters(codec="utf-8")),
)
fetched = st.dictionaries(st.integers(-(2**31), 2**31 - 1), values, max_size=5) | st.integers(120, 140).map(
    lambda count: {index: (index, -1, "") for index in range(count)}
)
fetched_groups = st.lists(
    st.tuples(
        names,
        codes,
        st.lists(st.tuples(names, st.none() | st.uuids(version=4), fetched, st.none() | codes), max_size=3),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("version", range(6, 11))
@given(groups=fetched_groups)
def test_offset_fetch_replies_equal_those_of_the_schemas(version: int, groups: list[Any]) -> None:
    if version < 8:
        groups = groups[:1]
    packed, listed = [], []
    for group_id, code, fetched_topics in groups:
        packed_topics, fields = [], []
        for name, topic_id, rows, refused in fetched_topics:
            data = offset_fetch_rows(rows, rows.values()) if refused is None else refused_fetch_rows(rows, refused)
            packed_topics.append(FetchedTopic(name, topic_id, len(rows), data))
            partitions = [
                {
                    "partition_index": index,
                    "committed_offset": offset if refused is None else -1,
                    "committed_leader_epoch": epoch if refused is None else -1,
                    "metadata": metadata if refused is None else "",
                    "error_code": refused or 0,
                }
                for index, (offset, epoch, metadata) in rows.items()
            ]
            fields.append({"name": name, "topic_id": topic_id, "partitions": partitions})
        packed.append(FetchedGroup(group_id, code, packed_topics))
        listed.append({"group_id": group_id, "error_code": code, "topics": fields})
    message = {"groups": listed} if version >= 8 else listed[0]
    assert offset_fetch_reply(version, packed) == schemas.encode(9, version, Kind.RESPONSE, message)


steps_of = st.sampled_from(["commit", "commit", "fetch", "everything", "delete"])


@given(steps=st.lists(st.tuples(steps_of, st.sets(st.integers(0, 5), min_size=1)), max_size=30))
@settings(max_examples=examples(15))
def test_the_cache_of_a_fetch_ends_with_the_next_commit(steps: list[tuple[str, set[int]]]) -> None:
    harness = GroupHarness(partition_count=1)
    harness.catalog.add("t", 6)
    expected: dict[int, int] = {}
    before, offsets.KEPT_FROM_ROWS = offsets.KEPT_FROM_ROWS, 1
    try:
        for number, (step, partitions) in enumerate(steps):
            if step == "commit":
                harness.commit("g", "t", dict.fromkeys(partitions, number))
                expected |= dict.fromkeys(partitions, number)
            elif step == "delete":
                rows = [{"partition_index": index} for index in partitions]
                harness.call(47, 0, group_id="g", topics=[{"name": "t", "partitions": rows}])
                expected = {index: offset for index, offset in expected.items() if index not in partitions}
            else:
                asked = None if step == "everything" else [{"name": "t", "partition_indexes": list(partitions)}]
                reply = harness.call(9, 8, groups=[{"group_id": "g", "topics": asked}], require_stable=False)
                found = {
                    row.partition_index: row.committed_offset for t in reply.groups[0].topics for row in t.partitions
                }
                wanted = expected if step == "everything" else {index: expected.get(index, -1) for index in partitions}
                assert found == wanted
    finally:
        offsets.KEPT_FROM_ROWS = before
