"""The schemas of all records of ``__consumer_offsets`` in Apache Kafka 4.3, and their codec.

A schema is a line of ``name:type`` fields. Types: the fixed ones (``int8`` … ``int64``, ``uint16``, ``uuid``),
``string`` and ``bytes``, ``long_string`` (with an unsigned length, only for reads), ``[T]`` an array, ``{…}`` a
structure. ``?`` after a type makes it nullable. ``#n`` before a field makes it tagged. The line of a flexible version
starts with ``~``: its lengths are compact, and every structure ends with tagged fields. OffsetCommitValue and
GroupMetadataValue are flexible from v4 on. The values of the record types that KIP-848 and later KIPs added are always
flexible.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from odradek.core.ids import MAX_STRING_BYTES
from odradek.core.varints import read_uvarint, uvarint

Fields = dict[str, Any]
Read = Callable[[bytes, int], tuple[Any, int]]
Write = Callable[[list[bytes], Any], None]


class Uuid(bytes):
    """A topic's id as 16 bytes. ``uuid.UUID`` is not used: the module can make random ids, so state
    machines and their records may not import it."""

    __slots__ = ()


NO_UUID = Uuid(16)


class PackedArray(bytes):
    """An array field that is already packed, including its length."""

    __slots__ = ()


class MalformedRecord(ValueError):
    """Bytes that do not match their schema."""


class RecordType(NamedTuple):
    """A record type: the number in its key, its name, the schema of its key, and those of its value by version."""

    number: int
    name: str
    key: str
    values: tuple[str, ...]


_OFFSET_KEY = "group:string topic:string partition:int32"
_GROUP = "group_id:string"
_MEMBER = "group_id:string member_id:string"
_OFFSET_0 = "offset:int64 metadata:string commit_timestamp:int64"
_MEMBER_HEAD = "member_id:string client_id:string client_host:string "
_MEMBER_TAIL = "session_timeout:int32 subscription:bytes assignment:bytes"
_GROUP_HEAD = "protocol_type:string generation:int32 protocol:string? leader:string? "
_STATE_TIME = "current_state_timestamp:int64 "
_STATIC_MEMBER = (
    "member_id:string group_instance_id:string? client_id:string client_host:string rebalance_timeout:int32 "
)
_ASSIGNED = "[{topic_id:uuid partitions:[int32]}]"
_OWNED = "[{topic_id:uuid partitions:[int32] #0:assignment_epochs:[int32]?}]"
_TASKS = "[{subtopology_id:string partitions:[int32]}]"
_OWNED_TASKS = "[{subtopology_id:string partitions:[int32] #0:assignment_epochs:[int32]?}]"
_PAIRS = "[{key:string value:string}]"
_INTERNAL_TOPICS = f"[{{name:string partitions:int32 replication_factor:int16 topic_configs:{_PAIRS}}}]"
_TARGET_METADATA = "~assignment_epoch:int32 #0:assignment_timestamp:int64"
_PARTITION_METADATA = (
    "~topics:[{topic_id:uuid topic_name:string num_partitions:int32"
    " partition_metadata:[{partition:int32 racks:[string]}]}]"
)

RECORD_TYPES: dict[int, RecordType] = {
    kind.number: kind
    for kind in (
        RecordType(0, "legacy_offset_commit", _OFFSET_KEY, (_OFFSET_0,)),
        RecordType(
            1,
            "offset_commit",
            _OFFSET_KEY,
            (
                _OFFSET_0,
                _OFFSET_0 + " expire_timestamp:int64",
                _OFFSET_0,
                "offset:int64 leader_epoch:int32 metadata:string commit_timestamp:int64",
                "~offset:int64 leader_epoch:int32 metadata:string commit_timestamp:int64 #0:topic_id:uuid",
            ),
        ),
        RecordType(
            2,
            "group_metadata",
            "group:string",
            (
                f"{_GROUP_HEAD}members:[{{{_MEMBER_HEAD}{_MEMBER_TAIL}}}]",
                f"{_GROUP_HEAD}members:[{{{_MEMBER_HEAD}rebalance_timeout:int32 {_MEMBER_TAIL}}}]",
                f"{_GROUP_HEAD}{_STATE_TIME}members:[{{{_MEMBER_HEAD}rebalance_timeout:int32 {_MEMBER_TAIL}}}]",
                f"{_GROUP_HEAD}{_STATE_TIME}members:[{{{_STATIC_MEMBER}{_MEMBER_TAIL}}}]",
                f"~{_GROUP_HEAD}{_STATE_TIME}members:[{{{_STATIC_MEMBER}{_MEMBER_TAIL}}}]",
            ),
        ),
        RecordType(3, "consumer_group_metadata", _GROUP, ("~epoch:int32 #0:metadata_hash:int64",)),
        RecordType(4, "consumer_group_partition_metadata", _GROUP, (_PARTITION_METADATA,)),
        RecordType(
            5,
            "consumer_group_member_metadata",
            _MEMBER,
            (
                "~instance_id:string? rack_id:string? client_id:string client_host:string"
                " subscribed_topic_names:[string] subscribed_topic_regex:string? rebalance_timeout_ms:int32"
                " server_assignor:string? #0:classic_member_metadata:"
                "{session_timeout_ms:int32 supported_protocols:[{name:string metadata:bytes}]}?",
            ),
        ),
        RecordType(6, "consumer_group_target_assignment_metadata", _GROUP, (_TARGET_METADATA,)),
        RecordType(7, "consumer_group_target_assignment_member", _MEMBER, (f"~topic_partitions:{_ASSIGNED}",)),
        RecordType(
            8,
            "consumer_group_current_member_assignment",
            _MEMBER,
            (
                "~member_epoch:int32 previous_member_epoch:int32 state:int8"
                f" assigned_partitions:{_OWNED} partitions_pending_revocation:{_OWNED}",
            ),
        ),
        RecordType(
            10,
            "share_group_member_metadata",
            _MEMBER,
            ("~rack_id:string? client_id:string client_host:string subscribed_topic_names:[string]",),
        ),
        RecordType(11, "share_group_metadata", _GROUP, ("~epoch:int32 metadata_hash:int64",)),
        RecordType(12, "share_group_target_assignment_metadata", _GROUP, (_TARGET_METADATA,)),
        RecordType(13, "share_group_target_assignment_member", _MEMBER, (f"~topic_partitions:{_ASSIGNED}",)),
        RecordType(
            14,
            "share_group_current_member_assignment",
            _MEMBER,
            (f"~member_epoch:int32 previous_member_epoch:int32 state:int8 assigned_partitions:{_ASSIGNED}",),
        ),
        RecordType(
            15,
            "share_group_state_partition_metadata",
            _GROUP,
            (
                "~initializing_topics:[{topic_id:uuid topic_name:string partitions:[int32]}]"
                " initialized_topics:[{topic_id:uuid topic_name:string partitions:[int32]}]"
                " deleting_topics:[{topic_id:uuid topic_name:string}]",
            ),
        ),
        RecordType(
            16,
            "consumer_group_regular_expression",
            "group_id:string regular_expression:string",
            ("~topics:[string] version:int64 timestamp:int64",),
        ),
        RecordType(
            17,
            "streams_group_metadata",
            _GROUP,
            (
                "~epoch:int32 metadata_hash:int64 #0:validated_topology_epoch:int32"
                f" #1:last_assignment_configs:{_PAIRS}?",
            ),
        ),
        RecordType(
            19,
            "streams_group_member_metadata",
            _MEMBER,
            (
                "~instance_id:string? rack_id:string? client_id:string client_host:string rebalance_timeout_ms:int32"
                " topology_epoch:int32 process_id:string user_endpoint:{host:string port:uint16}?"
                f" client_tags:{_PAIRS}",
            ),
        ),
        RecordType(20, "streams_group_target_assignment_metadata", _GROUP, (_TARGET_METADATA,)),
        RecordType(
            21,
            "streams_group_target_assignment_member",
            _MEMBER,
            (f"~active_tasks:{_TASKS} standby_tasks:{_TASKS} warmup_tasks:{_TASKS}",),
        ),
        RecordType(
            22,
            "streams_group_current_member_assignment",
            _MEMBER,
            (
                "~member_epoch:int32 previous_member_epoch:int32 state:int8"
                f" active_tasks:{_OWNED_TASKS} standby_tasks:{_OWNED_TASKS} warmup_tasks:{_OWNED_TASKS}"
                f" active_tasks_pending_revocation:{_OWNED_TASKS} standby_tasks_pending_revocation:{_OWNED_TASKS}"
                f" warmup_tasks_pending_revocation:{_OWNED_TASKS}",
            ),
        ),
        RecordType(
            23,
            "streams_group_topology",
            _GROUP,
            (
                "~epoch:int32 subtopologies:[{subtopology_id:string source_topics:[string]"
                f" source_topic_regex:[string] state_changelog_topics:{_INTERNAL_TOPICS}"
                f" repartition_sink_topics:[string] repartition_source_topics:{_INTERNAL_TOPICS}"
                " copartition_groups:[{source_topics:[int16] source_topic_regex:[int16]"
                " repartition_source_topics:[int16]}]}]",
            ),
        ),
    )
}

#: The values of tagged fields that a record does not have.
TAG_DEFAULTS: dict[str, Any] = {
    "topic_id": NO_UUID,
    "metadata_hash": 0,
    "assignment_timestamp": 0,
    "assignment_epochs": [],
    "classic_member_metadata": {"session_timeout_ms": 0, "supported_protocols": []},
    # ^ the default is an empty structure, so a null counts as a value and is written
    "validated_topology_epoch": -1,
    "last_assignment_configs": [],
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "client_transaction_version": 0,
    "next_producer_epoch": -1,
}


def decode_key(kind: RecordType, data: bytes) -> Fields:
    """Reads a record's key after its type number. Raises MalformedRecord.

    A negative length is read as unsigned, because no name in a key is null: earlier versions of Odradek accepted names
    of 32,768 to 65,535 bytes and wrote them like this. Kafka refuses them in requests.
    """
    try:
        return _decode(kind.key, data, kind.name)
    except MalformedRecord:
        if len(data) <= MAX_STRING_BYTES:
            raise
        return _decode(kind.key.replace("string", "long_string"), data, kind.name)


def decode_value(kind: RecordType, data: bytes) -> tuple[int, Fields]:
    """Returns the version and the fields of a record's value. Raises MalformedRecord, also for an unknown version."""
    if len(data) < 2:
        raise MalformedRecord(f"value of {kind.name} shorter than its version")
    version = int.from_bytes(data[:2], "big", signed=True)
    if not 0 <= version < len(kind.values):
        raise MalformedRecord(f"value version {version} of {kind.name} is unknown")
    return version, _decode(kind.values[version], data, f"{kind.name} v{version}")


