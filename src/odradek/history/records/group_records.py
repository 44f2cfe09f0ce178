"""The row decoder for ``__consumer_offsets`` records that are not commits: groups, members, and unreadable records."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.batches.columns import MAX_MS
from odradek.codecs.consumer_protocol import MalformedProtocol, ProtocolReader, decode_assignment
from odradek.codecs.offsets_topic import (
    CoordinatorRecord,
    GroupMember,
    GroupRecord,
    OffsetCommitRecord,
    UnknownRecord,
    decode,
    format_json,
)
from odradek.codecs.schemas import Fields
from odradek.history.records.columns import NO_MEMBER

Row = dict[str, object]
_EPOCHS = ("epoch", "assignment_epoch", "member_epoch")


def rare_row(key: bytes | None, value: bytes | None, topic_names: Mapping[bytes, str]) -> Row:
    """Returns ``columns.RARE_COLUMNS`` of one record, and ``known``: whether the record could be decoded."""
    record = decode(key, value)
    for ms in _times(record):
        if not -MAX_MS <= ms <= MAX_MS:
            return unknown_row(key, value, f"a column of times does not hold its time {ms} ms")
    if isinstance(record, GroupRecord):
        return {"known": True, "details": _details(key, value)} | _classic(record)
    if isinstance(record, CoordinatorRecord):
        return {"known": True, "details": _details(key, value)} | _kip848_columns(record, topic_names)
    reason = record.reason if isinstance(record, UnknownRecord) else "a commit that only one of two decoders can read"
    return unknown_row(key, value, reason)


def unknown_row(key: bytes | None, value: bytes | None, reason: str) -> Row:
    """Returns the row of a record that is kept as bytes, with the reason."""
    return {"known": False, "key": key, "value": value, "reason": reason}


def _details(key: bytes | None, value: bytes | None) -> str | None:
    """Returns all fields as JSON in the format of Kafka's formatters for ``__consumer_offsets``."""
    assert key is not None
    return format_json(key, value, (int.from_bytes(key[:2], "big"),))


def micros(ms: int) -> int | None:
    """Converts milliseconds since 1970 to microseconds. -1 becomes None."""
    return None if ms == -1 else ms * 1000


def _times(record: object) -> tuple[int, ...]:
    """Returns the times in a record, in milliseconds."""
    match record:
        case OffsetCommitRecord(value=commit) if commit is not None:
            return commit.commit_timestamp_ms, commit.expire_timestamp_ms
        case GroupRecord(value=state) if state is not None:
            return (state.current_state_timestamp_ms,)
        case CoordinatorRecord(value=fields) if fields is not None:
            return (_state_ms(fields),)
    return ()


def _state_ms(fields: Fields) -> int:
    return int(fields.get("assignment_timestamp") or fields.get("timestamp") or -1)


def _classic(record: GroupRecord) -> Row:
    value = record.value
    if value is None:
        return {}
    return {
        "generation": value.generation,
        "protocol_type": value.protocol_type,
        "protocol": value.protocol,
        "leader": value.leader,
        "state_timestamp": micros(value.current_state_timestamp_ms),
        "members": [_classic_member(member, value.protocol_type == "consumer") for member in value.members],
    }


def _classic_member(member: GroupMember, is_consumer: bool) -> Row:
    row: Row = NO_MEMBER | {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "session_timeout_ms": member.session_timeout_ms,
    }
    if is_consumer:  # other protocol types have formats of their own; their bytes are in ``details``
        row["subscription"] = _subscription(member.subscription)
        row["assignment"] = _assignment(member.assignment)
    return row


def _subscription(data: bytes) -> list[str] | None:
    """Returns the topics of a ConsumerProtocolSubscription; None for malformed bytes."""
    reader = ProtocolReader(data)
    try:
        reader.number(2)
        return list(reader.topics())
    except MalformedProtocol:
        return None


def _assignment(data: bytes) -> list[Row] | None:
    try:
        partitions = decode_assignment(data)
    except ValueError:
        return None
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return [{"topic": topic, "topic_id": None, "partitions": numbers} for topic, numbers in by_topic.items()]


def _kip848_columns(record: CoordinatorRecord, topic_names: Mapping[bytes, str]) -> Row:
    fields, member_id = record.value, record.key.get("member_id")
    row: Row = {"member_id": member_id}
    if fields is None:
        return row
    epochs = [fields[name] for name in _EPOCHS if name in fields]
    row["generation"] = epochs[0] if epochs else None
    row["protocol"] = fields.get("server_assignor")
    row["state_timestamp"] = micros(_state_ms(fields))
    if member_id is not None:
        assigned = fields.get("assigned_partitions", fields.get("topic_partitions"))
        row["members"] = [
            NO_MEMBER
            | {
                "member_id": member_id,
                "instance_id": fields.get("instance_id"),
                "client_id": fields.get("client_id"),
                "client_host": fields.get("client_host"),
                "rack_id": fields.get("rack_id"),
                "rebalance_timeout_ms": fields.get("rebalance_timeout_ms"),
                "epoch": fields.get("member_epoch"),
                "subscription": fields.get("subscribed_topic_names"),
                "subscription_regex": fields.get("subscribed_topic_regex"),
                "assignment": None if assigned is None else [_by_id(one, topic_names) for one in assigned],
            }
        ]
    return row


def _by_id(assigned: Fields, topic_names: Mapping[bytes, str]) -> Row:
    topic_id = bytes(assigned["topic_id"])
    return {"topic": topic_names.get(topic_id), "topic_id": topic_id, "partitions": assigned["partitions"]}
