"""Records of the metadata log: Kafka's framing; decoded records equal the encoded ones."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.catalog import records
from odradek.catalog.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from odradek.core.access.acl import Acl
from odradek.core.access.credential import Credential
from odradek.core.access.delegation_token import DelegationToken

ids = st.uuids()
names = st.text(st.characters(codec="utf-8"), max_size=260)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
brokers = st.lists(i32, max_size=4).map(tuple)
directories = st.lists(ids, max_size=3).map(tuple)
states = st.integers(0, 127)
i8 = st.integers(-128, 127)

any_record = st.one_of(
    st.builds(TopicRecord, names, ids),
    st.builds(
        PartitionRecord,
        i32,
        ids,
        brokers,
        brokers,
        i32,
        i32,
        i32,
        directories,
        brokers,
        brokers,
        states,
        brokers,
        brokers,
    ),
    st.builds(
        PartitionChangeRecord,
        i32,
        ids,
        leader=st.none() | st.integers(-1, 2**31 - 1),
        recovery_state=st.none() | states,
        directories=st.none() | directories,
        **{name: st.none() | brokers for name in ("isr", "replicas", "removing", "adding", "elr", "last_known_elr")},
    ),
    st.builds(ConfigRecord, st.integers(-128, 127), names, names, st.none() | names),
    st.builds(RemoveTopicRecord, ids),
    st.builds(
        ClientQuotaRecord,
        st.lists(st.tuples(names, st.none() | names), max_size=2).map(tuple),
        names,
        st.none() | st.floats(allow_nan=False),
    ),
    st.builds(FeatureLevelRecord, names, st.integers(-(2**15), 2**15 - 1)),
    st.builds(ProducerIdsRecord, i32, i64, i64),
    st.builds(
        UserScramCredentialRecord,
        names,
        st.integers(-128, 127),
        st.builds(Credential, st.binary(max_size=200), st.binary(max_size=64), st.binary(max_size=64), i32),
    ),
    st.builds(RemoveUserScramCredentialRecord, names, st.integers(-128, 127)),
    st.builds(AccessControlEntryRecord, ids, st.builds(Acl, i8, names, i8, names, names, i8, i8)),
    st.builds(RemoveAccessControlEntryRecord, ids),
    st.builds(
        DelegationTokenRecord,
        st.builds(DelegationToken, names, names, st.lists(names, max_size=3).map(tuple), i64, i64, i64, names),
    ),
    st.builds(RemoveDelegationTokenRecord, names),
)


def make_id(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


@given(any_record)
def test_a_record_is_read_back_as_written(record) -> None:
    assert records.decode(records.encode(record), make_id) == record


def test_a_topic_record_has_kafkas_bytes() -> None:
    # Frame version 1, API key 2, version 0, name "ab" as a compact string, the id, no tagged fields.
    topic_id = uuid.UUID(int=5)
    assert records.encode(TopicRecord("ab", topic_id)) == b"\x01\x02\x00\x03ab" + topic_id.bytes + b"\x00"


def test_a_quota_record_has_kafkas_bytes() -> None:
    # API key 14. The entity is an array: each element has a type, a nullable name and tagged fields. The key, the value
    # and the flag of a removal follow.
    set_to = ClientQuotaRecord((("user", None), ("ip", "x")), "k", 1.0)
    packed = b"\x01\x0e\x00" + b"\x03\x05user\x00\x00\x03ip\x02x\x00" + b"\x02k" + b"\x3f\xf0" + bytes(6) + b"\x00\x00"
    assert records.encode(set_to) == packed
    assert records.encode(ClientQuotaRecord((("ip", "x"),), "k", None))[-10:] == bytes(8) + b"\x01\x00"


def test_an_acl_has_kafkas_bytes() -> None:
    # API key 18: the id, type 2, the name, pattern 4, principal, host, operation 3, permission 3. API key 19: the id.
    acl_id = uuid.UUID(int=6)
    record = AccessControlEntryRecord(acl_id, Acl(2, "ab", 4, "User:u", "*", 3, 3))
    packed = b"\x01\x12\x00" + acl_id.bytes + b"\x02\x03ab\x04\x07User:u\x02*\x03\x03\x00"
    assert records.encode(record) == packed
    assert records.encode(RemoveAccessControlEntryRecord(acl_id)) == b"\x01\x13\x00" + acl_id.bytes + b"\x00"


def test_a_leader_change_has_kafkas_bytes() -> None:
    # API key 5: partition, topic id, then the leader as a tagged field with tag 1 and four bytes. The decoder skips
    # fields with unknown tags.
    topic_id = uuid.UUID(int=7)
    packed = b"\x01\x05\x02" + b"\x00\x00\x00\x03" + topic_id.bytes
    assert records.encode(PartitionChangeRecord(3, topic_id, 2)) == packed + b"\x01\x01\x04\x00\x00\x00\x02"
    assert records.decode(packed + b"\x01\x1f\x05\x02\x00\x00\x00\x04", make_id) == PartitionChangeRecord(
        3, topic_id, None
    )
    unchanged = packed + b"\x01\x01\x04\xff\xff\xff\xfe"
    assert records.decode(unchanged, make_id) == PartitionChangeRecord(3, topic_id, None)
    with pytest.raises(ValueError, match="truncated"):
        records.decode(packed + b"\x01\x01\x02\x00\x02", make_id)
    with pytest.raises(ValueError, match="field leader of 5 bytes, 4 of them read"):
        records.decode(packed + b"\x01\x01\x05\x00\x00\x00\x02\x00", make_id)


# Written by the classes of Apache Kafka 4.3.0 (MetadataRecordSerde).
KAFKAS_PARTITION = bytes.fromhex(
    "0103020000000500000000000000010000000000000002"
    "04000000010000000200000003020000000102000000030200000004000000010000000600000007"
    "04000000000000000300000000000000040000000000000003000000000000000400000000000000030000000000000004"
    "030001010105020000000202050200000003"
)
KAFKAS_CHANGE = bytes.fromhex(
    "0105020000000500000000000000010000000000000002"
    "0900090300000001000000020104000000020209030000000200000001030101040502000000090501000605020000000107"
    "01010821030000000000000003000000000000000400000000000000010000000000000002"
)
KAFKAS_ISR = bytes.fromhex("01050200000005000000000000000100000000000000020100050200000002")
KAFKAS_DIRECTORY = bytes.fromhex(
    "01050200000005000000000000000100000000000000020108110200000000000000030000000000000004"
)
TOPIC_ID, DIRECTORY = uuid.UUID(int=(1 << 64) + 2), uuid.UUID(int=(3 << 64) + 4)


@pytest.mark.parametrize(
    ("packed", "record"),
    [
        (
            KAFKAS_PARTITION,
            PartitionRecord(
                5, TOPIC_ID, (1, 2, 3), (1,), 1, 6, 7, (DIRECTORY,) * 3, removing=(3,), adding=(4,), recovery_state=1,
                elr=(2,), last_known_elr=(3,),
            ),
        ),
        (
            KAFKAS_CHANGE,
            PartitionChangeRecord(
                5, TOPIC_ID, 2, isr=(1, 2), replicas=(2, 1), removing=(), adding=(9,), recovery_state=0, elr=(1,),
                last_known_elr=(), directories=(DIRECTORY, TOPIC_ID),
            ),
        ),
        (KAFKAS_ISR, PartitionChangeRecord(5, TOPIC_ID, isr=(2,))),
        (KAFKAS_DIRECTORY, PartitionChangeRecord(5, TOPIC_ID, directories=(DIRECTORY,))),
    ],
)  # fmt: skip
def test_partitions_with_replicas_have_kafkas_bytes(packed: bytes, record: records.MetadataRecord) -> None:
    assert records.decode(packed, make_id) == record
    assert records.encode(record) == packed


@pytest.mark.parametrize("version", [0, 1])
def test_partitions_of_earlier_versions_are_read(version: int) -> None:
    """Earlier releases wrote version 1 of a partition, and version 0 of a change of its leader."""
    changed = b"\x01\x05" + bytes((version,)) + KAFKAS_ISR[3:]
    assert records.decode(changed, make_id) == PartitionChangeRecord(5, TOPIC_ID, isr=(2,))
    made = PartitionRecord(5, TOPIC_ID, (1,), (1,), 1, 6, 7, (DIRECTORY,) if version else ())
    packed = records.encode(made)
    assert packed[:3] == b"\x01\x03\x02"
    if not version:  # the directories come with version 1
        packed = packed.removesuffix(b"\x01\x00") + b"\x00"
    assert records.decode(packed[:2] + bytes((version,)) + packed[3:], make_id) == made


@given(any_record, st.data())
def test_records_that_are_cut_off_raise_an_error(record, data) -> None:
    packed = records.encode(record)
    cut = data.draw(st.integers(1, len(packed) - 2))
    with pytest.raises(ValueError, match=r"truncated|can't decode"):
        records.decode(packed[:cut], make_id)


def test_an_unknown_frame_version_raises_an_error() -> None:
    with pytest.raises(ValueError, match="frame version 2"):
        records.decode(b"\x02\x02\x00", make_id)


# Read from the metadata log of an Apache Kafka 4.3: user a, SHA-256, 4096 iterations, salt "salt". The keys are for
# a salted password of 32 letters x.
KAFKAS_CREDENTIAL = bytes.fromhex(
    "010b000261010573616c74"
    "21f4695af4c64263f1e68abd850edb59b206bded8ce10d6fdd8b8af9a1db8007fd"
    "21ef1ec68ad1add5f3f8fd010997d9bf074025de4bbfb9a818d835d310a0f86469"
    "0000100000"
)


def test_a_credential_is_read_and_written_in_kafkas_format() -> None:
    record = records.decode(KAFKAS_CREDENTIAL, make_id)
    assert isinstance(record, UserScramCredentialRecord)
    assert (record.user, record.mechanism, record.credential.iterations) == ("a", 1, 4096)
    assert record.credential.salt == b"salt"
    assert records.encode(record) == KAFKAS_CREDENTIAL
    assert records.encode(RemoveUserScramCredentialRecord("c", 1)) == bytes.fromhex("01160002630100")


# Written by the classes of Apache Kafka 4.3.0 (MetadataRecordSerde).
KAFKAS_TOKENS = {
    "010a0007557365723a6107557365723a6d0307557365723a6208557365723a6363000000000000000100000000240c8401000000000526"
    "5c01176b446b315671334953447159627879522d63314b654100": DelegationTokenRecord(
        DelegationToken("User:a", "User:m", ("User:b", "User:cc"), 1, 604_800_001, 86_400_001, "kDk1Vq3ISDqYbxyR-c1KeA")
    ),
    "010a0007557365723a6107557365723a6101000000000000000100000000000000027fffffffffffffff027400": DelegationTokenRecord(
        DelegationToken("User:a", "User:a", (), 1, 2, (1 << 63) - 1, "t")
    ),
    "011a00027400": RemoveDelegationTokenRecord("t"),
}


@pytest.mark.parametrize("packed", KAFKAS_TOKENS)
def test_tokens_have_kafkas_bytes(packed: str) -> None:
    assert records.encode(KAFKAS_TOKENS[packed]).hex() == packed
    assert records.decode(bytes.fromhex(packed), make_id) == KAFKAS_TOKENS[packed]


def test_secrets_are_not_shown() -> None:
    record = records.decode(KAFKAS_CREDENTIAL, make_id)
    assert repr(record).count("b'") == repr(record).count("salt") == 0