def encode_key(kind: RecordType, fields: Fields) -> bytes:
    return kind.number.to_bytes(2, "big") + _encode(kind.key, fields)


def encode_value(kind: RecordType, version: int, fields: Fields) -> bytes:
    return version.to_bytes(2, "big") + _encode(kind.values[version], fields)


def _decode(schema: str, data: bytes, name: str) -> Fields:
    try:
        fields, end = _codec(schema)[0](data, 2)
    except struct.error as error:
        raise MalformedRecord(f"{name}: it is cut off") from error
    except (IndexError, ValueError, OverflowError) as error:
        raise MalformedRecord(f"{name}: {error}") from error
    if end != len(data):
        raise MalformedRecord(f"{name}: it has {len(data) - end} bytes too many")
    return fields  # type: ignore[no-any-return]


def _encode(schema: str, fields: Fields) -> bytes:
    out: list[bytes] = []
    _codec(schema)[1](out, fields)
    return b"".join(out)


@cache
def _codec(schema: str) -> tuple[Read, Write]:
    return _Parser(schema).structure()


# --- primitives -------------------------------------------------------------------------------------------------


def _fixed(code: str) -> tuple[Read, Write]:
    packer = struct.Struct(code)
    size = packer.size

    def read(data: bytes, at: int) -> tuple[object, int]:
        return packer.unpack_from(data, at)[0], at + size

    def write(out: list[bytes], value: object) -> None:
        out.append(packer.pack(value))

    return read, write


