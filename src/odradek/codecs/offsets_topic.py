"""The records of ``__consumer_offsets`` as typed values, and the two texts of Kafka's formatters for them.

A record's key starts with its type as an int16, its value with its version as an int16. The writer uses the versions of
Apache Kafka 4.3: key 1 and value 4 for offset commits (value 1 for a commit with a retention time), key 2 and value 3
for group metadata. The reader supports every type and version of Kafka 4.3. Other records become UnknownRecord.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeAlias

from odradek.codecs.schemas import (
    NO_UUID,
    RECORD_TYPES,
    Fields,
    MalformedRecord,
    PackedArray,
    RecordType,
    Uuid,
    decode_key,
    decode_value,
    encode_value,
    string_length,
)
from odradek.core.ids import USUAL_NAME_CHARS
from odradek.core.varints import uvarint

__all__ = [
    "CoordinatorRecord",
    "Decoded",
    "GroupKey",
    "GroupMember",
    "GroupMetadata",
    "GroupRecord",
    "MalformedRecord",
    "OffsetCommitRecord",
    "OffsetCommitValue",
    "OffsetKey",
    "UnknownRecord",
    "Uuid",
    "decode",
    "format_json",
    "format_line",
    "group_key",
    "group_of_key",
    "group_value",
    "offset_key",
    "offset_key_prefix",
    "offset_value",
    "packed_member",
]

OFFSET_COMMIT_TYPES = (0, 1)
GROUP_METADATA_TYPE = 2


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class OffsetCommitValue(NamedTuple):
    """A committed offset.

    Times in ms since 1970; ``expire_timestamp_ms`` -1: the broker's retention applies. ``topic_id`` has 16 bytes.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: bytes | None = None


StoredOffset: TypeAlias = tuple[int, int, str, int, int, bytes | None]
"""The fields of an ``OffsetCommitValue`` in their order."""


class GroupKey(NamedTuple):
    group: str


class GroupMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A generation of a classic group; ``protocol_type`` is '' for a group that has had no member yet."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[GroupMember, ...] = ()


class OffsetCommitRecord(NamedTuple):
    """A committed offset of a partition; ``value=None`` is a tombstone."""

    key: OffsetKey
    value: OffsetCommitValue | None


class GroupRecord(NamedTuple):
    """The metadata of a classic group; ``value=None`` is a tombstone."""

    key: GroupKey
    value: GroupMetadata | None


class CoordinatorRecord(NamedTuple):
    """A record of KIP-848, share or streams groups, with the field names of its schema."""

    kind: RecordType
    key: Fields
    version: int
    value: Fields | None


class UnknownRecord(NamedTuple):
    """A record that cannot be decoded: its bytes and the reason."""

    key_type: int
    key: bytes | None
    value: bytes | None
    reason: str


Decoded = OffsetCommitRecord | GroupRecord | CoordinatorRecord | UnknownRecord

# --- writing ----------------------------------------------------------------------------------------------------

_VALUE_4_HEAD = struct.Struct(">hqi")
_VALUE_1_HEAD = struct.Struct(">hq")
_INT64 = struct.Struct(">q")
_TWO_INT64 = struct.Struct(">qq")


def _text(value: str) -> bytes:
    """Returns a name in a key. Raises ValueError for a name of more than 65,535 bytes.

    A length above 32,767 uses the sign bit; see ``decode_key``. Clients can no longer send such names.
    """
    packed = value.encode()
    if len(packed) > 0xFFFF:
        raise ValueError(f"a name of {len(packed):,} bytes cannot be written")
    return len(packed).to_bytes(2, "big") + packed


def offset_key_prefix(group: str, topic: str) -> bytes:
    """Returns the key of an offset commit without its last 4 bytes, the signed partition."""
    if len(group) > USUAL_NAME_CHARS or len(topic) > USUAL_NAME_CHARS:
        return b"\x00\x01" + _text(group) + _text(topic)
    return usual_prefix(group, topic)


@lru_cache(maxsize=4096)
def usual_prefix(group: str, topic: str) -> bytes:
    return b"\x00\x01" + _text(group) + _text(topic)


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """Returns a key of type 1."""
    return offset_key_prefix(group, topic) + partition.to_bytes(4, "big", signed=True)


def offset_value(value: OffsetCommitValue) -> bytes:
    """Returns a value of version 4, or of version 1 (without a leader epoch) if it has an expiry timestamp."""
    metadata = value.metadata.encode()
    if value.expire_timestamp_ms != -1:
        return b"".join(
            (
                _VALUE_1_HEAD.pack(1, value.offset),
                string_length(len(metadata)),
                metadata,
                _TWO_INT64.pack(value.commit_timestamp_ms, value.expire_timestamp_ms),
            )
        )
    out = [_VALUE_4_HEAD.pack(4, value.offset, value.leader_epoch)]
    out.append(uvarint(len(metadata) + 1))
    out.append(metadata)
    out.append(_INT64.pack(value.commit_timestamp_ms))
    out.append(_TOPIC_ID_UNKNOWN if value.topic_id is None else _topic_id_tag(value.topic_id))
    return b"".join(out)


