"""Records of the metadata log, in the frames and schemas of Kafka's KRaft controller.

A value has a frame version (1), the record's API key and its version, all as unsigned varints. Then the record follows
in the compact encoding of flexible versions. Keys are empty. ``decode`` refuses a type or a version that Odradek does
not write: the state without such a record would be wrong.
"""

from __future__ import annotations

import builtins
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from odradek.core.access.acl import Acl
from odradek.core.access.credential import Credential
from odradek.core.access.delegation_token import DelegationToken
from odradek.core.varints import compact_string, read_uvarint, uvarint

FRAME_VERSION = 1
TOPIC = 2
PARTITION = 3
CONFIG = 4
PARTITION_CHANGE = 5
REMOVE_TOPIC = 9
DELEGATION_TOKEN = 10
USER_SCRAM_CREDENTIAL = 11
FEATURE_LEVEL = 12
CLIENT_QUOTA = 14
PRODUCER_IDS = 15
ACCESS_CONTROL_ENTRY = 18
REMOVE_ACCESS_CONTROL_ENTRY = 19
REMOVE_USER_SCRAM_CREDENTIAL = 22
REMOVE_DELEGATION_TOKEN = 26


_BROKER = 4
"""The type of a resource whose settings may be passwords."""
NEWEST_VERSIONS = {
    TOPIC: 0,
    PARTITION: 2,
    CONFIG: 0,
    PARTITION_CHANGE: 2,
    REMOVE_TOPIC: 0,
    DELEGATION_TOKEN: 0,
    USER_SCRAM_CREDENTIAL: 0,
    FEATURE_LEVEL: 0,
    CLIENT_QUOTA: 0,
    PRODUCER_IDS: 0,
    ACCESS_CONTROL_ENTRY: 0,
    REMOVE_ACCESS_CONTROL_ENTRY: 0,
    REMOVE_USER_SCRAM_CREDENTIAL: 0,
    REMOVE_DELEGATION_TOKEN: 0,
}
"""The newest version of each type that ``decode`` reads."""
_NAMES = {
    0: "RegisterBroker",
    1: "UnregisterBroker",
    7: "FenceBroker",
    8: "UnfenceBroker",
    17: "BrokerRegistrationChange",
    20: "NoOp",
    21: "ZkMigrationState",
    23: "BeginTransaction",
    24: "EndTransaction",
    25: "AbortTransaction",
    27: "RegisterController",
    28: "ClearElr",
    TOPIC: "Topic",
    PARTITION: "Partition",
    CONFIG: "Config",
    PARTITION_CHANGE: "PartitionChange",
    REMOVE_TOPIC: "RemoveTopic",
    DELEGATION_TOKEN: "DelegationToken",
    USER_SCRAM_CREDENTIAL: "UserScramCredential",
    FEATURE_LEVEL: "FeatureLevel",
    CLIENT_QUOTA: "ClientQuota",
    PRODUCER_IDS: "ProducerIds",
    ACCESS_CONTROL_ENTRY: "AccessControlEntry",
    REMOVE_ACCESS_CONTROL_ENTRY: "RemoveAccessControlEntry",
    REMOVE_USER_SCRAM_CREDENTIAL: "RemoveUserScramCredential",
    REMOVE_DELEGATION_TOKEN: "RemoveDelegationToken",
}
"""Kafka's names of types."""


class UnsupportedRecord(ValueError):
    """A record of a type or a version that this release does not read. The message describes it."""


class Id16(Protocol):
    """An id of 16 bytes, in practice a ``uuid.UUID``. ``decode`` gets the function that makes it."""

    @property
    def bytes(self) -> builtins.bytes: ...


IdFactory = Callable[[builtins.bytes], Id16]


class TopicRecord(NamedTuple):
    name: str
    topic_id: Id16


