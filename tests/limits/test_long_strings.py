"""Strings longer than 32,767 bytes: refused in requests, as by Kafka's parsers, but read in keys that older versions
of the broker wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from kio.schema.index import api_key_map
from kio.serial._introspect import classify_field
from support.group_harness import GroupHarness
from support.instances import Instances, plain
from support.world import START_MS

from odradek.broker.loop.scheduler import finish
from odradek.codecs import offsets_topic as records
from odradek.codecs.offsets_topic import (
    GroupKey,
    GroupMetadata,
    GroupRecord,
    OffsetCommitRecord,
    OffsetCommitValue,
    OffsetKey,
)
from odradek.codecs.schemas import RECORD_TYPES, encode_key, encode_value
from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_group
from odradek.wire import frames, schemas
from odradek.wire.api_keys import JOIN_GROUP, LIST_GROUPS, OFFSET_COMMIT
from odradek.wire.schemas import Kind

Path = tuple[str, ...]


class Small(Instances):
    """Short messages in which every array has two elements and every structure is present."""

    def value(self, field: Any) -> Any:
        kind = classify_field(field)
        kafka_type = field.metadata.get("kafka_type")
        if kind.is_array:
            return tuple(self.one(kafka_type, kind.type_) for _ in range(2))
        return super().value(field) if kafka_type is not None else self.of(kind.type_)

    def one(self, kafka_type: str | None, of: Any) -> Any:
        return {"string": "t", "bytes": b"b", "records": b"r"}.get(kafka_type or "") or super().one(kafka_type, of)


def strings(entity: Any, path: Path = ()) -> Iterator[Path]:
    """The path to each text field of a message."""
    for field in fields(entity):
        if field.metadata.get("kafka_type") == "string":
            yield (*path, field.name)
        elif "kafka_type" not in field.metadata:
            yield from strings(classify_field(field).type_, (*path, field.name))


def with_text(instance: Any, path: Path, text: str, index: int) -> Any:
    """The message with this text in the field. In an array, the element ``index`` gets the text."""
    if not path:
        return text
    value = getattr(instance, path[0])
    if isinstance(value, tuple):
        elements = list(value)
        elements[index] = with_text(elements[index], path[1:], text, index)
        return replace(instance, **{path[0]: tuple(elements)})
    return replace(instance, **{path[0]: with_text(value, path[1:], text, index)})


LONGEST = "x" * 32_767
TOO_LONG = "x" * 32_764 + "€€"  # 32,766 characters, 32,770 bytes


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=schemas.api_name)
def test_a_string_of_more_than_32767_bytes_is_refused_in_every_field(api_key: int) -> None:
    oldest, newest = schemas.known_versions(api_key)
    for version in range(oldest, newest + 1):
        entity = schemas.message_type(api_key, version, Kind.REQUEST)
        if not schemas.is_flexible(api_key, version):  # a signed length of 16 bits cannot exceed 32,767
            continue
        instance = Small(version).of(entity)
        for path in strings(entity):
            for index in (0, -1):
                longest = with_text(instance, path, LONGEST, index)
                data = schemas.encode(api_key, version, Kind.REQUEST, plain(longest))
                assert schemas.decode(api_key, version, Kind.REQUEST, data)[0] == longest, (version, path)
                data = schemas.encode(api_key, version, Kind.REQUEST, plain(with_text(instance, path, TOO_LONG, index)))
                with pytest.raises(ValueError, match=rf"{path[-1]} has 32,770 bytes"):
                    schemas.decode(api_key, version, Kind.REQUEST, data)
                with pytest.raises(ValueError, match=rf"{path[-1]} has 32,770 bytes"):
                    finish(schemas.decode_in_steps(api_key, version, Kind.REQUEST, data))


def commit(metadata: Sequence[str]) -> bytes:
    """An OffsetCommit request for one topic. Each partition has one of the texts as metadata."""
    row = {"committed_offset": 1, "committed_leader_epoch": 0}
    rows = [row | {"partition_index": index, "committed_metadata": text} for index, text in enumerate(metadata)]
    group = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return schemas.encode(OFFSET_COMMIT, 9, Kind.REQUEST, group | {"topics": [{"name": "t", "partitions": rows}]})


class Watched(bytes):
    """Bytes that count the reads of single bytes."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        Watched.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("partitions", [1, 100, 5000])