_TOPIC_ID_UNKNOWN = b"\x00"
_TOPIC_ID_TAG = b"\x01\x00\x10"  # one tagged field, number 0, of 16 bytes


@lru_cache(maxsize=4096)
def _topic_id_tag(topic_id: bytes) -> bytes:
    return _TOPIC_ID_TAG + topic_id


@lru_cache(maxsize=4096)
def _topic_id(data: bytes) -> bytes | None:
    """Returns the topic id, or None for zeros. Commits of one topic share one object."""
    return None if data == NO_UUID else bytes(data)


def group_key(group: str) -> bytes:
    return b"\x00\x02" + _text(group)


def group_value(value: GroupMetadata, packed: Iterable[bytes] | None = None) -> bytes:
    """Returns a value of version 3. ``packed``: what ``packed_member`` returns for the group's members, in one
    sequence."""
    if packed is None:
        packed = chain.from_iterable(map(packed_member, value.members))
    fields = {
        "protocol_type": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "current_state_timestamp": value.current_state_timestamp_ms,
        "members": PackedArray(
            len(value.members).to_bytes(4, "big")
        ),  # the members are the last field and follow below
    }
    return b"".join((encode_value(RECORD_TYPES[GROUP_METADATA_TYPE], 3, fields), *packed))


def packed_member(member: GroupMember) -> tuple[bytes, ...]:
    """Returns the pieces of a member in a value of version 3. Long pieces are not copied."""
    (
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    ) = member
    return (
        b"".join(
            (
                _string(member_id),
                b"\xff\xff" if instance_id is None else _string(instance_id),
                _string(client_id),
                _string(client_host),
                _THREE_INT32.pack(rebalance_timeout_ms, session_timeout_ms, len(subscription)),
            )
        ),
        subscription,
        len(assignment).to_bytes(4, "big"),
        assignment,
    )


def _string(value: str) -> bytes:
    packed = value.encode()
    return string_length(len(packed)) + packed


_THREE_INT32 = struct.Struct(">iii")

# --- reading ----------------------------------------------------------------------------------------------------


def decode(key: bytes | None, value: bytes | None) -> Decoded:
    """Reads one record. Never raises: for a malformed record it returns UnknownRecord with the reason."""
    if key is None or len(key) < 2:
        return UnknownRecord(-1, key, value, "no key" if key is None else "key shorter than its type")
    number = int.from_bytes(key[:2], "big", signed=True)
    kind = RECORD_TYPES.get(number)
    if kind is None:
        return UnknownRecord(number, key, value, f"key type {number} is unknown")
    try:
        if number in OFFSET_COMMIT_TYPES:
            return decode_usual_commit(key, value) or decode_offset_commit(kind, key, value)
        key_fields = decode_key(kind, key)
        version, fields = (-1, None) if value is None else decode_value(kind, value)
    except MalformedRecord as error:
        return UnknownRecord(number, key, value, str(error))
    if number == GROUP_METADATA_TYPE:
        return GroupRecord(GroupKey(key_fields["group"]), None if fields is None else _group_metadata(fields))
    return CoordinatorRecord(kind, key_fields, version, fields)


def group_of_key(key: bytes | None) -> str | None:
    """Returns the group of a record by its key alone; None if the key cannot be read."""
    kind = None if key is None or len(key) < 2 else RECORD_TYPES.get(int.from_bytes(key[:2], "big", signed=True))
    if key is None or kind is None:
        return None
    try:
        fields = decode_key(kind, key)
    except MalformedRecord:
        return None
    group: str | None = fields["group"] if "group" in fields else fields.get("group_id")
    return group


_HEAD_4 = struct.Struct(">qi")
_LENGTH = struct.Struct(">h")
_PARTITION = struct.Struct(">i")