def _read_uuid(data: bytes, at: int) -> tuple[Uuid, int]:
    if len(data) < at + 16:
        raise IndexError("uuid runs past the end")
    return Uuid(data[at : at + 16]), at + 16


def _write_uuid(out: list[bytes], value: bytes) -> None:
    if len(value) != 16:
        raise ValueError(f"a uuid of {len(value)} bytes")
    out.append(value)


_FIXED: dict[str, tuple[Read, Write]] = {
    "int8": _fixed(">b"),
    "int16": _fixed(">h"),
    "int32": _fixed(">i"),
    "int64": _fixed(">q"),
    "uint16": _fixed(">H"),
    "uuid": (_read_uuid, _write_uuid),
}


def _length(flexible: bool, code: str) -> tuple[Read, Write]:
    """Returns the reader and the writer of a length; null is -1."""
    if not flexible:
        return _fixed(code)

    def read(data: bytes, at: int) -> tuple[int, int]:
        value, at = read_uvarint(data, at)
        return value - 1, at

    def write(out: list[bytes], value: int) -> None:
        out.append(uvarint(value + 1))

    return read, write


def string_length(size: int) -> bytes:
    """Returns the two length bytes of a string. Raises ValueError for a length that does not fit into an int16."""
    if size > MAX_STRING_BYTES:
        raise ValueError(f"a string of {size:,} bytes cannot be written")
    return size.to_bytes(2, "big", signed=True)