def test_partitions_too_short_for_a_long_string_are_not_searched(partitions: int) -> None:
    Watched.looks = 0
    schemas.decode(OFFSET_COMMIT, 9, Kind.REQUEST, Watched(commit([""] * partitions)))
    assert Watched.looks < 20


def test_a_long_string_is_found_among_many_partitions() -> None:
    for at in (0, 2500, 4999):
        texts = ["m"] * 5000
        texts[at] = TOO_LONG
        with pytest.raises(ValueError, match="committed_metadata has 32,770 bytes"):
            schemas.decode(OFFSET_COMMIT, 9, Kind.REQUEST, commit(texts))


# --- in the log -------------------------------------------------------------------------------------------------


def old_key(kind: int, *names: str, partition: int | None = None) -> bytes:
    """A key as older versions of the broker wrote it: the length of a name is unsigned."""
    packed = [name.encode() for name in names]
    out = kind.to_bytes(2, "big") + b"".join(len(name).to_bytes(2, "big") + name for name in packed)
    return out if partition is None else out + partition.to_bytes(4, "big")


LENGTHS = [32_768, 40_000, 65_535]
COMMIT = OffsetCommitValue(42, 3, "m", START_MS)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_stored_commit_with_a_long_id_is_loaded_and_expires(length: int) -> None:
    group = "ü" + "g" * (length - 2)
    harness = GroupHarness()
    harness.catalog.add("t")
    harness.catalog.add("u")
    where = partition_for_group(group, 2)
    partition = harness.partitions[where]
    partition.put(*((old_key(1, group, name, partition=3), records.offset_value(COMMIT)) for name in ("t", "u")))
    harness.restart()
    assert not harness.runtime.skipped_records
    shard = harness.runtime.shard(where)
    assert shard is not None
    assert shard.committed(group, "t", 3) == COMMIT
    # The deletion of the topic removes the offset, and the group expires later. Both write records with this group id.
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    assert shard.committed(group, "t", 3) is None
    assert partition.records()[-1] == OffsetCommitRecord(OffsetKey(group, "t", 3), None)
    assert shard.committed(group, "u", 3) == COMMIT
    harness.world.advance(8 * 86_400_000)
    assert partition.records()[-2:] == [
        OffsetCommitRecord(OffsetKey(group, "u", 3), None), GroupRecord(GroupKey(group), None)
    ]  # fmt: skip
    harness.restart()
    again = harness.runtime.shard(where)
    assert again is not None
    assert not again.groups
    assert not harness.runtime.skipped_records


def test_groups_with_ids_too_long_for_a_request_are_not_listed() -> None:
    harness = GroupHarness(partition_count=1)
    for name in ("€" * 10_922, "€" * 10_923, "g" * 40_000, "g"):  # 32,766 bytes, 32,769 bytes
        harness.partitions[0].put((old_key(1, name, "t", partition=0), records.offset_value(COMMIT)))
    harness.restart()
    for version in (0, 5):
        listed = harness.call(LIST_GROUPS, version, states_filter=(), types_filter=())
        assert [group.group_id[:1] for group in listed.groups] == ["€", "g"]
        assert [len(group.group_id) for group in listed.groups] == [10_922, 1]


@pytest.mark.parametrize("length", [0, 32_767, *LENGTHS])
def test_written_keys_are_read_back(length: int) -> None:
    name = "n" * length
    group = GroupMetadata("consumer", 1, None, None, START_MS)
    assert records.decode(records.offset_key(name, "t", 7), None) == OffsetCommitRecord(OffsetKey(name, "t", 7), None)
    assert records.decode(records.offset_key("g", name, 7), None) == OffsetCommitRecord(OffsetKey("g", name, 7), None)
    assert records.decode(records.group_key(name), records.group_value(group)) == GroupRecord(GroupKey(name), group)