def decode_usual_commit(key: bytes, value: bytes | None) -> OffsetCommitRecord | None:
    """Reads a usual commit without the schema codec, which is faster. Returns None for other records."""
    if value is None or len(value) < 24 or value[:2] != b"\x00\x04" or len(key) < 10:
        return None
    group_end = 4 + _LENGTH.unpack_from(key, 2)[0]
    if not 4 <= group_end <= len(key) - 6:
        return None
    topic_end = group_end + 2 + _LENGTH.unpack_from(key, group_end)[0]
    size = value[14]
    at = 14 + size  # after the metadata: the compact length is one more than the number of bytes
    if topic_end + 4 != len(key) or not 1 <= size < 0x80 or at + 9 > len(value):
        return None
    tail = value[at + 8 :]
    if tail == _TOPIC_ID_UNKNOWN:
        topic_id = None
    elif len(tail) == 19 and tail[:3] == _TOPIC_ID_TAG:
        topic_id = _topic_id(tail[3:])
    else:
        return None
    try:
        group, topic, metadata = (
            key[4:group_end].decode(),
            key[group_end + 2 : topic_end].decode(),
            value[15:at].decode(),
        )
    except UnicodeDecodeError:
        return None
    offset, leader_epoch = _HEAD_4.unpack_from(value, 2)
    (commit_timestamp_ms,) = _INT64.unpack_from(value, at)
    return OffsetCommitRecord(
        OffsetKey(group, topic, _PARTITION.unpack_from(key, topic_end)[0]),
        OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp_ms, -1, topic_id),
    )


def decode_offset_commit(kind: RecordType, key: bytes, value: bytes | None) -> OffsetCommitRecord:
    fields = decode_key(kind, key)
    offset_key = OffsetKey(fields["group"], fields["topic"], fields["partition"])
    if value is None:
        return OffsetCommitRecord(offset_key, None)
    _, fields = decode_value(kind, value)
    topic_id = fields.get("topic_id")
    return OffsetCommitRecord(
        offset_key,
        OffsetCommitValue(
            fields["offset"],
            fields.get("leader_epoch", -1),
            fields["metadata"],
            fields["commit_timestamp"],
            fields.get("expire_timestamp", -1),
            None if topic_id is None else _topic_id(topic_id),
        ),
    )


def _group_metadata(fields: Fields) -> GroupMetadata:
    members = tuple(
        GroupMember(
            member["member_id"],
            member.get("group_instance_id"),
            member["client_id"],
            member["client_host"],
            # Version 0 and clients before JoinGroup v1 have one timeout for both.
            member["session_timeout"] if member.get("rebalance_timeout", -1) == -1 else member["rebalance_timeout"],
            member["session_timeout"],
            member["subscription"],
            member["assignment"],
        )
        for member in fields["members"]
    )
    return GroupMetadata(
        fields["protocol_type"],
        fields["generation"],
        fields["protocol"],
        fields["leader"],
        fields.get("current_state_timestamp", -1),
        members,
    )


# --- texts ------------------------------------------------------------------------------------------------------


def format_line(key: bytes | None, value: bytes | None) -> str | None:
    """Returns the line of Kafka's formatter before 4.0 for an offset commit, or None for any other record.

    ``[group,topic,partition]::OffsetAndMetadata(offset=…, leaderEpoch=…, metadata=…, commitTimestamp=…,
    expireTimestamp=…)``, and ``[group,topic,partition]::NULL`` for a tombstone.
    """
    record = decode(key, value)
    if not isinstance(record, OffsetCommitRecord):
        return None
    head = "[{},{},{}]".format(*record.key)
    content = record.value
    if content is None:
        return head + "::NULL"
    epoch = "Optional.empty" if content.leader_epoch == -1 else f"Optional[{content.leader_epoch}]"
    expiry = "None" if content.expire_timestamp_ms == -1 else f"Some({content.expire_timestamp_ms})"
    return (
        f"{head}::OffsetAndMetadata(offset={content.offset}, leaderEpoch={epoch}, metadata={content.metadata},"
        f" commitTimestamp={content.commit_timestamp_ms}, expireTimestamp={expiry})"
    )


def format_json(key: bytes | None, value: bytes | None, types: tuple[int, ...] = OFFSET_COMMIT_TYPES) -> str | None:
    """Returns the JSON of Kafka 4's OffsetsMessageFormatter, or None for other types and malformed records.

    With ``types=(2,)`` it is the JSON of GroupMetadataMessageFormatter. Other types are not supported.
    """
    if key is None or len(key) < 2:
        return None
    number = int.from_bytes(key[:2], "big", signed=True)
    kind = RECORD_TYPES.get(number)
    if kind is None or number not in types:
        return None
    try:
        document: dict[str, object] = {"key": {"type": number, "data": _as_json(decode_key(kind, key))}, "value": None}
        if value is not None:
            version, fields = decode_value(kind, value)
            document["value"] = {"version": version, "data": _as_json(fields)}
    except MalformedRecord:
        return None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _as_json(value: object) -> object:
    if isinstance(value, dict):
        return {_camel(name): _as_json(item) for name, item in value.items() if not _is_omitted(name, item)}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, Uuid):
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _is_omitted(name: str, value: object) -> bool:
    """Returns whether Kafka's JSON omits a field: the only tagged field of these types, if the record does not have
    it."""
    return name == "topic_id" and bool(value == NO_UUID)


@lru_cache(maxsize=256)
def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
