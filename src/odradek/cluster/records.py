"""Records of the metadata log that only a cluster has, about its nodes and replicas. Frames and schemas are Kafka's.

``decode`` reads these records and those of ``catalog/records``. The versions that are written are those of
metadata.version 30. All earlier versions can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from odradek.catalog import records
from odradek.catalog.records import (
    FRAME_VERSION,
    FieldCursor,
    Id16,
    IdFactory,
    MetadataRecord,
    NodeRecord,
    PartitionChangeRecord,
    PartitionsOfTopic,
    UnsupportedRecord,
    packed_ids,
)
from odradek.core.varints import compact_string, uvarint

REGISTER_BROKER = 0
UNREGISTER_BROKER = 1
FENCE_BROKER = 7
UNFENCE_BROKER = 8
BROKER_REGISTRATION_CHANGE = 17
NO_OP = 20
REGISTER_CONTROLLER = 27
CLEAR_ELR = 28

NEWEST_NODE_VERSIONS = {
    REGISTER_BROKER: 4,
    UNREGISTER_BROKER: 0,
    FENCE_BROKER: 0,
    UNFENCE_BROKER: 0,
    BROKER_REGISTRATION_CHANGE: 3,
    NO_OP: 0,
    REGISTER_CONTROLLER: 0,
    CLEAR_ELR: 0,
}
_EMPTY_TAGS = b"\0"
_FENCED, _UNFENCED = 1, -1
_SHUTDOWN = 1


class Endpoint(NamedTuple):
    """An address of a node. ``security_protocol``: Kafka's number, 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str
    host: str
    port: int
    security_protocol: int


class FeatureRange(NamedTuple):
    """The lowest and the highest level of a feature that a node supports."""

    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord(NodeRecord):
    """A broker, or the whole state of one in a snapshot. ``cordoned`` is None until the broker has reported it."""

    broker_id: int
    incarnation_id: Id16
    broker_epoch: int
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[FeatureRange, ...] = ()
    rack: str | None = None
    is_fenced: bool = True
    is_shutting_down: bool = False
    directories: tuple[Id16, ...] = ()
    cordoned: tuple[Id16, ...] | None = None
    is_migrating: bool = False
    """Whether the broker came from ZooKeeper. No release since Kafka 4.0 registers such a broker."""

    def packed(self) -> bytes:
        head = struct.pack(">i?", self.broker_id, self.is_migrating)
        identity = self.incarnation_id.bytes + struct.pack(">q", self.broker_epoch)
        state = compact_string(self.rack) + struct.pack(">??", self.is_fenced, self.is_shutting_down)
        tags = [
            (0, packed_ids(self.directories) if self.directories else None),
            (1, None if self.cordoned is None else packed_ids(self.cordoned)),
        ]
        body = head + identity + _endpoints(self.endpoints) + _features(self.features) + state
        return _framed(REGISTER_BROKER, 4, body + _tags(tags))


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord(NodeRecord):
    broker_id: int
    broker_epoch: int

    def packed(self) -> bytes:
        return _framed(UNREGISTER_BROKER, 0, struct.pack(">iq", self.broker_id, self.broker_epoch) + _EMPTY_TAGS)


@dataclass(frozen=True, slots=True)
class FenceBrokerRecord(NodeRecord):
    """The earlier form of a BrokerRegistrationChangeRecord. It is only read."""

    broker_id: int
    broker_epoch: int

    def packed(self) -> bytes:
        return _framed(FENCE_BROKER, 0, struct.pack(">iq", self.broker_id, self.broker_epoch) + _EMPTY_TAGS)


@dataclass(frozen=True, slots=True)
class UnfenceBrokerRecord(NodeRecord):
    """The earlier form of a BrokerRegistrationChangeRecord. It is only read."""

    broker_id: int
    broker_epoch: int

    def packed(self) -> bytes:
        return _framed(UNFENCE_BROKER, 0, struct.pack(">iq", self.broker_id, self.broker_epoch) + _EMPTY_TAGS)


