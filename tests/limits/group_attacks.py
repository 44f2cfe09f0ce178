"""Attacks by groups of thousands of members, as rows of the table in docs/limits.md."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attacks import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    JOIN_GROUP,
    SYNC_GROUP,
    Attack,
    created,
    until,
)
from support.brokers import unique
from target import Peer, Target, encoded

from odradek.wire.api_keys import LEAVE_GROUP

MEMBERS = 4_000
PEERS = 16
METADATA_BYTES = 2_000
ASSIGNMENT_BYTES = 2_500
_FIRST_WAIT_MS = 4_000
"""The time for which a new group waits for more members, so that all of them get their replies together."""
_LARGE = {"group.initial.rebalance.delay.ms": str(_FIRST_WAIT_MS), "message.max.bytes": str(64 << 20)}
_SMALL = {"group.initial.rebalance.delay.ms": str(_FIRST_WAIT_MS)}
_BRIEF = {"group.consumer.min.session.timeout.ms": "1000", "group.consumer.session.timeout.ms": "8000"}
CONSUMERS = 2_000
_BEATS_S = 15


class Group(NamedTuple):
    """A group whose members have joined. The first member is the leader."""

    name: str
    generation: int
    members: list[str]


def joined(target: Target, session_ms: int = 300_000) -> Group:
    """All members of a new group join at once, each with its metadata. Returns when all have got their replies."""
    name = unique("crowd")
    message = {"group_id": name, "session_timeout": session_ms, "rebalance_timeout": 120_000, "member_id": "",
               "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": metadata()}]}  # fmt: skip
    ids: list[str] = []
    leader, generation = "", -1
    for reply in exchanged(target, JOIN_GROUP, 3, [encoded(JOIN_GROUP, 3, message)] * MEMBERS):
        ids.append(reply.member_id)
        leader, generation = reply.leader, reply.generation_id
    return Group(name, generation, sorted(ids, key=lambda member: member != leader))


def metadata() -> bytes:
    """A subscription to many topics, without user data."""
    topics = [b"\0\x08topic%03d" % number for number in range(METADATA_BYTES // 10)]
    return b"\0\1" + len(topics).to_bytes(4, "big") + b"".join(topics) + b"\xff\xff\xff\xff" + bytes(4)


def exchanged(target: Target, api_key: int, version: int, requests: list[bytes]) -> list[Any]:
    """Sends all requests over a few connections, and collects the replies."""
    peers = [target.connect() for _ in range(PEERS)]
    for number, peer in enumerate(peers):
        peer.send_raw(b"".join([peer.packed(api_key, version, body) for body in requests[number::PEERS]]))
    replies = []
    for number, peer in enumerate(peers):
        for _ in requests[number::PEERS]:
            reply = peer.receive(api_key, version)
            assert reply is not None, "every request is answered"
            replies.append(reply)
    return replies


def _sync(group: Group, member: str, assignments: Mapping[str, bytes]) -> bytes:
    rows = [{"member_id": name, "assignment": share} for name, share in assignments.items()]
    message = {"group_id": group.name, "generation_id": group.generation, "member_id": member, "assignments": rows}
    return encoded(SYNC_GROUP, 2, message)


def synced(target: Target, group: Group) -> Group:
    """All members wait for the assignment, then the leader sends it."""
    leader, *others = group.members
    plan = _sync(group, leader, dict.fromkeys(group.members, bytes(ASSIGNMENT_BYTES)))
    waiting = [_sync(group, member, {}) for member in others]
    peers = [target.connect() for _ in range(PEERS)]
    for number, peer in enumerate(peers):
        peer.send_raw(b"".join([peer.packed(SYNC_GROUP, 2, body) for body in waiting[number::PEERS]]))
    time.sleep(1)
    target.ask(SYNC_GROUP, 2, plan)
    for number, peer in enumerate(peers):
        for _ in waiting[number::PEERS]:
            assert peer.receive(SYNC_GROUP, 2) is not None, "each member gets its assignment"
    return group


def _coordinated(then: Callable[[Target], Any]) -> Callable[[Target], Any]:
    """Waits for the coordinator first. Replies to the preparation are not counted."""

    def prepare(target: Target) -> Any:
        until(target, FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]},
              lambda reply: reply.coordinators[0].error_code == 0)  # fmt: skip
        return then(target)

    return prepare


def many_join(target: Target, _: Any) -> None:
    joined(target)


def many_sync(target: Target, group: Group) -> None:
    synced(target, group)


def one_large_group_described(target: Target, group: Group) -> None:
    target.ask(DESCRIBE_GROUPS, 5, {"groups": [group.name], "include_authorized_operations": False})


def many_leave(target: Target, group: Group) -> None:
    gone = [{"member_id": member, "group_instance_id": None} for member in group.members[:1000]]
    target.ask(LEAVE_GROUP, 3, {"group_id": group.name, "members": gone})


def many_sessions_end(target: Target, group: Group) -> None:
    message = {"groups": [group.name], "include_authorized_operations": False}
    until(target, DESCRIBE_GROUPS, 5, message, lambda reply: reply.groups[0].group_state == "Empty")


def one_new_member(target: Target, group: Group) -> None:
    """A KIP-848 member joins and leaves: the group becomes a KIP-848 group and then a classic group again."""
    member = str(uuid.uuid4())
    target.ask(CONSUMER_GROUP_HEARTBEAT, 1, _beat(group.name, member, 0, "topic000", {}))
    target.ask(CONSUMER_GROUP_HEARTBEAT, 1, _beat(group.name, member, -1, "topic000", {member: None}))


class _Consumer(NamedTuple):
    peer: Peer
    member: str


def many_consumers(target: Target, topic: str) -> None:
    """Members of a KIP-848 group join, and follow their assignments for some time."""
    group, peers = unique("consumers"), [target.connect() for _ in range(PEERS)]
    consumers = [_Consumer(peers[number % PEERS], str(uuid.uuid4())) for number in range(CONSUMERS)]
    epochs = dict.fromkeys((consumer.member for consumer in consumers), 0)
    owned: dict[str, Any] = dict.fromkeys(epochs, ())
    deadline = time.monotonic() + _BEATS_S
    rounds(group, topic, consumers, epochs, owned, deadline)


def silent_consumers(target: Target, topic: str) -> None:
    """Members of a KIP-848 group join, and then send no heartbeats."""
    group, peers = unique("consumers"), [target.connect() for _ in range(PEERS)]
    consumers = [_Consumer(peers[number % PEERS], str(uuid.uuid4())) for number in range(CONSUMERS)]
    epochs = dict.fromkeys((consumer.member for consumer in consumers), 0)
    owned: dict[str, Any] = dict.fromkeys(epochs, ())
    rounds(group, topic, consumers, epochs, owned, time.monotonic() + 4)
    message = {"group_ids": [group], "include_authorized_operations": False}
    until(target, CONSUMER_GROUP_DESCRIBE, 1, message, lambda reply: reply.groups[0].group_state == "Empty")


def rounds(
    group: str,
    topic: str,
    consumers: list[_Consumer],
    epochs: dict[str, int],
    owned: dict[str, Any],
    deadline: float,
) -> None:
    """In each round every member sends a heartbeat and reads the reply."""
    peers = list(dict.fromkeys(consumer.peer for consumer in consumers))
    while time.monotonic() < deadline:
        for peer in peers:
            requests = [
                peer.packed(
                    CONSUMER_GROUP_HEARTBEAT, 1, _beat(group, consumer.member, epochs[consumer.member], topic, owned)
                )
                for consumer in consumers
                if consumer.peer is peer
            ]
            peer.send_raw(b"".join(requests))
        for consumer in consumers:
            reply = consumer.peer.receive(CONSUMER_GROUP_HEARTBEAT, 1)
            assert reply is not None, "every heartbeat is answered"
            epochs[consumer.member] = max(reply.member_epoch, 0)
            if reply.assignment is not None:
                owned[consumer.member] = [
                    {"topic_id": row.topic_id, "partitions": row.partitions}
                    for row in reply.assignment.topic_partitions
                ]


def _beat(group: str, member: str, epoch: int, topic: str, owned: Mapping[str, Any]) -> dict[str, Any]:
    joins = epoch == 0
    return {
        "group_id": group, "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 60_000 if joins else -1, "subscribed_topic_names": [topic] if joins else None,
        "subscribed_topic_regex": None, "server_assignor": None,
        "topic_partitions": [] if joins else owned[member],
    }  # fmt: skip


def _wide_topic(target: Target) -> str:
    return created(target, CONSUMERS)[0]


def _brief(target: Target) -> Group:
    return synced(target, joined(target, 12_000))


def _settled(target: Target) -> Group:
    return synced(target, joined(target))


GROUP_ATTACKS = (
    Attack("17", "JoinGroup of 4,000 members with 2 kB of metadata", many_join, _coordinated(lambda _: None), _LARGE),
    Attack("17b", "SyncGroup with assignments of 10 MB for them", many_sync, _coordinated(joined), _LARGE),
    Attack("17c", "the same where the record is too large", many_sync, _coordinated(joined), _SMALL),
    Attack("17d", "DescribeGroups of that group", one_large_group_described, _coordinated(_settled), _LARGE),
    Attack("17e", "LeaveGroup of 1,000 of them", many_leave, _coordinated(_settled), _LARGE),
    Attack("17f", "their sessions end at once", many_sessions_end, _coordinated(_brief), _LARGE),
    Attack("17g", "a KIP-848 member joins that group, and leaves", one_new_member, _coordinated(_settled), _LARGE),
    Attack("18", "2,000 members of a KIP-848 group on 2,000 partitions", many_consumers, _coordinated(_wide_topic)),
    Attack("18b", "their sessions end at once", silent_consumers, _coordinated(_wide_topic), _BRIEF),
)