def _write_string_length(out: list[bytes], size: int) -> None:
    out.append(string_length(size))


def _text(is_string: bool, flexible: bool, nullable: bool, length: str = ">h") -> tuple[Read, Write]:
    read_length, write_length = _length(flexible, length if is_string else ">i")
    if is_string and not flexible:
        write_length = _write_string_length

    def read(data: bytes, at: int) -> tuple[object, int]:
        size, at = read_length(data, at)
        if size < 0:
            if size == -1 and nullable:
                return None, at
            raise IndexError(f"length {size}")
        end = at + size
        if end > len(data):
            raise IndexError("text runs past the end")
        content = data[at:end]
        return (content.decode() if is_string else content), end

    def write(out: list[bytes], value: str | bytes | None) -> None:
        if value is None:
            if not nullable:
                raise ValueError("the field must not be null")
            write_length(out, -1)
            return
        content = value.encode() if isinstance(value, str) else value
        write_length(out, len(content))
        out.append(content)

    return read, write


def _array(item: tuple[Read, Write], flexible: bool, nullable: bool) -> tuple[Read, Write]:
    read_length, write_length = _length(flexible, ">i")
    read_item, write_item = item

    def read(data: bytes, at: int) -> tuple[object, int]:
        size, at = read_length(data, at)
        if size < 0:
            if size == -1 and nullable:
                return None, at
            raise IndexError(f"array of {size}")
        if size > len(data) - at:  # every element has at least one byte
            raise IndexError("array runs past the end")
        values = []
        for _ in range(size):
            value, at = read_item(data, at)
            values.append(value)
        return values, at

    def write(out: list[bytes], value: list[object] | PackedArray | None) -> None:
        if type(value) is PackedArray:
            out.append(value)
            return
        write_length(out, -1 if value is None else len(value))
        for element in value or ():
            write_item(out, element)

    return read, write


