"""The directly encoded Produce and Fetch replies equal those of the schemas, for every version."""

from __future__ import annotations

import uuid
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from odradek.broker.loop.scheduler import finish
from odradek.wire import produce_fetch_replies, schemas
from odradek.wire.produce_fetch_replies import FetchedPartition, ProducedPartition
from odradek.wire.schemas import Kind
from odradek.wire.throttle_time import with_throttle_time

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
time_ms = st.one_of(st.just(-1), st.integers(0, 2**47))
code = st.sampled_from([-1, 0, 1, 3, 6, 42, 100])
text = st.text(st.characters(codec="utf-8"), max_size=200)
names = st.one_of(text, st.just("t" * 249))

produced = st.builds(
    ProducedPartition,
    partition=i32,
    error_code=code,
    base_offset=i64,
    append_time_ms=time_ms,
    log_start_offset=i64,
    record_errors=st.lists(st.tuples(i32, st.none() | text), max_size=3).map(tuple),
    error_message=st.none() | text,
    leader=st.none() | st.tuples(i32.filter(lambda leader: leader != -1), i32),
)


class Endpoint(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None

    def row(self) -> dict[str, object]:
        return {"node_id": self.broker_id, "host": self.host, "port": self.port, "rack": self.rack}


endpoints = st.lists(st.builds(Endpoint, i32, text, i32, st.none() | text), max_size=3).map(
    lambda rows: {row.broker_id: row for row in rows}
)


def leader_field(leader: tuple[int, int] | None) -> dict[str, object]:
    return {} if leader is None else {"current_leader": {"leader_id": leader[0], "leader_epoch": leader[1]}}


@st.composite
def fetched(draw: st.DrawFn) -> FetchedPartition:
    slices = draw(st.lists(st.binary(max_size=300), max_size=3))
    return FetchedPartition(
        partition=draw(i32),
        error_code=draw(code),
        high_watermark=draw(i64),
        last_stable_offset=draw(i64),
        log_start_offset=draw(i64),
        aborted=draw(st.none() | st.lists(st.tuples(i64, i64), max_size=3).map(tuple)),
        preferred_read_replica=draw(i32),
        records=[memoryview(part) for part in slices],
        size=sum(map(len, slices)),
        diverging=draw(st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))),
        leader=draw(st.none() | st.tuples(i32.filter(lambda leader: leader != -1), i32)),
    )


def topic_lists(partition: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(st.tuples(names, st.uuids(), st.lists(partition, max_size=3)), max_size=3)


@pytest.mark.parametrize("version", range(3, 14))
@settings(max_examples=examples(6))
@given(topics=topic_lists(produced), throttle_ms=st.integers(0, 2**31 - 1), nodes=endpoints)
def test_produce_replies_equal_those_of_the_schemas(version, topics, throttle_ms, nodes) -> None:
    if version < 10:
        topics, nodes = without_leaders(topics), {}
    expected = schemas.encode(
        0,
        version,
        Kind.RESPONSE,
        {
            "throttle_time": throttle_ms,
            "node_endpoints": [node.row() for node in nodes.values()],
            "responses": [
                {
                    "name": name,
                    "topic_id": topic_id,
                    "partition_responses": [
                        {
                            "index": p.partition,
                            "error_code": p.error_code,
                            "base_offset": p.base_offset,
                            "log_append_time": p.append_time_ms,
                            "log_start_offset": p.log_start_offset,
                            "record_errors": [
                                {"batch_index": index, "batch_index_error_message": message}
                                for index, message in p.record_errors
                            ],
                            "error_message": p.error_message,
                        }
                        | leader_field(p.leader)
                        for p in partitions
                    ],
                }
                for name, topic_id, partitions in topics
            ],
        },
    )
    named = [(_key(version >= 13, t), t[2]) for t in topics]
    if not nodes:
        assert produce_fetch_replies.produce_reply(version, named, throttle_ms) == expected
    pieces = finish(produce_fetch_replies.produce_reply_in_steps(version, named, nodes, step_partitions=2))
    assert b"".join(with_throttle_time(0, version, pieces, throttle_ms)) == expected


@pytest.mark.parametrize("version", range(4, 19))
@settings(max_examples=examples(6))
@given(topics=topic_lists(fetched()), error=code, session=st.integers(0, 2**31 - 1), nodes=endpoints)
def test_fetch_replies_equal_those_of_the_schemas(version, topics, error, session, nodes) -> None:
    if version < 16:
        topics, nodes = without_leaders(topics), {}
    message = {
        "throttle_time": 7,
        "error_code": error,
        "session_id": session,
        "node_endpoints": [node.row() for node in nodes.values()],
        "responses": [
            {
                "topic": name,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": p.partition,
                        "error_code": p.error_code,
                        "high_watermark": p.high_watermark,
                        "last_stable_offset": p.last_stable_offset,
                        "log_start_offset": p.log_start_offset,
                        "aborted_transactions": p.aborted
                        and [{"producer_id": producer, "first_offset": first} for producer, first in p.aborted],
                        "preferred_read_replica": p.preferred_read_replica,
                        "records": b"".join(p.records),
                    }
                    | ({"diverging_epoch": dict(zip(("epoch", "end_offset"), p.diverging, strict=True))}
                       if p.diverging else {})
                    | leader_field(p.leader)
                    for p in partitions
                ],
            }
            for name, topic_id, partitions in topics
        ],
    }  # fmt: skip
    for response in message["responses"]:
        for partition in response["partitions"]:
            if partition["aborted_transactions"] == ():
                partition["aborted_transactions"] = []
    chunks = produce_fetch_replies.fetch_reply(
        version, [(_key(version >= 13, t), t[2]) for t in topics], error_code=error, session_id=session, throttle_ms=7,
        endpoints=nodes,
    )  # fmt: skip
    assert b"".join(chunks) == schemas.encode(1, version, Kind.RESPONSE, message)
    named = ((_key(version >= 13, t), t[2]) for t in topics)
    steps = produce_fetch_replies.fetch_reply_in_steps(
        version, len(topics), named, session_id=session, endpoints=nodes, step_partitions=2
    )
    pieces = finish(steps)
    whole = message | {"throttle_time": 0, "error_code": 0}
    assert b"".join(pieces) == schemas.encode(1, version, Kind.RESPONSE, whole)
    assert all(part in chunks for _, _, partitions in topics for p in partitions if p.size for part in p.records)


def without_leaders(topics: list) -> list:
    return [(name, topic_id, [part._replace(leader=None) for part in parts]) for name, topic_id, parts in topics]


def _key(by_id: bool, topic: tuple) -> str | bytes:
    name, topic_id, _ = topic
    return topic_id.bytes if by_id else name


def test_a_null_topic_id_is_sixteen_zeros() -> None:
    zero = uuid.UUID(int=0).bytes
    packed = produce_fetch_replies.produce_reply(13, [(zero, [ProducedPartition(0)])])
    reply, _ = schemas.decode(0, 13, Kind.RESPONSE, packed)
    assert reply.responses[0].topic_id is None