def test_an_unsigned_length_must_fill_its_key() -> None:
    for key in (
        old_key(1, "g" * 40_000, "t", partition=0)[:-1],
        old_key(1, "g" * 40_000, "t", partition=0) + b"x",
        old_key(2, "g" * 40_000) + b"x",
        old_key(2, "g" * 40_000)[:-1],
    ):
        assert isinstance(records.decode(key, None), records.UnknownRecord)


def test_values_that_could_not_be_read_are_not_written() -> None:
    for name in ("n" * 65_536, "€" * 21_846):
        with pytest.raises(ValueError, match=r"65,53[68] bytes cannot be written"):
            records.offset_key(name, "t", 0)
        with pytest.raises(ValueError, match=r"65,53[68] bytes cannot be written"):
            records.group_key(name)
    with pytest.raises(ValueError, match="32,768 bytes cannot be written"):  # value version 1
        records.offset_value(COMMIT._replace(metadata="m" * 32_768, expire_timestamp_ms=5))
    for kind in RECORD_TYPES.values():
        names = [field.partition(":")[0] for field in kind.key.split() if field.endswith(":string")]
        for name in names:
            fields = dict.fromkeys(names, "n") | {"partition": 0}
            encode_key(kind, fields | {name: "n" * 32_767})
            with pytest.raises(ValueError, match="32,768 bytes cannot be written"):
                encode_key(kind, fields | {name: "n" * 32_768})
    member = {"member_id": "m" * 32_768, "group_instance_id": None, "client_id": "", "client_host": "",
              "rebalance_timeout": 1, "session_timeout": 1, "subscription": b"", "assignment": b""}  # fmt: skip
    value = {"protocol_type": "", "generation": 1, "protocol": None, "leader": None, "current_state_timestamp": 1}
    with pytest.raises(ValueError, match="32,768 bytes cannot be written"):
        encode_value(RECORD_TYPES[2], 3, value | {"members": [member]})


# --- ids that the broker derives from other names ---------------------------------------------------------------


def test_a_member_whose_id_would_be_too_long_is_refused() -> None:
    harness = GroupHarness(partition_count=1)
    join = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
            "group_instance_id": None, "protocol_type": "consumer", "reason": None,
            "protocols": [{"name": "range", "metadata": b""}]}  # fmt: skip
    for version in (2, 5, 9):
        reply = harness.call(JOIN_GROUP, version, **join, client_id="c" * 32_731)
        assert reply.error_code is ErrorCode.unknown_server_error, version
        reply = harness.call(JOIN_GROUP, version, **(join | {"group_instance_id": "ü" * 16_366}), client_id="c")
        assert (reply.error_code is ErrorCode.unknown_server_error) == (version >= 5)
    harness = GroupHarness(partition_count=1)
    joining = harness.start(JOIN_GROUP, 5, **(join | {"group_instance_id": "i" * 32_730}), client_id="c")
    harness.world.advance(4_000)
    assert len(joining.reply.member_id) == 32_767
    sync = {"group_id": "g", "generation_id": 1, "member_id": joining.reply.member_id,
            "group_instance_id": "i" * 32_730, "assignments": []}  # fmt: skip
    assert harness.call(14, 3, **sync).error_code is ErrorCode.none
    harness.restart()
    shard = harness.runtime.shard(0)
    assert shard is not None
    assert list(shard.groups["g"].members) == [joining.reply.member_id]


def test_a_client_id_does_not_grow_too_long_when_it_is_read() -> None:
    """Each invalid byte becomes U+FFFD, which takes three bytes in UTF-8."""
    head = b"\0\x03\0\0\0\0\0\1"
    for broken, taken in ((10_922, True), (10_923, False)):
        frame = head + broken.to_bytes(2, "big") + b"\xff" * broken
        if taken:
            client_id = frames.read_request_head(frame).client_id
            assert client_id is not None
            assert len(client_id.encode()) == 32_766
        else:
            with pytest.raises(frames.FrameError, match="client id"):
                frames.read_request_head(frame)
