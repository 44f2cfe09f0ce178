"""The records of KIP-848 groups in ``__consumer_offsets``, as Apache Kafka 4.3 writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odradek.core.effects import Record
from odradek.core.record_schemas import RECORD_TYPES, Uuid, encode_key, encode_value
from odradek.groups.assignors import hash_order, uuid_hash
from odradek.groups.consumer_member import ClassicSide, ConsumerMember, MemberState, Owned, Partitions
from odradek.groups.messages import MemberProtocol

GROUP, PARTITION_METADATA, MEMBER, TARGET, TARGET_MEMBER, CURRENT, PATTERN = 3, 4, 5, 6, 7, 8, 16
TYPES = frozenset({GROUP, PARTITION_METADATA, MEMBER, TARGET, TARGET_MEMBER, CURRENT, PATTERN})

Fields = dict[str, Any]


def _record(number: int, key: Fields, value: Fields | None) -> Record:
    kind = RECORD_TYPES[number]
    return Record(encode_key(kind, key), None if value is None else encode_value(kind, 0, value))


def _by_hash(topic_ids: Iterable[bytes]) -> list[bytes]:
    return hash_order(topic_ids, uuid_hash)


# --- writing -----------------------------------------------------------------------------------------------------


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> Record:
    return _record(GROUP, {"group_id": group_id}, {"epoch": epoch, "metadata_hash": metadata_hash})


def group_gone(group_id: str) -> Record:
    return _record(GROUP, {"group_id": group_id}, None)


def partition_metadata_gone(group_id: str) -> Record:
    return _record(PARTITION_METADATA, {"group_id": group_id}, None)


def member(group_id: str, who: ConsumerMember) -> Record:
    classic = who.classic
    value = {
        "instance_id": who.instance_id,
        "rack_id": who.rack_id,
        "client_id": who.client_id,
        "client_host": who.client_host,
        "subscribed_topic_names": sorted(who.topics),
        "subscribed_topic_regex": who.pattern,
        "rebalance_timeout_ms": who.rebalance_timeout_ms,
        "server_assignor": who.assignor,
        "classic_member_metadata": None
        if classic is None
        else {
            "session_timeout_ms": classic.session_timeout_ms,
            "supported_protocols": [{"name": name, "metadata": metadata} for name, metadata in classic.protocols],
        },
    }
    return _record(MEMBER, {"group_id": group_id, "member_id": who.member_id}, value)


def member_gone(group_id: str, member_id: str) -> Record:
    return _record(MEMBER, {"group_id": group_id, "member_id": member_id}, None)


def target(group_id: str, epoch: int, timestamp_ms: int) -> Record:
    value = {"assignment_epoch": epoch, "assignment_timestamp": timestamp_ms}
    return _record(TARGET, {"group_id": group_id}, value)


def target_gone(group_id: str) -> Record:
    return _record(TARGET, {"group_id": group_id}, None)


def target_member(group_id: str, member_id: str, partitions: Partitions) -> Record:
    topics = [
        {"topic_id": Uuid(topic_id), "partitions": sorted(partitions[topic_id])} for topic_id in _by_hash(partitions)
    ]
    return _record(TARGET_MEMBER, {"group_id": group_id, "member_id": member_id}, {"topic_partitions": topics})


def target_member_gone(group_id: str, member_id: str) -> Record:
    return _record(TARGET_MEMBER, {"group_id": group_id, "member_id": member_id}, None)


def current(group_id: str, who: ConsumerMember) -> Record:
    value = {
        "member_epoch": who.epoch,
        "previous_member_epoch": who.previous_epoch,
        "state": int(who.state),
        "assigned_partitions": _owned_fields(who.assigned),
        "partitions_pending_revocation": _owned_fields(who.to_revoke),
    }
    return _record(CURRENT, {"group_id": group_id, "member_id": who.member_id}, value)


def current_gone(group_id: str, member_id: str) -> Record:
    return _record(CURRENT, {"group_id": group_id, "member_id": member_id}, None)


def pattern(group_id: str, expression: str, topics: Iterable[str], version: int, timestamp_ms: int) -> Record:
    value = {"topics": sorted(topics), "version": version, "timestamp": timestamp_ms}
    return _record(PATTERN, {"group_id": group_id, "regular_expression": expression}, value)


def pattern_gone(group_id: str, expression: str) -> Record:
    return _record(PATTERN, {"group_id": group_id, "regular_expression": expression}, None)


def member_removed(group_id: str, member_id: str) -> list[Record]:
    return [
        current_gone(group_id, member_id),
        target_member_gone(group_id, member_id),
        member_gone(group_id, member_id),
    ]


def _owned_fields(owned: Owned) -> list[Fields]:
    fields = []
    for topic_id in _by_hash(owned):
        partitions = sorted(owned[topic_id])
        epochs = [owned[topic_id][partition] for partition in partitions]
        fields.append({"topic_id": Uuid(topic_id), "partitions": partitions, "assignment_epochs": epochs})
    return fields


# --- reading -----------------------------------------------------------------------------------------------------


def with_metadata(who: ConsumerMember, value: Mapping[str, Any]) -> ConsumerMember:
    """The member with what a record of type 5 says of it."""
    classic = value["classic_member_metadata"]
    return who._replace(
        instance_id=value["instance_id"],
        rack_id=value["rack_id"],
        client_id=value["client_id"],
        client_host=value["client_host"],
        topics=frozenset(value["subscribed_topic_names"]),
        pattern=value["subscribed_topic_regex"] or "",
        rebalance_timeout_ms=value["rebalance_timeout_ms"],
        assignor=value["server_assignor"],
        classic=None
        if classic is None
        else ClassicSide(
            classic["session_timeout_ms"],
            tuple(MemberProtocol(row["name"], row["metadata"]) for row in classic["supported_protocols"]),
        ),
    )


def with_assignment(who: ConsumerMember, value: Mapping[str, Any]) -> ConsumerMember:
    """The member with what a record of type 8 says of it."""
    epoch = value["member_epoch"]
    known = value["state"] in (0, 1, 2)
    return who._replace(
        epoch=epoch,
        previous_epoch=value["previous_member_epoch"],
        state=MemberState(value["state"]) if known else MemberState.UNKNOWN,
        assigned=_owned(value["assigned_partitions"], epoch),
        to_revoke=_owned(value["partitions_pending_revocation"], epoch),
    )


def _owned(topics: Iterable[Mapping[str, Any]], member_epoch: int) -> Owned:
    """Brokers before 4.3 wrote no epochs: then the member's own counts."""
    owned = {}
    for topic in topics:
        partitions, epochs = topic["partitions"], topic["assignment_epochs"]
        if epochs is None or len(epochs) != len(partitions):
            epochs = [max(member_epoch, 0)] * len(partitions)
        owned[bytes(topic["topic_id"])] = dict(zip(partitions, epochs, strict=True))
    return owned


def partitions_of(value: Mapping[str, Any]) -> Partitions:
    """The target in a record of type 7."""
    return {bytes(topic["topic_id"]): frozenset(topic["partitions"]) for topic in value["topic_partitions"]}
