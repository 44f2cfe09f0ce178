"""The records of KIP-848 groups in ``__consumer_offsets``, as Apache Kafka 4.3 writes them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Generator, Iterable
from typing import Any

from odradek.codecs.schemas import RECORD_TYPES, Fields, PackedArray, Uuid, encode_key, encode_value
from odradek.core.effects import SimpleRecord
from odradek.core.ids import hash_order
from odradek.core.pace import Pace
from odradek.core.varints import uvarint
from odradek.groups.kip848.assignors import uuid_hash
from odradek.groups.kip848.member import (
    ClassicMemberMetadata,
    Kip848Member,
    Kip848MemberState,
    Owned,
    Partitions,
    ResolvedPattern,
)
from odradek.groups.messages import MemberProtocol

GROUP, PARTITION_METADATA, MEMBER, TARGET, TARGET_MEMBER, CURRENT, PATTERN = 3, 4, 5, 6, 7, 8, 16
_INTEGERS = 20  # packing this number of integers takes as much time as packing a topic
TYPES = frozenset({GROUP, PARTITION_METADATA, MEMBER, TARGET, TARGET_MEMBER, CURRENT, PATTERN})

FEW = 3
"""A number of topics. A record with more topics is packed in steps and replayed without a decode."""


class GroupChange(SimpleRecord):
    """A record of many topics with its decoded form, ``content``.

    ``name`` is a member's id or a pattern. A member's ``content`` is the Kip848Member or its target assignment. A
    pattern's ``content`` is its ResolvedPattern.
    """

    __slots__ = ("content", "group_id", "name", "number")
    __setattr__ = object.__setattr__

    def __init__(self, record: SimpleRecord, number: int, group_id: str, name: str, content: Any) -> None:
        super().__init__(record.key, record.value)
        self.number = number
        self.group_id = group_id
        self.name = name
        self.content = content


def _record(number: int, key: Fields, value: Fields | None) -> SimpleRecord:
    kind = RECORD_TYPES[number]
    return SimpleRecord(encode_key(kind, key), None if value is None else encode_value(kind, 0, value))


def _by_hash(topic_ids: Iterable[bytes]) -> list[bytes]:
    return hash_order(topic_ids, uuid_hash)


# --- writing -----------------------------------------------------------------------------------------------------


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> SimpleRecord:
    return _record(GROUP, {"group_id": group_id}, {"epoch": epoch, "metadata_hash": metadata_hash})


def group_tombstone(group_id: str) -> SimpleRecord:
    return _record(GROUP, {"group_id": group_id}, None)


def partition_metadata_tombstone(group_id: str) -> SimpleRecord:
    return _record(PARTITION_METADATA, {"group_id": group_id}, None)


def member(group_id: str, consumer: Kip848Member, names: PackedArray | None = None) -> SimpleRecord:
    classic = consumer.classic
    value = {
        "instance_id": consumer.instance_id,
        "rack_id": consumer.rack_id,
        "client_id": consumer.client_id,
        "client_host": consumer.client_host,
        "subscribed_topic_names": sorted(consumer.topics) if names is None else names,
        "subscribed_topic_regex": consumer.pattern,
        "rebalance_timeout_ms": consumer.rebalance_timeout_ms,
        "server_assignor": consumer.assignor,
        "classic_member_metadata": None
        if classic is None
        else {
            "session_timeout_ms": classic.session_timeout_ms,
            "supported_protocols": [{"name": name, "metadata": metadata} for name, metadata in classic.protocols],
        },
    }
    return _record(MEMBER, {"group_id": group_id, "member_id": consumer.member_id}, value)


def member_tombstone(group_id: str, member_id: str) -> SimpleRecord:
    return _record(MEMBER, {"group_id": group_id, "member_id": member_id}, None)


def target(group_id: str, epoch: int, timestamp_ms: int) -> SimpleRecord:
    value = {"assignment_epoch": epoch, "assignment_timestamp": timestamp_ms}
    return _record(TARGET, {"group_id": group_id}, value)


def target_tombstone(group_id: str) -> SimpleRecord:
    return _record(TARGET, {"group_id": group_id}, None)


def target_member(
    group_id: str, member_id: str, partitions: Partitions, packed: PackedArray | None = None
) -> SimpleRecord:
    topics = packed or [
        {"topic_id": Uuid(topic_id), "partitions": sorted(partitions[topic_id])} for topic_id in _by_hash(partitions)
    ]
    return _record(TARGET_MEMBER, {"group_id": group_id, "member_id": member_id}, {"topic_partitions": topics})


def target_member_tombstone(group_id: str, member_id: str) -> SimpleRecord:
    return _record(TARGET_MEMBER, {"group_id": group_id, "member_id": member_id}, None)


def current(
    group_id: str, consumer: Kip848Member, assigned: PackedArray | None = None, to_revoke: PackedArray | None = None
) -> SimpleRecord:
    value = {
        "member_epoch": consumer.epoch,
        "previous_member_epoch": consumer.previous_epoch,
        "state": int(consumer.state),
        "assigned_partitions": assigned or _owned_fields(consumer.assigned),
        "partitions_pending_revocation": to_revoke or _owned_fields(consumer.to_revoke),
    }
    return _record(CURRENT, {"group_id": group_id, "member_id": consumer.member_id}, value)


def current_tombstone(group_id: str, member_id: str) -> SimpleRecord:
    return _record(CURRENT, {"group_id": group_id, "member_id": member_id}, None)


def pattern(
    group_id: str, expression: str, topics: list[str] | PackedArray, version: int, timestamp_ms: int
) -> SimpleRecord:
    value = {"topics": topics, "version": version, "timestamp": timestamp_ms}
    return _record(PATTERN, {"group_id": group_id, "regular_expression": expression}, value)


def pattern_tombstone(group_id: str, expression: str) -> SimpleRecord:
    return _record(PATTERN, {"group_id": group_id, "regular_expression": expression}, None)


def member_tombstones(group_id: str, member_id: str) -> list[SimpleRecord]:
    return [
        current_tombstone(group_id, member_id),
        target_member_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]


def _owned_fields(owned: Owned) -> list[Fields]:
    fields = []
    for topic_id in _by_hash(owned):
        partitions = sorted(owned[topic_id])
        epochs = [owned[topic_id][partition] for partition in partitions]
        fields.append({"topic_id": Uuid(topic_id), "partitions": partitions, "assignment_epochs": epochs})
    return fields


# --- writing in steps --------------------------------------------------------------------------------------------

Making = Generator[None, None, SimpleRecord]


def member_in_steps(group_id: str, consumer: Kip848Member, pace: Pace, few: int | None = None) -> Making:
    if len(consumer.topics) <= (FEW if few is None else few):
        return member(group_id, consumer)
    record = member(group_id, consumer, (yield from _packed_names(consumer.topics, pace)))
    return GroupChange(record, MEMBER, group_id, consumer.member_id, consumer)


def target_member_in_steps(
    group_id: str, member_id: str, partitions: Partitions, pace: Pace, few: int | None = None
) -> Making:
    if len(partitions) <= (FEW if few is None else few):
        return target_member(group_id, member_id, partitions)
    out = [uvarint(len(partitions) + 1)]
    ordered: dict[bytes, frozenset[int]] = {}
    for topic_id in _by_hash(partitions):
        numbers = ordered[topic_id] = partitions[topic_id]
        out += (topic_id, _int32s(sorted(numbers)), b"\0")
        if pace.spend(1 + len(numbers) // _INTEGERS):
            yield
    record = target_member(group_id, member_id, {}, PackedArray(b"".join(out)))
    return GroupChange(record, TARGET_MEMBER, group_id, member_id, ordered)


def current_in_steps(group_id: str, consumer: Kip848Member, pace: Pace, few: int | None = None) -> Making:
    if len(consumer.assigned) + len(consumer.to_revoke) <= (FEW if few is None else few):
        return current(group_id, consumer)
    packed: list[PackedArray] = []
    ordered: list[Owned] = []
    for owned in (consumer.assigned, consumer.to_revoke):
        out = [uvarint(len(owned) + 1)]
        kept: dict[bytes, dict[int, int]] = {}
        for topic_id in _by_hash(owned):
            epochs = kept[topic_id] = dict(sorted(owned[topic_id].items()))
            out += (topic_id, _int32s(epochs), _epochs_tag(epochs.values()))
            if pace.spend(1 + len(epochs) // _INTEGERS):
                yield
        packed.append(PackedArray(b"".join(out)))
        ordered.append(kept)
    record = current(group_id, consumer, *packed)
    after = consumer._replace(assigned=ordered[0], to_revoke=ordered[1])
    return GroupChange(record, CURRENT, group_id, consumer.member_id, after)


def pattern_in_steps(group_id: str, expression: str, resolved: ResolvedPattern, pace: Pace) -> Making:
    topics, version, timestamp_ms = resolved
    if len(topics) <= FEW:
        return pattern(group_id, expression, sorted(topics), version, timestamp_ms)
    record = pattern(group_id, expression, (yield from _packed_names(topics, pace)), version, timestamp_ms)
    return GroupChange(record, PATTERN, group_id, expression, resolved)


def _packed_names(names: Iterable[str], pace: Pace) -> Generator[None, None, PackedArray]:
    ordered = sorted(names)
    out = [uvarint(len(ordered) + 1)]
    for name in ordered:
        text = name.encode()
        out += (uvarint(len(text) + 1), text)
        if pace.spend():
            yield
    return PackedArray(b"".join(out))


def _int32s(numbers: Collection[int]) -> bytes:
    packed = array("i", numbers)
    if sys.byteorder == "little":
        packed.byteswap()
    return uvarint(len(packed) + 1) + packed.tobytes()


def _epochs_tag(epochs: Collection[int]) -> bytes:
    """Returns the tagged fields of an owned topic: the assignment epochs, if the topic has partitions."""
    if not epochs:
        return b"\0"
    content = _int32s(epochs)
    return b"\1\0" + uvarint(len(content)) + content


# --- reading -----------------------------------------------------------------------------------------------------


def with_metadata(consumer: Kip848Member, value: Fields) -> Kip848Member:
    """Returns the member with the fields of a record of type 5."""
    classic = value["classic_member_metadata"]
    return consumer._replace(
        instance_id=value["instance_id"],
        rack_id=value["rack_id"],
        client_id=value["client_id"],
        client_host=value["client_host"],
        topics=frozenset(map(sys.intern, value["subscribed_topic_names"])),  # members share the strings
        pattern=value["subscribed_topic_regex"] or "",
        rebalance_timeout_ms=value["rebalance_timeout_ms"],
        assignor=value["server_assignor"],
        classic=None
        if classic is None
        else ClassicMemberMetadata(
            classic["session_timeout_ms"],
            tuple(MemberProtocol(row["name"], row["metadata"]) for row in classic["supported_protocols"]),
        ),
    )


def with_assignment_of(consumer: Kip848Member, changed: Kip848Member) -> Kip848Member:
    """Returns the member with the assignment of ``changed``: the fields of its record of type 8."""
    return consumer._replace(
        epoch=changed.epoch,
        previous_epoch=changed.previous_epoch,
        state=changed.state,
        assigned=changed.assigned,
        to_revoke=changed.to_revoke,
    )


def with_assignment(consumer: Kip848Member, value: Fields) -> Kip848Member:
    """Returns the member with the fields of a record of type 8."""
    epoch = value["member_epoch"]
    known = value["state"] in (0, 1, 2)
    return consumer._replace(
        epoch=epoch,
        previous_epoch=value["previous_member_epoch"],
        state=Kip848MemberState(value["state"]) if known else Kip848MemberState.UNKNOWN,
        assigned=_owned(value["assigned_partitions"], epoch),
        to_revoke=_owned(value["partitions_pending_revocation"], epoch),
    )


def _owned(topics: Iterable[Fields], member_epoch: int) -> Owned:
    """Reads owned partitions with their epochs.

    Brokers before 4.3 wrote no epochs. Partitions of such a record get the member epoch, or 0 if it is negative.
    """
    owned = {}
    for topic in topics:
        partitions, epochs = topic["partitions"], topic["assignment_epochs"]
        if epochs is None or len(epochs) != len(partitions):
            epochs = [max(member_epoch, 0)] * len(partitions)
        owned[bytes(topic["topic_id"])] = dict(zip(partitions, epochs, strict=True))
    return owned


def partitions_of(value: Fields) -> Partitions:
    """Returns the target in a record of type 7."""
    return {bytes(topic["topic_id"]): frozenset(topic["partitions"]) for topic in value["topic_partitions"]}
