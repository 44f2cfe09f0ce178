"""Records of ``__consumer_offsets`` in columns: the kernel gives the same values as the row decoder for any bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.codecs import offsets_topic as records
from odradek.codecs.offsets_topic import (
    CoordinatorRecord,
    GroupMember,
    GroupMetadata,
    GroupRecord,
    OffsetCommitRecord,
    OffsetCommitValue,
    UnknownRecord,
)
from odradek.codecs.schemas import RECORD_TYPES, encode_key, encode_value
from odradek.history.records.columns import KINDS, PLAIN_SCHEMA, SCHEMA, plain
from odradek.history.records.decode import decode_batch
from odradek.history.records.group_records import micros

TIME = pa.timestamp("us", tz="UTC")
Pair = tuple[bytes | None, bytes | None]

text = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["orders", "bílling", "x" * 200])
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
times = st.integers(-1, 2**46)


def batch_of(pairs: list[Pair]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in pairs], pa.binary()),
            "value": pa.array([value for _, value in pairs], pa.binary()),
            "topic": pa.array(["__consumer_offsets"] * len(pairs)),
            "partition": pa.array([7] * len(pairs), pa.int32()),
            "offset": pa.array(range(100, 100 + len(pairs)), pa.int64()),
            "timestamp": pa.array(range(len(pairs)), TIME),
        }
    )


def decoded(pairs: list[Pair]) -> list[dict[str, Any]]:
    found = decode_batch(batch_of(pairs))
    found.validate(full=True)
    assert found.schema.equals(SCHEMA)
    times = [name for name in SCHEMA.names if name.endswith("timestamp")]
    for name in times:  # as numbers: Python's dates end with the year 9999
        at = found.schema.get_field_index(name)
        found = found.set_column(at, name, found.column(at).cast(pa.int64()))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@st.composite
def commits(draw: st.DrawFn) -> Pair:
    """A commit in any version of key and value, sometimes with unknown tags, or its tombstone."""
    number, version = draw(st.sampled_from([(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]))
    key = {"group": draw(text), "topic": draw(text), "partition": draw(i32)}
    fields = {
        "offset": draw(i64),
        "leader_epoch": draw(st.just(-1) | i32),
        "metadata": draw(text),
        "commit_timestamp": draw(times),
        "expire_timestamp": draw(times),
        "topic_id": draw(st.just(bytes(16)) | st.binary(min_size=16, max_size=16)),
    }
    kind = RECORD_TYPES[number]
    value = encode_value(kind, version, fields)
    if version == 4 and draw(st.booleans()):  # a tag of a newer broker, which is skipped
        count = 1 if any(fields["topic_id"]) else 0
        tags = value[-19:] if count else b""
        value = value[: len(value) - (20 if count else 1)] + bytes([count + 1]) + tags[:] + b"\x05\x02ab"
    return encode_key(kind, key), None if draw(st.integers(0, 5)) == 0 else value


@st.composite
def damaged(draw: st.DrawFn) -> Pair:
    pair = [bytearray(part) for part in draw(commits()) if part is not None]
    for target in pair:
        for _ in range(draw(st.integers(0, 2)) if target else 0):
            target[draw(st.integers(0, len(target) - 1))] = draw(st.integers(0, 255))
        if draw(st.booleans()):
            del target[draw(st.integers(0, len(target))) :]
    return bytes(pair[0]), bytes(pair[1]) if len(pair) > 1 else None


member = st.builds(GroupMember, text, st.none() | text, text, text, i32, i32, st.binary(max_size=40), st.just(b""))
groups = st.builds(
    lambda group, *value, members: (
        records.group_key(group),
        records.group_value(GroupMetadata(*value, members=tuple(members))),
    ),
    text, st.sampled_from(["consumer", "connect", ""]), i32, st.none() | text, st.none() | text, times,
    members=st.lists(member, max_size=2),
)  # fmt: skip
noise = st.tuples(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=50))
noises = st.none() | st.binary(max_size=50)
typed_noise = st.builds(
    lambda n, k, v: (n.to_bytes(2, "big") + k, v), st.integers(0, 24), st.binary(max_size=30), noises
)
anything = commits() | damaged() | groups | noise | typed_noise


def expected(pair: Pair, at: int) -> dict[str, Any]:
    """The values of the row decoder, in the form of the columns."""
    key, value = pair
    record = records.decode(key, value)
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    row |= {
        "is_tombstone": value is None,
        "record_partition": 7,
        "record_offset": 100 + at,
        "record_timestamp": at,
        "key_type": int.from_bytes(key[:2], "big", signed=True) if key is not None and len(key) >= 2 else None,
    }
    if value is not None and len(value) >= 2 and (version := int.from_bytes(value[:2], "big", signed=True)) >= 0:
        row["value_version"] = version
    if late := [ms for ms in times_of(record) if abs(ms) > (1 << 63) // 1000]:
        reason = f"a column of times does not hold its time {late[0]} ms"
        return row | {
            "kind": "unknown",
            "group": records.group_of_key(key),
            "key": key,
            "value": value,
            "reason": reason,
        }
    match record:
        case UnknownRecord():
            row |= {"kind": "unknown", "key": key, "value": value, "reason": record.reason}
            row["group"] = records.group_of_key(key)
        case OffsetCommitRecord():
            row |= {"kind": "offset_commit"} | record.key._asdict()
            if record.value is not None:
                row |= {
                    "committed_offset": record.value.offset,
                    "leader_epoch": None if record.value.leader_epoch == -1 else record.value.leader_epoch,
                    "metadata": record.value.metadata,
                    "commit_timestamp": record.value.commit_timestamp_ms * 1000,
                    "expire_timestamp": micros(record.value.expire_timestamp_ms),
                    "topic_id": record.value.topic_id,
                }
        case GroupRecord():
            row |= {"kind": "group_metadata", "group": record.key.group}
            if record.value is not None:
                row |= {
                    "generation": record.value.generation,
                    "protocol_type": record.value.protocol_type,
                    "protocol": record.value.protocol,
                    "leader": record.value.leader,
                    "state_timestamp": micros(record.value.current_state_timestamp_ms),
                }
        case CoordinatorRecord():
            row |= {"kind": record.kind.name, "group": record.key["group_id"]}
    return row


def times_of(record: Any) -> list[int]:
    value = getattr(record, "value", None)
    match record:
        case OffsetCommitRecord() if value is not None:
            return [value.commit_timestamp_ms, value.expire_timestamp_ms]
        case GroupRecord() if value is not None:
            return [value.current_state_timestamp_ms]
        case CoordinatorRecord() if value is not None:
            return [value.get("assignment_timestamp") or value.get("timestamp") or -1]
    return []


OWN = {"members", "details", "member_id", "generation", "state_timestamp", "protocol"}


@pytest.mark.claim(83, 84, 85, 86, part=True)
@pytest.mark.behaviour(11, 12, part=True)
@given(st.lists(anything, max_size=8))
def test_every_record_is_read_as_by_the_row_decoder(pairs: list[Pair]) -> None:
    """Commits, groups and tombstones have equal values. Unknown and damaged records keep their bytes, and their group
    if the whole key can be read."""
    for at, (pair, row) in enumerate(zip(pairs, decoded(pairs), strict=True)):
        wanted = expected(pair, at)
        of_newer_protocols = wanted["kind"] not in ("unknown", "offset_commit", "group_metadata")
        left_out = OWN if of_newer_protocols else {"members", "details"}
        assert {k: v for k, v in row.items() if k not in left_out} == {
            k: v for k, v in wanted.items() if k not in left_out
        }


@st.composite
def alike(draw: st.DrawFn) -> list[Pair]:
    """Consecutive commits of one group and topic with different numbers, as in most logs.

    In some commits one byte is changed, and the length stays the same.
    """
    number, version = 1, draw(st.sampled_from([1, 3, 3, 4, 4]))
    texts = {"group": draw(text), "topic": draw(text)}
    with_id, metadata = draw(st.booleans()), draw(st.sampled_from(["", "note", "é"]))
    pairs: list[Pair] = []
    for _ in range(draw(st.integers(2, 8))):
        fields = {
            "offset": draw(i64), "leader_epoch": draw(i32), "metadata": metadata, "commit_timestamp": draw(times),
            "expire_timestamp": -1, "topic_id": draw(st.binary(min_size=16, max_size=16)) if with_id else bytes(16),
        }  # fmt: skip
        parts = [
            bytearray(encode_key(RECORD_TYPES[number], texts | {"partition": draw(i32)})),
            bytearray(encode_value(RECORD_TYPES[number], version, fields)),
        ]
        if draw(st.integers(0, 3)) == 0:
            changed = parts[draw(st.integers(0, 1))]
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        pairs.append((bytes(parts[0]), None if draw(st.integers(0, 9)) == 0 else bytes(parts[1])))
    return pairs


@pytest.mark.behaviour(11, part=True)
@given(alike())
def test_similar_commits_are_read_separately(pairs: list[Pair]) -> None:
    for at, (pair, row) in enumerate(zip(pairs, decoded(pairs), strict=True)):
        wanted = expected(pair, at)
        left_out = {"members", "details"}
        if wanted["kind"] not in ("unknown", "offset_commit", "group_metadata"):
            left_out = OWN
        assert {k: v for k, v in row.items() if k not in left_out} == {
            k: v for k, v in wanted.items() if k not in left_out
        }


def test_rows_are_in_the_order_of_the_records_also_in_slices() -> None:
    pairs: list[Pair] = [
        (records.offset_key("g", "t", n), records.offset_value(OffsetCommitValue(n, -1, "", n)))
        if n % 3
        else (records.group_key(f"g{n}"), None)
        for n in range(30)
    ]
    whole = decode_batch(batch_of(pairs))
    for start in (0, 1, 8, 13, 30):
        assert decode_batch(batch_of(pairs).slice(start)).equals(whole.slice(start))
    assert whole.column("record_offset").to_pylist() == list(range(100, 130))
    assert whole.column("partition").to_pylist() == [n if n % 3 else None for n in range(30)]
    assert plain(whole).schema.equals(PLAIN_SCHEMA)
    assert set(plain(whole).column("kind").to_pylist()) == {"offset_commit", "group_metadata"}


@pytest.mark.claim(84, part=True)
def test_classic_members_have_their_subscriptions() -> None:
    subscription = b"\0\1\0\0\0\1\0\6orders\xff\xff\xff\xff\0\0\0\0"
    assignment = b"\0\1\0\0\0\1\0\6orders\0\0\0\2\0\0\0\0\0\0\0\3\xff\xff\xff\xff"
    value = GroupMetadata(
        "consumer", 4, "range", "m-1", 1_700_000_000_000,
        (GroupMember("m-1", "i-1", "c", "/10.0.0.1", 60_000, 45_000, subscription, assignment),
         GroupMember("m-2", None, "c", "/10.0.0.2", 60_000, 45_000, b"junk", b"junk")),
    )  # fmt: skip
    (row,) = decoded([(records.group_key("g"), records.group_value(value))])
    first, second = row["members"]
    assert first["client_host"] == "/10.0.0.1"
    assert first["subscription"] == ["orders"]
    assert first["assignment"] == [{"topic": "orders", "topic_id": None, "partitions": [0, 3]}]
    assert (second["subscription"], second["assignment"]) == (None, None)


def test_kip848_members_have_their_epochs_and_partitions() -> None:
    """Topic ids become names if the names are known."""
    topic_id = bytes(range(16))
    owned = [{"topic_id": topic_id, "partitions": [1, 2], "assignment_epochs": []}]
    key = {"group_id": "g", "member_id": "m"}
    current = {
        "member_epoch": 9, "previous_member_epoch": 8, "state": 0,
        "assigned_partitions": owned, "partitions_pending_revocation": [],
    }  # fmt: skip
    pairs = [
        (
            encode_key(RECORD_TYPES[3], {"group_id": "g"}),
            encode_value(RECORD_TYPES[3], 0, {"epoch": 9, "metadata_hash": 1}),
        ),
        (encode_key(RECORD_TYPES[8], key), encode_value(RECORD_TYPES[8], 0, current)),
        (encode_key(RECORD_TYPES[8], key), None),
    ]
    found = decode_batch(batch_of(pairs), {topic_id: "orders"}).to_pylist()
    assert [row["kind"] for row in found] == ["consumer_group_metadata"] + [
        "consumer_group_current_member_assignment"
    ] * 2
    assert [row["generation"] for row in found] == [9, 9, None]
    assert found[1]["members"][0]["assignment"] == [{"topic": "orders", "topic_id": topic_id, "partitions": [1, 2]}]
    assert found[1]["members"][0]["epoch"] == 9
    assert (found[2]["member_id"], found[2]["is_tombstone"]) == ("m", True)
    assert all(row["kind"] in KINDS for row in found)
