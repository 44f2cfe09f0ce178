"""The hand-written packer of fetch requests gives the same bytes as the schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.ids import FetchingReplica, TopicPartition
from odradek.wire import fetch_messages, schemas
from odradek.wire.api_keys import FETCH
from odradek.wire.fetch_messages import FetchPartition, FetchRequestData, Limits
from odradek.wire.schemas import Kind

VERSIONS = range(4, schemas.known_versions(FETCH)[1] + 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
IDS = {name: UUID(int=number << 90) for number, name in enumerate(("a", "b", "ü" * 100), 1)}
PARTITION = st.builds(TopicPartition, st.sampled_from(list(IDS)), INT32)
WANTED = st.dictionaries(PARTITION, st.tuples(INT64, INT32, INT32, INT32, INT64), max_size=9)
REPLICA = st.none() | st.builds(FetchingReplica, st.integers(0, (1 << 31) - 1), INT64)
LIMITS = st.builds(Limits, INT32, INT32, INT32, st.integers(0, 1), st.text(max_size=9), REPLICA)


def by_topic(rows: Iterable[tuple[TopicPartition, UUID | None, Any]]) -> list[dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for tp, topic_id, row in rows:
        topic = topics.setdefault(tp.topic, {"topic": tp.topic, "topic_id": topic_id, "partitions": []})
        topic["partitions"].append(row)
    return list(topics.values())


def message(limits: Limits, asked: FetchRequestData) -> dict[str, Any]:
    """The request as a message for the schemas."""
    replica = limits.replica
    state = {} if replica is None else {"replica_id": replica.broker_id, "replica_epoch": replica.broker_epoch}
    return {
        "replica_id": -1 if replica is None else replica.broker_id,
        **({"replica_state": state} if state else {}),
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "isolation_level": limits.isolation_level,
        "session_id": asked.session_id,
        "session_epoch": asked.session_epoch,
        "topics": by_topic(
            (tp, one.topic_id, {
                "partition": tp.partition,
                "current_leader_epoch": one.leader_epoch,
                "fetch_offset": one.offset,
                "last_fetched_epoch": one.last_epoch,
                "log_start_offset": one.log_start,
                "partition_max_bytes": one.max_bytes,
            })
            for tp, one in asked.changed.items()
        ),
        "forgotten_topics_data": by_topic((tp, topic_id, tp.partition) for tp, topic_id in asked.forgotten),
        "rack_id": limits.rack,
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@given(limits=LIMITS, rows=WANTED, forgotten=st.lists(PARTITION, max_size=5), session=st.tuples(INT32, INT32))
def test_a_packed_request_equals_the_encoding_of_the_schema(
    version: int,
    limits: Limits,
    rows: dict[TopicPartition, tuple[int, int, int, int, int]],
    forgotten: list[TopicPartition],
    session: tuple[int, int],
) -> None:
    wanted = {tp: FetchPartition(IDS[tp.topic], *row) for tp, row in rows.items()}
    asked = FetchRequestData(wanted, [(tp, IDS[tp.topic]) for tp in forgotten], *session)
    encoded = schemas.encode(FETCH, version, Kind.REQUEST, message(limits, asked))
    assert fetch_messages.pack(version, limits, asked) == encoded


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_may_have_more_topics_and_partitions_than_one_byte_can_count(version: int) -> None:
    wanted = {
        TopicPartition(f"t{topic}", number): FetchPartition(UUID(int=topic), number, 1, 9)
        for topic in range(300)
        for number in range(200 if topic == 7 else 1)
    }
    limits, asked = Limits(500, 1, 1 << 20, 0), FetchRequestData(wanted)
    assert asked.session_epoch == -1
    encoded = schemas.encode(FETCH, version, Kind.REQUEST, message(limits, asked))
    assert fetch_messages.pack(version, limits, asked) == encoded


def test_a_topic_without_an_id_is_packed_without_one() -> None:
    limits, asked = (
        Limits(500, 1, 1 << 20, 0),
        FetchRequestData({TopicPartition("t", 0): FetchPartition(None, 5, 1, 9)}),
    )
    assert fetch_messages.pack(17, limits, asked) == schemas.encode(FETCH, 17, Kind.REQUEST, message(limits, asked))


@pytest.mark.parametrize("version", [11, 12, 18])
def test_a_reply_may_name_the_current_leader(version: int) -> None:
    row: dict[str, Any] = {
        "partition_index": 3, "error_code": 6, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1,
        "aborted_transactions": None, "preferred_read_replica": -1, "records": None,
    }  # fmt: skip
    rows = [row | ({"current_leader": {"leader_id": 2, "leader_epoch": 7}} if version >= 12 else {}), row]
    topic = {"topic": "a", "topic_id": IDS["a"], "partitions": rows}
    nodes = [{"node_id": 2, "host": "b.example", "port": 9093, "rack": rack} for rack in ("r", None)]
    message = {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": [topic]}
    body = schemas.encode(FETCH, version, Kind.RESPONSE, message | ({"node_endpoints": nodes} if version >= 16 else {}))
    head = b"\0\0\0\1" + (b"\0" if version >= 12 else b"")
    reply = fetch_messages.parse_reply(version, memoryview(head + body), 2)
    assert [part.current_leader for part in reply.partitions] == [(2, 7) if version >= 12 else None, None]
    expected = ((2, "b.example", 9093, "r"), (2, "b.example", 9093, None))
    assert reply.leader_nodes == (expected if version >= 16 else ())