class PartitionRecord(NamedTuple):
    """A new partition, or the whole state of one in a snapshot. ``catalog.registrations`` describes the fields."""

    partition_id: int
    topic_id: Id16
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[Id16, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    recovery_state: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


class PartitionChangeRecord(NamedTuple):
    """A change of a partition. ``None`` keeps a field. ``leader`` becomes the leader in a new leader epoch."""

    partition_id: int
    topic_id: Id16
    leader: int | None = None
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery_state: int | None = None
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    directories: tuple[Id16, ...] | None = None


class ConfigRecord(NamedTuple):
    """A setting of a resource. ``value=None`` removes the setting.

    Resource types: 2 topic, 4 broker, 16 client metrics, 32 group."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None

    def __repr__(self) -> str:
        """A setting of a broker may be a password."""
        shown = "[hidden]" if self.value and self.resource_type == _BROKER else repr(self.value)
        return f"ConfigRecord({self.resource_type}, {self.resource_name!r}, {self.name!r}, {shown})"


class RemoveTopicRecord(NamedTuple):
    topic_id: Id16


class FeatureLevelRecord(NamedTuple):
    name: str
    feature_level: int


class ClientQuotaRecord(NamedTuple):
    """One quota of one entity, which is (type, name) pairs. The name ``None`` is the default for this type.

    ``value=None`` removes the quota.
    """

    entity: tuple[tuple[str, str | None], ...]
    key: str
    value: float | None


class ProducerIdsRecord(NamedTuple):
    """An allocated producer id block. ``next_producer_id`` is the first id that was not allocated."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class UserScramCredentialRecord(NamedTuple):
    user: str
    mechanism: int
    credential: Credential


class RemoveUserScramCredentialRecord(NamedTuple):
    user: str
    mechanism: int


class DelegationTokenRecord(NamedTuple):
    """A new token, or one with another end. The record has no secret."""

    token: DelegationToken


class RemoveDelegationTokenRecord(NamedTuple):
    id: str


class AccessControlEntryRecord(NamedTuple):
    id: Id16
    acl: Acl


class RemoveAccessControlEntryRecord(NamedTuple):
    id: Id16


class EligiblePartition(Protocol):
    """The part of a partition that ``NodeRecord`` reads."""

    @property
    def partition_id(self) -> int: ...

    @property
    def elr(self) -> tuple[int, ...]: ...

    @property
    def last_known_elr(self) -> tuple[int, ...]: ...


class PartitionsOfTopic(Protocol):
    """The part of a topic that ``NodeRecord`` reads."""

    @property
    def id(self) -> Id16: ...

    @property
    def partitions(self) -> Sequence[EligiblePartition]: ...


class NodeRecord(ABC):
    """A record that only a cluster has. ``cluster/records`` has these types, which a lone broker does not read."""

    __slots__ = ()

    @abstractmethod
    def packed(self) -> bytes:
        """Returns the value of the record."""

    def partition_changes(self, topics: Mapping[str, PartitionsOfTopic]) -> Iterable[PartitionChangeRecord]:
        """Returns the changes of partitions that this record means. ``topics``: by name."""
        return ()


CatalogRecord = (
    TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
)
MetadataRecord = CatalogRecord | NodeRecord


_REMOVED = bytes((FRAME_VERSION, REMOVE_TOPIC))
_NO_LEADER_CHANGE, _NO_STATE_CHANGE = -2, -1
_PARTITION_TAGS = ("recovery_state", "elr", "last_known_elr")
"""The tagged fields of a PartitionRecord, in the order of their tags from 0 on."""
_CHANGE_TAGS = (
    "isr", "leader", "replicas", "removing", "adding", "recovery_state", "elr", "last_known_elr", "directories",
)  # fmt: skip


# --- writing ----------------------------------------------------------------------------------------------------


def _blob(value: bytes) -> bytes:
    return uvarint(len(value) + 1) + value


def _ints(values: tuple[int, ...]) -> bytes:
    return uvarint(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def _body(record: CatalogRecord) -> tuple[int, int, bytes]:
    """Returns API key, version, and the fields without the tagged ones."""
    match record:
        case TopicRecord(name, topic_id):
            return TOPIC, 0, compact_string(name) + topic_id.bytes
        case PartitionRecord():
            return PARTITION, 2, _partition_body(record)
        case PartitionChangeRecord(partition_id, topic_id):
            return PARTITION_CHANGE, 2, struct.pack(">i", partition_id) + topic_id.bytes
        case ConfigRecord(resource_type, resource_name, name, value):
            packed = (
                struct.pack(">b", resource_type)
                + compact_string(resource_name)
                + compact_string(name)
                + compact_string(value)
            )
            return CONFIG, 0, packed
        case RemoveTopicRecord(topic_id):
            return REMOVE_TOPIC, 0, topic_id.bytes
        case FeatureLevelRecord(name, level):
            return FEATURE_LEVEL, 0, compact_string(name) + struct.pack(">h", level)
        case ClientQuotaRecord(entity, key, value):
            named = b"".join(compact_string(kind) + compact_string(name) + b"\0" for kind, name in entity)
            packed = uvarint(len(entity) + 1) + named + compact_string(key)
            return CLIENT_QUOTA, 0, packed + struct.pack(">d?", value or 0.0, value is None)
        case ProducerIdsRecord(broker_id, broker_epoch, next_id):
            return PRODUCER_IDS, 0, struct.pack(">iqq", broker_id, broker_epoch, next_id)
        case UserScramCredentialRecord(user, mechanism, kept):
            secrets = _blob(kept.salt) + _blob(kept.stored_key) + _blob(kept.server_key)
            packed = compact_string(user) + struct.pack(">b", mechanism) + secrets + struct.pack(">i", kept.iterations)
            return USER_SCRAM_CREDENTIAL, 0, packed
        case RemoveUserScramCredentialRecord(user, mechanism):
            return REMOVE_USER_SCRAM_CREDENTIAL, 0, compact_string(user) + struct.pack(">b", mechanism)
        case AccessControlEntryRecord(acl_id, acl):
            return ACCESS_CONTROL_ENTRY, 0, acl_id.bytes + _acl(acl)
        case RemoveAccessControlEntryRecord(acl_id):
            return REMOVE_ACCESS_CONTROL_ENTRY, 0, acl_id.bytes
        case DelegationTokenRecord(token):
            return DELEGATION_TOKEN, 0, _token(token)
        case RemoveDelegationTokenRecord(token_id):
            return REMOVE_DELEGATION_TOKEN, 0, compact_string(token_id)


def _token(token: DelegationToken) -> bytes:
    renewers = uvarint(len(token.renewers) + 1) + b"".join(map(compact_string, token.renewers))
    times = struct.pack(">qqq", token.issue_ms, token.max_ms, token.expiry_ms)
    return compact_string(token.owner) + compact_string(token.requester) + renewers + times + compact_string(token.id)


def _acl(acl: Acl) -> bytes:
    where = struct.pack(">b", acl.resource_type) + compact_string(acl.name) + struct.pack(">b", acl.pattern)
    return (
        where
        + compact_string(acl.principal)
        + compact_string(acl.host)
        + struct.pack(">bb", acl.operation, acl.permission)
    )


def _tags(record: CatalogRecord) -> bytes:
    match record:
        case PartitionChangeRecord():
            return _packed_tags(record, _CHANGE_TAGS)
        case PartitionRecord() if record.recovery_state or record.elr or record.last_known_elr:
            return _packed_tags(record, _PARTITION_TAGS)
        case _:
            return b"\0"


def _packed_tags(record: PartitionRecord | PartitionChangeRecord, names: tuple[str, ...]) -> bytes:
    """Returns the tagged fields of a partition. None is never written, nor what a new partition has."""
    packed = []
    for tag, name in enumerate(names):
        value = getattr(record, name)
        if value is not None and (value or names is _CHANGE_TAGS):
            data = _tag(name, value)
            packed.append(uvarint(tag) + uvarint(len(data)) + data)
    return uvarint(len(packed)) + b"".join(packed)


def _tag(name: str, value: Any) -> bytes:
    if name == "leader":
        return struct.pack(">i", value)
    if name == "recovery_state":
        return struct.pack(">b", value)
    return packed_ids(value) if name == "directories" else _ints(value)


def packed_ids(values: tuple[Id16, ...]) -> bytes:
    """Packs an array of ids."""
    return uvarint(len(values) + 1) + b"".join([value.bytes for value in values])


def _partition_body(record: PartitionRecord) -> bytes:
    return b"".join(
        (
            struct.pack(">i", record.partition_id),
            record.topic_id.bytes,
            _ints(record.replicas),
            _ints(record.isr),
            _ints(record.removing),
            _ints(record.adding),
            struct.pack(">iii", record.leader, record.leader_epoch, record.partition_epoch),
            packed_ids(record.directories),
        )
    )


def encode(record: MetadataRecord) -> bytes:
    """Returns the value of one record of the metadata log."""
    if isinstance(record, NodeRecord):
        return record.packed()
    api_key, version, body = _body(record)
    return uvarint(FRAME_VERSION) + uvarint(api_key) + uvarint(version) + body + _tags(record)


# --- reading ----------------------------------------------------------------------------------------------------


class FieldCursor:
    """Reads the fields of a record, one after another. Raises ValueError."""

    __slots__ = ("at", "data", "make_id")

    def __init__(self, data: bytes, make_id: IdFactory) -> None:
        self.data = data
        self.at = 0
        self.make_id = make_id

    def take(self, size: int) -> bytes:
        chunk = self.data[self.at : self.at + size]
        if size < 0 or len(chunk) != size:
            raise ValueError("the metadata record is truncated")
        self.at += size
        return chunk

    def fixed(self, code: str) -> tuple[Any, ...]:
        packed = struct.Struct(code)
        return packed.unpack(self.take(packed.size))

    def unsigned(self) -> int:
        try:
            value, self.at = read_uvarint(self.data, self.at)
        except IndexError as error:
            raise ValueError("the metadata record is truncated") from error
        return value

    def nullable_string(self) -> str | None:
        size = self.unsigned()
        return None if size == 0 else self.take(size - 1).decode()

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise ValueError("a string of the metadata record is null")
        return value

    def blob(self) -> bytes:
        return self.take(self.unsigned() - 1)

    def ints(self) -> tuple[int, ...]:
        return self.fixed(f">{max(self.unsigned() - 1, 0)}i")

    def tags(self) -> dict[int, bytes]:
        return {self.unsigned(): self.take(self.unsigned()) for _ in range(self.unsigned())}

    def id(self) -> Id16:
        return self.make_id(self.take(16))

    def ids(self) -> tuple[Id16, ...]:
        return tuple(self.id() for _ in range(self.unsigned() - 1))


def decode(value: bytes, make_id: IdFactory) -> MetadataRecord:
    """Reads one record's value. Raises UnsupportedRecord, or ValueError for malformed bytes."""
    cursor = FieldCursor(value, make_id)
    if (frame_version := cursor.unsigned()) != FRAME_VERSION:
        raise ValueError(f"the metadata record has frame version {frame_version}; only {FRAME_VERSION} is supported")
    api_key, version = cursor.unsigned(), cursor.unsigned()
    if version > NEWEST_VERSIONS.get(api_key, -1):
        raise UnsupportedRecord(f"a record of type {api_key} ({_NAMES.get(api_key, 'unknown')}, version {version})")
    if api_key == TOPIC:
        return TopicRecord(cursor.string(), cursor.id())
    if api_key == PARTITION:
        return _read_partition(cursor, version)
    if api_key == PARTITION_CHANGE:
        return _read_partition_change(cursor)
    if api_key == CONFIG:
        return ConfigRecord(cursor.fixed(">b")[0], cursor.string(), cursor.string(), cursor.nullable_string())
    if api_key == REMOVE_TOPIC:
        return RemoveTopicRecord(cursor.id())
    if api_key == FEATURE_LEVEL:
        return FeatureLevelRecord(cursor.string(), cursor.fixed(">h")[0])
    if api_key == CLIENT_QUOTA:
        return _read_client_quota(cursor)
    if api_key == PRODUCER_IDS:
        return ProducerIdsRecord(*cursor.fixed(">iqq"))
    if api_key == USER_SCRAM_CREDENTIAL:
        return _read_credential(cursor)
    if api_key == REMOVE_USER_SCRAM_CREDENTIAL:
        return RemoveUserScramCredentialRecord(cursor.string(), cursor.fixed(">b")[0])
    if api_key == ACCESS_CONTROL_ENTRY:
        return AccessControlEntryRecord(cursor.id(), _read_acl(cursor))
    if api_key == REMOVE_ACCESS_CONTROL_ENTRY:
        return RemoveAccessControlEntryRecord(cursor.id())
    if api_key == DELEGATION_TOKEN:
        return DelegationTokenRecord(_read_token(cursor))
    if api_key == REMOVE_DELEGATION_TOKEN:
        return RemoveDelegationTokenRecord(cursor.string())
    raise AssertionError(f"the type {api_key} has a newest version and no reader")


def kind_of(value: bytes) -> int:
    """Returns the type of a record, from its value; -1 for a value that is no record."""
    return value[1] if len(value) >= 2 and value[0] == FRAME_VERSION else -1


def removed_topic(value: bytes) -> bytes | None:
    """Returns the 16 bytes of the topic's id if the value is a RemoveTopicRecord; a short cut of ``decode``."""
    return value[3:19] if value[:2] == _REMOVED and len(value) >= 19 else None


def _read_partition(cursor: FieldCursor, version: int) -> PartitionRecord:
    (partition_id,) = cursor.fixed(">i")
    topic_id, replicas, isr = cursor.id(), cursor.ints(), cursor.ints()
    removing, adding = cursor.ints(), cursor.ints()
    leader, leader_epoch, partition_epoch = cursor.fixed(">iii")
    directories = cursor.ids() if version >= 1 else ()
    record = PartitionRecord(
        partition_id, topic_id, replicas, isr, leader, leader_epoch, partition_epoch, directories, removing, adding
    )
    tags = cursor.tags()
    return record._replace(**_read_tags(tags, _PARTITION_TAGS, cursor.make_id)) if tags else record


def _read_partition_change(cursor: FieldCursor) -> PartitionChangeRecord:
    (partition_id,) = cursor.fixed(">i")
    return PartitionChangeRecord(partition_id, cursor.id(), **_read_tags(cursor.tags(), _CHANGE_TAGS, cursor.make_id))


def _read_tags(tags: Mapping[int, bytes], names: tuple[str, ...], make_id: IdFactory) -> dict[str, Any]:
    """Reads the tagged fields of a partition. A value that means "no change" is left out, unknown tags are ignored."""
    values: dict[str, Any] = {}
    for tag, data in tags.items():
        if tag >= len(names):
            continue
        name, field = names[tag], FieldCursor(data, make_id)
        if name == "leader":
            (value,) = field.fixed(">i")
            unchanged = value == _NO_LEADER_CHANGE
        elif name == "recovery_state":
            (value,) = field.fixed(">b")
            unchanged = value == _NO_STATE_CHANGE
        else:
            value = field.ids() if name == "directories" else field.ints()
            unchanged = False
        if field.at != len(data):
            raise ValueError(f"the metadata record has a field {name} of {len(data)} bytes, {field.at} of them read")
        if not unchanged:
            values[name] = value
    return values


def _read_client_quota(cursor: FieldCursor) -> ClientQuotaRecord:
    entity = []
    for _ in range(cursor.unsigned() - 1):
        entity.append((cursor.string(), cursor.nullable_string()))
        cursor.tags()
    key = cursor.string()
    value, removed = cursor.fixed(">d?")
    return ClientQuotaRecord(tuple(entity), key, None if removed else value)


def _read_credential(cursor: FieldCursor) -> UserScramCredentialRecord:
    user, (mechanism,) = cursor.string(), cursor.fixed(">b")
    salt, stored_key, server_key = cursor.blob(), cursor.blob(), cursor.blob()
    (iterations,) = cursor.fixed(">i")
    return UserScramCredentialRecord(user, mechanism, Credential(salt, stored_key, server_key, iterations))


def _read_acl(cursor: FieldCursor) -> Acl:
    (resource_type,), name, (pattern,) = cursor.fixed(">b"), cursor.string(), cursor.fixed(">b")
    return Acl(resource_type, name, pattern, cursor.string(), cursor.string(), *cursor.fixed(">bb"))


def _read_token(cursor: FieldCursor) -> DelegationToken:
    owner, requester = cursor.string(), cursor.string()
    renewers = tuple(cursor.string() for _ in range(cursor.unsigned() - 1))
    issue_ms, max_ms, expiry_ms = cursor.fixed(">qqq")
    return DelegationToken(owner, requester, renewers, issue_ms, max_ms, expiry_ms, cursor.string())