def _nullable_structure(item: tuple[Read, Write], tagged: bool) -> tuple[Read, Write]:
    read_item, write_item = item
    null = 0 if tagged else 0xFF

    def read(data: bytes, at: int) -> tuple[object, int]:
        marker = data[at]
        return (None, at + 1) if marker == null else read_item(data, at + 1)

    def write(out: list[bytes], value: object) -> None:
        out.append(bytes((null,)) if value is None else b"\x01")
        if value is not None:
            write_item(out, value)

    return read, write


# --- structures -------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(#\d+|[a-z_0-9]+|[:{}\[\]?~])")


class _Parser:
    """Makes the reader and the writer of a schema's line."""

    def __init__(self, schema: str) -> None:
        self._tokens = _TOKEN.findall(schema)
        self._at = 0
        self._flexible = self._take("~")

    def _take(self, token: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _next(self) -> str:
        self._at += 1
        return str(self._tokens[self._at - 1])

    def structure(self) -> tuple[Read, Write]:
        plain: list[tuple[str, Read, Write]] = []
        tagged: dict[int, tuple[str, Read, Write]] = {}
        while self._at < len(self._tokens) and not self._take("}"):
            name = self._next()
            tag = None
            if name.startswith("#"):
                tag = int(name[1:])
                self._take(":")
                name = self._next()
            self._take(":")
            read, write = self._type(tag is not None)
            if tag is None:
                plain.append((name, read, write))
            else:
                tagged[tag] = (name, read, write)
        return _structure(plain, tagged, self._flexible)

    def _type(self, tagged: bool = False) -> tuple[Read, Write]:
        if self._take("["):
            item = self._type()
            self._take("]")
            return _array(item, self._flexible, self._take("?"))
        if self._take("{"):
            item = self.structure()
            return _nullable_structure(item, tagged) if self._take("?") else item
        name = self._next()
        if name in _FIXED:
            return _FIXED[name]
        if name == "long_string":
            return _text(True, self._flexible, self._take("?"), ">H")
        return _text(name == "string", self._flexible, self._take("?"))


def _structure(
    plain: list[tuple[str, Read, Write]], tagged: dict[int, tuple[str, Read, Write]], flexible: bool
) -> tuple[Read, Write]:
    defaults = {name: TAG_DEFAULTS[name] for name, _, _ in tagged.values()}

    def read(data: bytes, at: int) -> tuple[Fields, int]:
        fields: Fields = {}
        for name, read_field, _ in plain:
            fields[name], at = read_field(data, at)
        if flexible:
            fields.update(defaults)
            count, at = read_uvarint(data, at)
            for _ in range(count):
                tag, at = read_uvarint(data, at)
                size, at = read_uvarint(data, at)
                if at + size > len(data):
                    raise IndexError("tagged field runs past the end")
                if tag in tagged:  # unknown tags are from newer brokers and are skipped
                    fields[tagged[tag][0]], end = tagged[tag][1](data, at)
                    if end != at + size:
                        raise IndexError("tagged field does not have its declared size")
                at += size
        return fields, at

    def write(out: list[bytes], fields: Fields) -> None:
        for name, _, write_field in plain:
            write_field(out, fields[name])
        if flexible:
            present = [(tag, *row) for tag, row in sorted(tagged.items()) if fields.get(row[0]) != defaults[row[0]]]
            out.append(uvarint(len(present)))
            for tag, name, _, write_field in present:
                content: list[bytes] = []
                write_field(content, fields[name])
                packed = b"".join(content)
                out.append(uvarint(tag))
                out.append(uvarint(len(packed)))
                out.append(packed)

    return read, write
