"""The broker and a client that encodes requests itself: details that libraries hide, and requests that they never
send."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
from kio.serial._introspect import classify_field, get_field_tag, is_optional
from support.brokers import Wire, eventually, unique
from support.publish import STARTING, create_topic, publish

from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_group
from odradek.wire import frames, schemas
from odradek.wire.api_keys import (
    API_VERSIONS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from odradek.wire.schemas import Kind


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


def coordinator(wire: Wire, group: str) -> Any:
    """FindCoordinator, repeated until the coordinator has loaded."""

    def found() -> Any:
        reply = wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
        (row,) = reply.coordinators
        return row if row.error_code == ErrorCode.none else None

    return eventually(found)


def subscription(note: str) -> bytes:
    """A subscription of the consumer protocol, version 0: one topic, then ``note`` as the user data."""
    return struct.pack(">hih5si", 0, 1, 5, b"whale", len(note)) + note.encode()


def join(
    group: str, member: str = "", *, protocols: list[str] | None = None, session_ms: int = 10_000
) -> dict[str, Any]:
    names = protocols or ["range"]
    return {
        "group_id": group,
        "session_timeout": session_ms,
        "rebalance_timeout": 10_000,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": subscription(name)} for name in names],
        "reason": None,
    }


def joined(wire: Wire, group: str) -> str:
    """Sends a first join without a member id. Returns the member id that the broker assigns."""
    coordinator(wire, group)
    # behaviour 42
    reply = eventually(lambda: _not_starting(wire.call(JOIN_GROUP, 9, join(group))))
    assert reply.error_code == ErrorCode.member_id_required
    assert reply.member_id.startswith(wire.client_id + "-")
    return str(reply.member_id)


def _not_starting(reply: Any) -> Any:
    return None if reply.error_code in STARTING else reply


@pytest.mark.claim(60, 79, part=True)
def test_the_coordinator_leads_the_group_s_partition(wire: Wire, group: str) -> None:
    found = coordinator(wire, group)
    reply = wire.call(
        METADATA,
        12,
        {
            "topics": [{"topic_id": None, "name": "__consumer_offsets"}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    )
    (topic,) = reply.topics
    leaders = {int(row.partition_index): row.leader_id for row in topic.partitions}
    assert len(leaders) == 50
    assert leaders[partition_for_group(group, 50)] == found.node_id
    assert {row.node_id: (row.host, row.port) for row in reply.brokers}[found.node_id] == (found.host, found.port)


@pytest.mark.claim(61, 62)
@pytest.mark.claim(64, part=True)
@pytest.mark.behaviour(3, part=True)
def test_only_the_leader_gets_the_members_and_each_member_gets_its_assignment(bootstrap: str, group: str) -> None:
    # Each join raises the generation.
    with Wire(bootstrap, "one") as one, Wire(bootstrap, "two") as two:
        first = joined(one, group)
        alone = one.call(JOIN_GROUP, 9, join(group, first))
        assert (alone.error_code, alone.leader, alone.member_id) == (ErrorCode.none, first, first)
        assert [row.member_id for row in alone.members] == [first]
        assert alone.members[0].metadata == subscription("range")
        plan = [{"member_id": first, "assignment": b"all of it"}]
        assert sync(one, group, alone.generation_id, first, plan).assignment == b"all of it"

        second = joined(two, group)
        asked = two.send(JOIN_GROUP, 9, join(group, second))
        eventually(
            lambda: heartbeat(one, group, alone.generation_id, first) == ErrorCode.rebalance_in_progress,
            what="the first member is asked to rejoin",
        )
        again = one.call(JOIN_GROUP, 9, join(group, first))
        other = two.receive(JOIN_GROUP, 9, asked)
        assert again.generation_id == other.generation_id == alone.generation_id + 1
        leader, follower = (again, other) if again.leader == first else (other, again)
        assert {row.member_id for row in leader.members} == {first, second}
        assert list(follower.members) == []
        assert leader.protocol_name == follower.protocol_name == "range"

        plan = [{"member_id": first, "assignment": b"left"}, {"member_id": second, "assignment": b"right"}]
        follows, leads = (two, one) if again.leader == first else (one, two)
        waiting = follows.send(SYNC_GROUP, 5, sync_request(group, again.generation_id, follower.member_id, []))
        led = sync(leads, group, again.generation_id, leader.member_id, plan)
        followed = follows.receive(SYNC_GROUP, 5, waiting)
        shares = {leader.member_id: led.assignment, follower.member_id: followed.assignment}
        assert shares == {first: b"left", second: b"right"}
        assert heartbeat(one, group, again.generation_id, first) == ErrorCode.none
        assert heartbeat(one, group, again.generation_id - 1, first) == ErrorCode.illegal_generation
        assert heartbeat(one, group, again.generation_id, "who") == ErrorCode.unknown_member_id


def sync_request(group: str, generation: int, member: str, plan: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": plan,
    }


def sync(wire: Wire, group: str, generation: int, member: str, plan: list[dict[str, Any]]) -> Any:
    reply = wire.call(SYNC_GROUP, 5, sync_request(group, generation, member, plan))
    assert reply.error_code == ErrorCode.none
    return reply


def heartbeat(wire: Wire, group: str, generation: int, member: str) -> ErrorCode:
    request = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
    return ErrorCode(wire.call(HEARTBEAT, 4, request).error_code)


@pytest.mark.claim(70, part="c")
@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeouts_have_limits(wire: Wire, group: str, session_ms: int) -> None:
    # Timeouts from 6 s to 30 min are allowed.
    coordinator(wire, group)
    reply = eventually(lambda: _not_starting(wire.call(JOIN_GROUP, 9, join(group, session_ms=session_ms))))
    assert reply.error_code == ErrorCode.invalid_session_timeout


@pytest.mark.claim(70, part=True)
def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(wire: Wire, group: str) -> None:
    # A heartbeat renews the session; without heartbeats the session ends.
    member = joined(wire, group)
    generation = wire.call(JOIN_GROUP, 9, join(group, member, session_ms=6000)).generation_id
    sync(wire, group, generation, member, [{"member_id": member, "assignment": b""}])
    assert heartbeat(wire, group, generation, member) == ErrorCode.none

    def gone() -> bool:
        (row,) = wire.call(15, 5, {"groups": [group], "include_authorized_operations": False}).groups
        return str(row.group_state) == "Empty" and not row.members

    assert not gone()
    eventually(gone, within_s=10, every_s=0.2)
    assert heartbeat(wire, group, generation, member) == ErrorCode.unknown_member_id


def commit_request(group: str, topic: str, offset: int, *, member: str = "", generation: int = -1, partition: int = 0,
                   note: str | None = "", epoch: int = -1) -> dict[str, Any]:  # fmt: skip
    row = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "committed_metadata": note,
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": topic, "partitions": [row]}],
    }


def commit_errors(wire: Wire, version: int, request: dict[str, Any]) -> list[ErrorCode]:
    reply = wire.call(OFFSET_COMMIT, version, request)
    return [ErrorCode(row.error_code) for topic in reply.topics for row in topic.partitions]


@pytest.mark.behaviour(1, 9)
@pytest.mark.behaviour(8, part=True)
def test_commits_are_stored_in_every_version_with_topic_names(
    wire: Wire, bootstrap: str, topic: str, group: str
) -> None:
    # Unknown partitions are refused; offsets beyond the log end are not.
    create_topic(bootstrap, topic)
    coordinator(wire, group)
    oldest, newest = wire.versions()[OFFSET_COMMIT]
    for version in range(oldest, min(newest, 9) + 1):
        request = commit_request(group, topic, 1000 + version, note=f"v{version}", epoch=0)
        assert commit_errors(wire, version, request) == [ErrorCode.none], version
        (found,) = fetch_offsets(wire, group, topic)
        epoch = 0 if version >= 6 else -1
        assert found == (1000 + version, epoch, f"v{version}"), version
    assert commit_errors(wire, 8, commit_request(group, topic, 1, partition=7)) == [
        ErrorCode.unknown_topic_or_partition
    ]
    assert commit_errors(wire, 8, commit_request(group, unique("topic"), 1)) == [ErrorCode.unknown_topic_or_partition]


def fetch_offsets(wire: Wire, group: str, topic: str) -> list[tuple[int, int, str]]:
    wanted = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "member_id": None,
        "member_epoch": -1,
    }
    (found,) = wire.call(OFFSET_FETCH, 8, {"groups": [wanted], "require_stable": False}).groups
    assert found.error_code == ErrorCode.none
    return [
        (int(row.committed_offset), int(row.committed_leader_epoch), str(row.metadata))
        for found_topic in found.topics
        for row in found_topic.partitions
    ]


@pytest.mark.behaviour(2, 3, 25)
@pytest.mark.behaviour(4, 5, part=True)
def test_commits_are_fenced(wire: Wire, bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    coordinator(wire, group)
    assert fetch_offsets(wire, group, topic) == [(-1, -1, "")]
    unknown_member = commit_request(group, topic, 1, member="who", generation=3)
    assert commit_errors(wire, 8, unknown_member) == [ErrorCode.illegal_generation]
    assert commit_errors(wire, 9, unknown_member) == [ErrorCode.group_id_not_found]
    member = joined(wire, group)
    generation = wire.call(JOIN_GROUP, 9, join(group, member)).generation_id
    ours = commit_request(group, topic, 5, member=member, generation=generation)
    # Until the leader has sent the assignment, the broker refuses commits of members.
    assert commit_errors(wire, 8, ours) == [ErrorCode.rebalance_in_progress]
    sync(wire, group, generation, member, [{"member_id": member, "assignment": b""}])
    assert commit_errors(wire, 8, ours) == [ErrorCode.none]
    stale = commit_request(group, topic, 6, member=member, generation=generation - 1)
    assert commit_errors(wire, 8, stale) == [ErrorCode.illegal_generation]
    other = commit_request(group, topic, 6, member="who", generation=generation)
    assert commit_errors(wire, 8, other) == [ErrorCode.unknown_member_id]
    assert commit_errors(wire, 8, commit_request(group, topic, 6)) == [ErrorCode.unknown_member_id]
    assert fetch_offsets(wire, group, topic) == [(5, -1, "")]


@pytest.mark.behaviour(7)
def test_too_long_metadata_fails_only_its_partition(wire: Wire, bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 2)
    coordinator(wire, group)
    request = commit_request(group, topic, 4, note="x" * 4097)
    request["topics"][0]["partitions"] += commit_request(group, topic, 5, partition=1, note="x" * 4096)["topics"][0][
        "partitions"
    ]
    reply = wire.call(OFFSET_COMMIT, 8, request)
    codes = {int(row.partition_index): row.error_code for row in reply.topics[0].partitions}
    assert codes == {0: ErrorCode.offset_metadata_too_large, 1: ErrorCode.none}
    assert fetch_offsets(wire, group, topic) == [(-1, -1, "")]


def test_replies_keep_the_order_of_requests(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    with Wire(bootstrap) as wire:
        coordinator(wire, group)
        sent = [wire.send(OFFSET_COMMIT, 8, commit_request(group, topic, n)) for n in range(300)]
        for correlation_id in sent:
            reply = wire.receive(OFFSET_COMMIT, 8, correlation_id)
            assert reply.topics[0].partitions[0].error_code == ErrorCode.none
        assert fetch_offsets(wire, group, topic) == [(299, -1, "")]


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(wire: Wire) -> None:
    wire.socket.sendall(frames.frame(struct.pack(">hhih", API_VERSIONS, 99, 7, -1), b"\0\0"))
    (reply,) = next_frames(wire, 1)
    correlation_id, message = int.from_bytes(reply[:4], "big"), None
    message, _ = schemas.decode(API_VERSIONS, 0, Kind.RESPONSE, reply, 4)
    assert correlation_id == 7
    assert message.error_code == ErrorCode.unsupported_version
    assert any(row.api_key == API_VERSIONS for row in message.api_keys)
    # The connection stays open.
    assert wire.versions()[API_VERSIONS][0] == 0


def next_frames(wire: Wire, count: int) -> list[bytes]:
    found: list[bytes] = []
    reader = frames.FrameReader()
    while len(found) < count:
        data = wire.socket.recv(1 << 16)
        assert data, "the broker closed the connection"
        found.extend(reader.feed(data))
    return found


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -5),
        struct.pack(">i", 2_000_000_000) + b"x",
        frames.frame(b"\x00"),
        frames.frame(struct.pack(">hhih", 9_999, 0, 1, -1)),
        frames.frame(struct.pack(">hhih", OFFSET_COMMIT, 8, 1, -1) + b"\0\xff\xff\xff\xff\x7f"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["negative", "absurd", "short", "unknown API", "malformed body", "HTTP"],
)
def test_garbage_closes_only_its_connection(bootstrap: str, garbage: bytes) -> None:
    with Wire(bootstrap) as good, Wire(bootstrap, timeout_s=10) as bad:
        bad.socket.sendall(garbage)
        # The broker may already have closed the connection, or reset it because of unread bytes.
        answered = b""
        try:
            bad.socket.shutdown(socket.SHUT_WR)
            answered = bad.socket.recv(100)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
                raise
        assert answered == b""
        assert API_VERSIONS in good.versions()


def test_a_request_may_arrive_byte_by_byte(wire: Wire) -> None:
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = frames.encode_request(
        API_VERSIONS, 3, 5, "slow", {"client_software_name": "a", "client_software_version": "1"}
    )
    for byte in request:
        wire.socket.sendall(bytes([byte]))
    (reply,) = next_frames(wire, 1)
    assert frames.decode_reply(API_VERSIONS, 3, reply)[0] == 5


def empty(entity: Any, **given: Any) -> dict[str, Any]:
    """A request with minimal values: nulls, empty arrays and texts, zeros."""
    zero = {"string": "", "bytes": b"", "records": b"", "uuid": UUID(int=0), "bool": False}

    def value(field: Any) -> Any:
        kind = classify_field(field)
        if kind.is_array:
            return []
        if field.metadata.get("kafka_type") is None:
            return None if is_optional(field) else empty(kind.type_)
        return None if is_optional(field) else zero.get(field.metadata["kafka_type"], 0)

    untagged = [field for field in fields(entity) if get_field_tag(field) is None]
    return {field.name: value(field) for field in untagged} | given


# Values in place of those of ``empty``, by API key. Produce with acks=0 gets no reply. The broker refuses ApiVersions
# with an empty client name, and InitProducerId with an unknown producer id such as 0.
MINIMAL_VALUES = {
    0: {"acks": 1},
    18: {"client_software_name": "t", "client_software_version": "1"},
    22: {"producer_id": -1, "producer_epoch": -1, "transaction_timeout": 1000},
}
SERVED = [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 32, 37, 42, 44, 47, 60, 75]


@pytest.mark.parametrize("api_key", SERVED, ids=schemas.api_name)
def test_each_advertised_version_has_its_own_reply_format(wire: Wire, api_key: int) -> None:
    oldest, newest = wire.versions()[api_key]
    known = schemas.known_versions(api_key)  # like Kafka, the broker advertises Produce 0 to 2 only for old clients
    versions = range(max(oldest, known[0]), min(newest, known[1]) + 1)
    assert len(versions) >= 1
    for version in versions:
        request = empty(schemas.message_type(api_key, version, Kind.REQUEST)) | MINIMAL_VALUES.get(api_key, {})
        wire.socket.sendall(frames.encode_request(api_key, version, 4711, "wire-test", request))
        (reply,) = next_frames(wire, 1)
        head = frames.reply_head(api_key, version, 4711)
        assert reply[: len(head)] == head
        _, size = schemas.decode(api_key, version, Kind.RESPONSE, reply, len(head))
        assert len(head) + size == len(reply), f"version {version}: bytes left over"


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("topic", [{"topic_id": None, "name": None}, {"topic_id": UUID(int=5), "name": "x"}])
def test_metadata_by_id_needs_version_12(wire: Wire, version: int, topic: dict[str, Any]) -> None:
    asked = {"topics": [topic], "allow_auto_topic_creation": False}
    authorized = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
    reply = wire.call(METADATA, version, asked | authorized)
    assert list(reply.brokers) == []
    assert [(row.error_code, row.name or "", row.topic_id) for row in reply.topics] == [
        (ErrorCode.invalid_request, topic["name"] or "", topic["topic_id"])
    ]
    reply = wire.call(METADATA, 12, asked | authorized | {"topics": [topic | {"topic_id": UUID(int=5)}]})
    assert [(row.error_code, row.name) for row in reply.topics] == [(ErrorCode.unknown_topic_id, None)]


def test_metadata_is_answered_in_every_version(wire: Wire, bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, [b"x"])
    oldest, newest = wire.versions()[METADATA]
    for version in range(oldest, min(newest, schemas.known_versions(METADATA)[1]) + 1):
        reply = wire.call(
            METADATA,
            version,
            {
                "topics": [{"topic_id": None, "name": topic}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        assert [str(found.name) for found in reply.topics] == [topic]
        assert [row.leader_id for row in reply.topics[0].partitions] == [reply.brokers[0].node_id]
