"""Records of ``__consumer_offsets``: encoded records are read back, and the reader raises no error for any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.codecs import offsets_topic as records
from odradek.codecs.offsets_topic import GroupKey, GroupMember, GroupMetadata, OffsetCommitValue, OffsetKey, decode
from odradek.codecs.schemas import RECORD_TYPES, decode_value, encode_value

text = st.text(st.characters(codec="utf-8"), max_size=300)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ids = st.none() | st.binary(min_size=16, max_size=16).filter(any)


@given(text, text, i32, i64, i32, text, st.integers(0, 2**47), st.just(-1) | st.integers(0, 2**47), ids)
def test_encoded_offset_commits_are_read_back(
    group: str,
    topic: str,
    partition: int,
    offset: int,
    epoch: int,
    metadata: str,
    at: int,
    expiry: int,
    topic_id: bytes | None,
) -> None:
    value = OffsetCommitValue(offset, epoch, metadata, at, expiry, topic_id)
    packed = records.offset_value(value)
    kept = value if expiry == -1 else value._replace(leader_epoch=-1, topic_id=None)
    assert decode(records.offset_key(group, topic, partition), packed) == (OffsetKey(group, topic, partition), kept)
    version, fields = decode_value(RECORD_TYPES[1], packed)
    # the directly encoded bytes are those of the schema
    assert encode_value(RECORD_TYPES[1], version, fields) == packed


members = st.builds(
    GroupMember, text, st.none() | text, text, text, i32, i32, st.binary(max_size=80), st.binary(max_size=80)
).filter(lambda member: member.rebalance_timeout_ms != -1)


@given(text, text, i32, st.none() | text, st.none() | text, i64, st.lists(members, max_size=3))
def test_encoded_group_metadata_is_read_back(
    group: str, kind: str, generation: int, protocol: str, leader: str, at: int, joined: list[GroupMember]
) -> None:
    value = GroupMetadata(kind, generation, protocol, leader, at, tuple(joined))
    assert decode(records.group_key(group), records.group_value(value)) == (GroupKey(group), value)


@pytest.mark.claim(86, part="c")
@pytest.mark.behaviour(12, part="ab")
@given(st.binary(max_size=60), st.none() | st.binary(max_size=120), st.integers(0, 24))
def test_the_decoder_raises_no_error_for_any_bytes(key: bytes, value: bytes | None, number: int) -> None:
    decode(key, value)
    decode(number.to_bytes(2, "big") + key, value)
    if value is not None:
        decode(number.to_bytes(2, "big") + key, b"\0\0" + value)


@given(text, text, i32, i64, i32, text, st.integers(0, 2**47), ids, st.data())
def test_the_fast_reader_reads_the_same_values_as_the_schemas(
    group: str,
    topic: str,
    partition: int,
    offset: int,
    epoch: int,
    metadata: str,
    at: int,
    topic_id: bytes | None,
    data: st.DataObject,
) -> None:
    """If the fast reader returns a value, the general reader returns the same value, also for damaged bytes."""
    key = bytearray(records.offset_key(group, topic, partition))
    value = bytearray(records.offset_value(OffsetCommitValue(offset, epoch, metadata, at, -1, topic_id)))
    for target in (key, value):
        for _ in range(data.draw(st.integers(0, 2))):
            place = data.draw(st.integers(0, len(target) - 1))
            target[place] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            del target[data.draw(st.integers(0, len(target))) :]
    quick = records.decode_usual_commit(bytes(key), bytes(value))
    if quick is not None:
        kind = RECORD_TYPES[1]
        assert quick == records.decode_offset_commit(kind, bytes(key), bytes(value))
