"""Kafka's control records of the metadata log and of its snapshots: about the quorum, not about the catalogue.

The key has its version (int16, 0) and the type (int16). The value begins with the record's version (int16), and is in
the compact encoding of flexible versions. The schemas are those of Kafka 4.3: LeaderChangeMessage 0–1,
SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord and VotersRecord 0.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from odradek.catalog.records import UnsupportedRecord
from odradek.core.varints import read_uvarint, skip_tagged_fields, uvarint

LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, KRAFT_VOTERS = 2, 3, 4, 5, 6
_NAMES = {
    LEADER_CHANGE: "LeaderChange",
    SNAPSHOT_HEADER: "SnapshotHeader",
    SNAPSHOT_FOOTER: "SnapshotFooter",
    KRAFT_VERSION: "KRaftVersion",
    KRAFT_VOTERS: "KRaftVoters",
}
_NEWEST = {LEADER_CHANGE: 1}
_KEY, _VERSION = struct.Struct(">hh"), struct.Struct(">h")
_LEADER, _HEADER = struct.Struct(">i"), struct.Struct(">q")
_ID_BYTES = 16
_END_OF_TAGS = b"\0"


class LeaderChange(NamedTuple):
    """A leader of the log begins its epoch. ``voters``: the nodes that elect a leader. ``granting``: those that have
    voted for this one."""

    leader: int
    voters: tuple[int, ...]
    granting: tuple[int, ...] = ()


class SnapshotHeader(NamedTuple):
    """The first record of a snapshot. ``last_timestamp_ms``: the time of the append of the last record in it."""

    last_timestamp_ms: int


class SnapshotFooter(NamedTuple):
    """The last record of a snapshot."""


class KRaftVersion(NamedTuple):
    """The level of the feature ``kraft.version``. From level 1 on, the voters are records."""

    level: int


class KRaftVoters(NamedTuple):
    """The voters of a quorum whose voters change at run time (KIP-853)."""

    voters: tuple[int, ...]


Control = LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | KRaftVoters


def pack_leader_change(change: LeaderChange) -> tuple[bytes, bytes]:
    """Returns the key and the value of the record that begins a leader epoch.

    Version 0, as Kafka writes it while ``kraft.version`` is 0: the voters are settings, and have no directory ids."""
    arrays = (
        b"".join([uvarint(len(nodes) + 1), *(_LEADER.pack(node) + _END_OF_TAGS for node in nodes)])
        for nodes in (change.voters, change.granting)
    )
    value = [_VERSION.pack(0), _LEADER.pack(change.leader), *arrays, _END_OF_TAGS]
    return _KEY.pack(0, LEADER_CHANGE), b"".join(value)


def read(key: bytes | None, value: bytes | None) -> Control:
    """Reads a control record. Raises UnsupportedRecord for another type or version, ValueError for malformed bytes."""
    try:
        return _read(key or b"", value or b"")
    except (struct.error, IndexError) as error:
        raise ValueError("a control record of the metadata log is truncated") from error


def _read(key: bytes, value: bytes) -> Control:
    _, kind = _KEY.unpack_from(key)
    (version,) = _VERSION.unpack_from(value) if kind in _NAMES else (0,)
    if kind not in _NAMES or not 0 <= version <= _NEWEST.get(kind, 0):
        raise UnsupportedRecord(f"a control record of type {kind} ({_NAMES.get(kind, 'unknown')}, version {version})")
    at = _VERSION.size
    if kind == LEADER_CHANGE:
        (leader,) = _LEADER.unpack_from(value, at)
        voters, at = _voters(value, at + _LEADER.size, version)
        return LeaderChange(leader, voters, _voters(value, at, version)[0])
    if kind == SNAPSHOT_HEADER:
        return SnapshotHeader(*_HEADER.unpack_from(value, at))
    if kind == KRAFT_VERSION:
        return KRaftVersion(*_VERSION.unpack_from(value, at))
    return KRaftVoters(_first_voters(value, at)) if kind == KRAFT_VOTERS else SnapshotFooter()


def _voters(value: bytes, at: int, version: int) -> tuple[tuple[int, ...], int]:
    """Returns the ids of an array of voters, each with a directory id from version 1 on, and the place after it."""
    count, at = read_uvarint(value, at)
    voters: list[int] = []
    for _ in range(count - 1):
        voters += _LEADER.unpack_from(value, at)
        at = _after_tags(value, at + _LEADER.size + (_ID_BYTES if version else 0))
    return tuple(voters), at


def _first_voters(value: bytes, at: int) -> tuple[int, ...]:
    """Returns the id of the first voter of a VotersRecord: the record is refused, whatever the others are."""
    count, at = read_uvarint(value, at)
    return tuple(_LEADER.unpack_from(value, at)) if count > 1 else ()


def _after_tags(value: bytes, at: int) -> int:
    """Returns the place after a block of tagged fields."""
    count, at = read_uvarint(value, at)
    return skip_tagged_fields(value, at, count)