@dataclass(frozen=True, slots=True)
class BrokerRegistrationChangeRecord(NodeRecord):
    """A change of a broker's state. ``None`` keeps a field. A broker leaves the shutdown only with a registration."""

    broker_id: int
    broker_epoch: int
    is_fenced: bool | None = None
    begins_shutdown: bool = False
    directories: tuple[Id16, ...] | None = None
    """The remaining log directories. An empty tuple keeps the former ones, as in Kafka."""
    cordoned: tuple[Id16, ...] | None = None

    def packed(self) -> bytes:
        """Each version adds one field. As in Kafka, the version is the oldest that has the changed ones."""
        fencing = None if self.is_fenced is None else struct.pack(">b", _FENCED if self.is_fenced else _UNFENCED)
        tags = [
            (0, fencing),
            (1, struct.pack(">b", _SHUTDOWN) if self.begins_shutdown else None),
            (2, packed_ids(self.directories) if self.directories else None),
            (3, None if self.cordoned is None else packed_ids(self.cordoned)),
        ]
        version = 2 if self.directories == () else max((tag for tag, value in tags if value is not None), default=0)
        body = struct.pack(">iq", self.broker_id, self.broker_epoch)
        return _framed(BROKER_REGISTRATION_CHANGE, version, body + _tags(tags))


@dataclass(frozen=True, slots=True)
class RegisterControllerRecord(NodeRecord):
    controller_id: int
    incarnation_id: Id16
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[FeatureRange, ...] = ()
    is_migration_ready: bool = False

    def packed(self) -> bytes:
        head = struct.pack(">i", self.controller_id) + self.incarnation_id.bytes
        body = head + struct.pack(">?", self.is_migration_ready) + _endpoints(self.endpoints)
        return _framed(REGISTER_CONTROLLER, 0, body + _features(self.features) + _EMPTY_TAGS)


@dataclass(frozen=True, slots=True)
class ClearElrRecord(NodeRecord):
    """The eligible leader replicas of a topic, or of all topics (""), are forgotten: with another value of
    ``min.insync.replicas`` they may lack what is acknowledged."""

    topic: str = ""

    def packed(self) -> bytes:
        return _framed(CLEAR_ELR, 0, compact_string(self.topic) + _EMPTY_TAGS)

    def partition_changes(self, topics: Mapping[str, PartitionsOfTopic]) -> Iterable[PartitionChangeRecord]:
        """Raises ValueError for an unknown topic."""
        if self.topic and self.topic not in topics:
            raise ValueError(f"the eligible replicas of the topic {self.topic!r} are forgotten, but it does not exist")
        for topic in [topics[self.topic]] if self.topic else list(topics.values()):
            for partition in topic.partitions:
                if partition.elr or partition.last_known_elr:
                    yield PartitionChangeRecord(partition.partition_id, topic.id, elr=(), last_known_elr=())


@dataclass(frozen=True, slots=True)
class NoOpRecord(NodeRecord):
    """Nothing. The controller writes it while it is idle, so that observers see a newer offset."""

    def packed(self) -> bytes:
        return _framed(NO_OP, 0, _EMPTY_TAGS)


def _framed(kind: int, version: int, fields: bytes) -> bytes:
    return bytes((FRAME_VERSION, kind, version)) + fields


def _tags(values: list[tuple[int, bytes | None]]) -> bytes:
    """Packs the tagged fields that have a value."""
    present = [uvarint(tag) + uvarint(len(value)) + value for tag, value in values if value is not None]
    return uvarint(len(present)) + b"".join(present)


def _endpoints(endpoints: tuple[Endpoint, ...]) -> bytes:
    rows = [
        compact_string(one.name) + compact_string(one.host) + struct.pack(">Hh", one.port, one.security_protocol)
        for one in endpoints
    ]
    return uvarint(len(rows) + 1) + b"".join(row + _EMPTY_TAGS for row in rows)


def _features(features: tuple[FeatureRange, ...]) -> bytes:
    rows = [compact_string(one.name) + struct.pack(">hh", one.lowest, one.highest) for one in features]
    return uvarint(len(rows) + 1) + b"".join(row + _EMPTY_TAGS for row in rows)


# --- reading ----------------------------------------------------------------------------------------------------


def decode(value: bytes, make_id: IdFactory) -> MetadataRecord:
    """Reads one record's value. Raises UnsupportedRecord, or ValueError for malformed bytes."""
    if len(value) < 3 or value[0] != FRAME_VERSION or value[1] not in NEWEST_NODE_VERSIONS:
        return records.decode(value, make_id)
    kind, version = value[1], value[2]
    if version > NEWEST_NODE_VERSIONS[kind]:
        raise UnsupportedRecord(f"a record of type {kind} ({_NAMES[kind]}, version {version})")
    cursor = FieldCursor(value, make_id)
    cursor.at = 3
    record = _READERS[kind](cursor, version)
    if kind not in (REGISTER_BROKER, BROKER_REGISTRATION_CHANGE):  # those have read them
        cursor.tags()
    return record


