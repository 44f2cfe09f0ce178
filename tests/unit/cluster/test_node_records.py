"""Records about the nodes of a cluster: Kafka's bytes, and each record is read back as it was written."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.catalog.records import MetadataRecord, NodeRecord, TopicRecord, UnsupportedRecord
from odradek.catalog.records import encode as encode_record
from odradek.cluster.records import (
    NEWEST_NODE_VERSIONS,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    Endpoint,
    FeatureRange,
    FenceBrokerRecord,
    NoOpRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    decode,
)

ONE = uuid.UUID(int=(1 << 64) + 2)
FIRST, SECOND = uuid.UUID(int=(5 << 64) + 6), uuid.UUID(int=(7 << 64) + 8)
ENDPOINTS = (Endpoint("A", "h", 65535, 3), Endpoint("B", "i", 9092, 0))
FEATURES = (FeatureRange("metadata.version", 7, 30),)

# Written by the classes of Apache Kafka 4.3.0 (MetadataRecordSerde).
KAFKAS: dict[str, tuple[MetadataRecord, str]] = {
    "directories and cordoned ones": (
        RegisterBrokerRecord(
            3,
            ONE,
            77,
            ENDPOINTS,
            FEATURES,
            "ra",
            is_fenced=False,
            is_shutting_down=True,
            directories=(FIRST, SECOND),
            cordoned=(FIRST,),
        ),
        (
            "010004000000030000000000000000010000000000000002000000000000004d0302410268ffff0003000242026923840000"
            "0002116d657461646174612e76657273696f6e0007001e000372610001020021030000000000000005000000000000000600"
            "00000000000007000000000000000801110200000000000000050000000000000006"
        ),
    ),
    "no cordoned directory": (
        RegisterBrokerRecord(
            3,
            ONE,
            77,
            ENDPOINTS,
            FEATURES,
            "ra",
            is_fenced=False,
            is_shutting_down=True,
            directories=(FIRST, SECOND),
            cordoned=(),
        ),
        (
            "010004000000030000000000000000010000000000000002000000000000004d0302410268ffff0003000242026923840000"
            "0002116d657461646174612e76657273696f6e0007001e000372610001020021030000000000000005000000000000000600"
            "000000000000070000000000000008010101"
        ),
    ),
    "defaults": (
        RegisterBrokerRecord(1, uuid.UUID(int=9), 5),
        "0100040000000100000000000000000000000000000000090000000000000005010100010000",
    ),
    "unregister": (
        UnregisterBrokerRecord(3, 77),
        "01010000000003000000000000004d00",
    ),
    "fence": (
        FenceBrokerRecord(3, 77),
        "01070000000003000000000000004d00",
    ),
    "unfence": (
        UnfenceBrokerRecord(3, 77),
        "01080000000003000000000000004d00",
    ),
    "eligible replicas": (
        ClearElrRecord("ab"),
        "011c0003616200",
    ),
    "no-op": (
        NoOpRecord(),
        "01140000",
    ),
    "change: fenced": (
        BrokerRegistrationChangeRecord(3, 77, is_fenced=True),
        "01110000000003000000000000004d01000101",
    ),
    "change: unfenced": (
        BrokerRegistrationChangeRecord(3, 77, is_fenced=False),
        "01110000000003000000000000004d010001ff",
    ),
    "change: shutdown": (
        BrokerRegistrationChangeRecord(3, 77, begins_shutdown=True),
        "01110100000003000000000000004d01010101",
    ),
    "change: directories": (
        BrokerRegistrationChangeRecord(3, 77, directories=(FIRST,)),
        "01110200000003000000000000004d0102110200000000000000050000000000000006",
    ),
    "change: cordoned": (
        BrokerRegistrationChangeRecord(3, 77, cordoned=(FIRST,)),
        "01110300000003000000000000004d0103110200000000000000050000000000000006",
    ),
    "change: none cordoned": (
        BrokerRegistrationChangeRecord(3, 77, cordoned=()),
        "01110300000003000000000000004d01030101",
    ),
    "controller": (
        RegisterControllerRecord(9, ONE, (Endpoint("C", "h", 9093, 0),), (FeatureRange("kraft.version", 0, 1),)),
        (
            "011b0000000009000000000000000100000000000000020002024302682385000000020e6b726166742e76657273696f6e00"
            "0000010000"
        ),
    ),
}
# The earlier versions of RegisterBrokerRecord, which are only read.
EARLIER: dict[str, tuple[MetadataRecord, str]] = {
    "version 1": (
        RegisterBrokerRecord(3, ONE, 77, ENDPOINTS, FEATURES, "ra", is_fenced=False, is_shutting_down=True),
        (
            "0100010000000300000000000000010000000000000002000000000000004d0302410268ffff000300024202692384000000"
            "02116d657461646174612e76657273696f6e0007001e00037261000100"
        ),
    ),
    "version 2": (
        RegisterBrokerRecord(
            3, ONE, 77, ENDPOINTS, FEATURES, "ra", is_fenced=False, is_shutting_down=True, is_migrating=True
        ),
        (
            "010002000000030100000000000000010000000000000002000000000000004d0302410268ffff0003000242026923840000"
            "0002116d657461646174612e76657273696f6e0007001e00037261000100"
        ),
    ),
    "version 3": (
        RegisterBrokerRecord(
            3, ONE, 77, ENDPOINTS, FEATURES, "ra", is_fenced=False, is_shutting_down=True, directories=(FIRST, SECOND)
        ),
        (
            "010003000000030000000000000000010000000000000002000000000000004d0302410268ffff0003000242026923840000"
            "0002116d657461646174612e76657273696f6e0007001e000372610001010021030000000000000005000000000000000600"
            "000000000000070000000000000008"
        ),
    ),
}


def make_id(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


@pytest.mark.parametrize("name", KAFKAS)
def test_a_record_has_kafkas_bytes(name: str) -> None:
    record, packed = KAFKAS[name]
    assert encode_record(record).hex() == packed
    assert decode(bytes.fromhex(packed), make_id) == record


@pytest.mark.parametrize("name", EARLIER)
def test_an_earlier_version_of_a_registration_is_read(name: str) -> None:
    record, packed = EARLIER[name]
    assert decode(bytes.fromhex(packed), make_id) == record


ids = st.uuids()
names = st.text(st.characters(codec="utf-8"), max_size=20)
i16, i32 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
several_ids = st.lists(ids, max_size=3).map(tuple)
endpoints = st.lists(st.builds(Endpoint, names, names, st.integers(0, 65535), i16), max_size=3).map(tuple)
features = st.lists(st.builds(FeatureRange, names, i16, i16), max_size=3).map(tuple)
flags = st.booleans()
any_record = st.one_of(
    st.builds(
        RegisterBrokerRecord, i32, ids, i64, endpoints, features, st.none() | names, flags, flags, several_ids,
        st.none() | several_ids, flags,
    ),
    st.builds(UnregisterBrokerRecord, i32, i64),
    st.builds(FenceBrokerRecord, i32, i64),
    st.builds(UnfenceBrokerRecord, i32, i64),
    st.builds(
        BrokerRegistrationChangeRecord, i32, i64, st.none() | flags, flags,
        st.none() | st.lists(ids, min_size=1, max_size=3).map(tuple), st.none() | several_ids,
    ),
    st.builds(RegisterControllerRecord, i32, ids, endpoints, features, flags),
    st.builds(NoOpRecord),
    st.builds(ClearElrRecord, names),
)  # fmt: skip


@given(any_record)
def test_a_record_is_read_back_as_written(record: NodeRecord) -> None:
    assert decode(record.packed(), make_id) == record


@given(any_record, st.data())
def test_a_record_that_is_cut_is_refused(record: NodeRecord, data: st.DataObject) -> None:
    packed = record.packed()
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError, match=r"truncated|null"):
        decode(packed[:cut], make_id)


def test_a_newer_version_and_malformed_fields_are_refused() -> None:
    for kind, newest in NEWEST_NODE_VERSIONS.items():
        with pytest.raises(UnsupportedRecord, match=f"type {kind} .*version {newest + 1}"):
            decode(bytes((1, kind, newest + 1)), make_id)
    head = bytes.fromhex("0111030000000300000000000000" + "4d")
    for tags, fault in (
        ("01000102", "unknown value 2 in its field Fenced"),
        ("01010102", "unknown value 2 in InControlledShutdown"),
        ("0100020101", "2 bytes instead of 1"),
        ("01020301aabb", "3 bytes, 1 of them read"),
    ):
        with pytest.raises(ValueError, match=fault):
            decode(head + bytes.fromhex(tags), make_id)


def test_records_of_the_catalogue_are_read_too() -> None:
    topic = TopicRecord("ab", ONE)
    assert decode(encode_record(topic), make_id) == topic
    with pytest.raises(UnsupportedRecord, match="type 23"):
        decode(b"\x01\x17\x00", make_id)