def _read_broker(cursor: FieldCursor, version: int) -> RegisterBrokerRecord:
    (broker_id,) = cursor.fixed(">i")
    is_migrating = version >= 2 and cursor.fixed(">?")[0]
    incarnation_id, (broker_epoch,) = cursor.id(), cursor.fixed(">q")
    endpoints, features = _read_endpoints(cursor), _read_features(cursor)
    rack, (is_fenced,) = cursor.nullable_string(), cursor.fixed(">?")
    is_shutting_down = version >= 1 and cursor.fixed(">?")[0]
    tags = cursor.tags()
    return RegisterBrokerRecord(
        broker_id, incarnation_id, broker_epoch, endpoints, features, rack, is_fenced, is_shutting_down,
        _read_ids(tags, 0, cursor) or (), _read_ids(tags, 1, cursor), is_migrating,
    )  # fmt: skip


def _read_change(cursor: FieldCursor, version: int) -> BrokerRegistrationChangeRecord:
    broker_id, broker_epoch = cursor.fixed(">iq")
    tags = cursor.tags()
    fencing, shutdown = _read_flag(tags, 0), _read_flag(tags, 1)
    if fencing not in (_UNFENCED, 0, _FENCED):
        raise ValueError(f"the change of broker {broker_id} has the unknown value {fencing} in its field Fenced")
    if shutdown not in (0, _SHUTDOWN):
        raise ValueError(f"the change of broker {broker_id} has the unknown value {shutdown} in InControlledShutdown")
    return BrokerRegistrationChangeRecord(
        broker_id,
        broker_epoch,
        fencing == _FENCED if fencing else None,
        shutdown == _SHUTDOWN,
        _read_ids(tags, 2, cursor) or None,
        _read_ids(tags, 3, cursor),
    )


def _read_controller(cursor: FieldCursor, version: int) -> RegisterControllerRecord:
    (controller_id,) = cursor.fixed(">i")
    incarnation_id, (is_ready,) = cursor.id(), cursor.fixed(">?")
    return RegisterControllerRecord(
        controller_id, incarnation_id, _read_endpoints(cursor), _read_features(cursor), is_ready
    )


def _read_endpoints(cursor: FieldCursor) -> tuple[Endpoint, ...]:
    endpoints = []
    for _ in range(cursor.unsigned() - 1):
        endpoints.append(Endpoint(cursor.string(), cursor.string(), *cursor.fixed(">Hh")))
        cursor.tags()
    return tuple(endpoints)


def _read_features(cursor: FieldCursor) -> tuple[FeatureRange, ...]:
    features = []
    for _ in range(cursor.unsigned() - 1):
        features.append(FeatureRange(cursor.string(), *cursor.fixed(">hh")))
        cursor.tags()
    return tuple(features)


def _read_flag(tags: dict[int, bytes], tag: int) -> int:
    data = tags.get(tag, b"\0")
    if len(data) != 1:
        raise ValueError(f"the tagged field {tag} of a broker has {len(data)} bytes instead of 1")
    return int.from_bytes(data, "big", signed=True)


def _read_ids(tags: dict[int, bytes], tag: int, cursor: FieldCursor) -> tuple[Id16, ...] | None:
    """Returns the ids of a tagged field; None for an absent field and for null."""
    data = tags.get(tag)
    if data is None or data == b"\0":
        return None
    field = FieldCursor(data, cursor.make_id)
    ids = field.ids()
    if field.at != len(data):
        raise ValueError(f"the tagged field {tag} of a broker has {len(data)} bytes, {field.at} of them read")
    return ids


_READERS: dict[int, Callable[[FieldCursor, int], NodeRecord]] = {
    REGISTER_BROKER: _read_broker,
    UNREGISTER_BROKER: lambda cursor, version: UnregisterBrokerRecord(*cursor.fixed(">iq")),
    FENCE_BROKER: lambda cursor, version: FenceBrokerRecord(*cursor.fixed(">iq")),
    UNFENCE_BROKER: lambda cursor, version: UnfenceBrokerRecord(*cursor.fixed(">iq")),
    BROKER_REGISTRATION_CHANGE: _read_change,
    NO_OP: lambda cursor, version: NoOpRecord(),
    REGISTER_CONTROLLER: _read_controller,
    CLEAR_ELR: lambda cursor, version: ClearElrRecord(cursor.string()),
}
_NAMES = {
    REGISTER_BROKER: "RegisterBroker",
    UNREGISTER_BROKER: "UnregisterBroker",
    FENCE_BROKER: "FenceBroker",
    UNFENCE_BROKER: "UnfenceBroker",
    BROKER_REGISTRATION_CHANGE: "BrokerRegistrationChange",
    NO_OP: "NoOp",
    REGISTER_CONTROLLER: "RegisterController",
    CLEAR_ELR: "ClearElr",
}
