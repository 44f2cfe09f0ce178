"""Records of ``__consumer_offsets``, byte for byte as Apache Kafka 4.3.0 writes them.

``GOLDEN`` was read from the topic of a running Apache Kafka 4.3.0, after commits and group activity by confluent-kafka
and by requests of this project. ``JSON`` and ``CODED`` were made with the formatter and the generated classes of that
version.
"""

from __future__ import annotations

import json

import pytest

from odradek.codecs import offsets_topic as records
from odradek.codecs.offsets_topic import (
    CoordinatorRecord,
    GroupKey,
    GroupMember,
    GroupMetadata,
    GroupRecord,
    OffsetCommitRecord,
    OffsetCommitValue,
    OffsetKey,
    UnknownRecord,
    decode,
)
from odradek.codecs.schemas import (
    RECORD_TYPES,
    MalformedRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

GOLDEN: dict[str, tuple[str, str | None]] = {
    "new classic group": (
        "0002000f67726f7570732d676f6c642d64796e",
        "0003000000000000ffffffff000001a1fb4c1a3300000000",
    ),
    "generation with a static member": (
        "0002000f67726f7570732d676f6c642d64796e",
        (
            "00030008636f6e73756d657200000001000572616e6765002b696e73742d312d38326637636262662d646237622d3462"
            "63372d396533382d326434653135363437313634000001a1fb4c1a3300000001002b696e73742d312d38326637636262"
            "662d646237622d346263372d396533382d3264346531353634373136340006696e73742d310004676f6c64000a2f3132"
            "372e302e302e31000493e00000afc800000021000300000001000b67726f7570732d676f6c640000000000000000ffff"
            "ffff00000000002b000000000001000b67726f7570732d676f6c64000000040000000000000001000000020000000300"
            "000000"
        ),
    ),
    "commit of a member": (
        "0001000f67726f7570732d676f6c642d64796e000b67726f7570732d676f6c6400000000",
        "000400000000000000020000000001000001a1fb4c1aa7010010de56613f83c7498fbba6baae75298c3e",
    ),
    "commit with its own expiry": (
        "0001001067726f7570732d676f6c642d65787032000b67726f7570732d676f6c6400000002",
        "0001000000000000000200026d32000001a1fb4c5c05000001a1fb4d4665",
    ),
    "commit v5": (
        "0001001067726f7570732d676f6c642d65787032000b67726f7570732d676f6c6400000001",
        "00040000000000000005ffffffff036d35000001a1fb4c5c14010010de56613f83c7498fbba6baae75298c3e",
    ),
    "commit without leader epoch": (
        "0001001267726f7570732d676f6c642d73696d706c65000b67726f7570732d676f6c6400000000",
        "00040000000000000001ffffffff01000001a1fb4c19d8010010de56613f83c7498fbba6baae75298c3e",
    ),
    "commit with metadata": (
        "0001001267726f7570732d676f6c642d73696d706c65000b67726f7570732d676f6c6400000001",
        ("00040000000000000002000000000968656c6c6f20c3bc000001a1fb4c19d8010010de56613f83c7498fbba6baae75298c3e"),
    ),
    "commit beyond the log end, null metadata": (
        "0001001267726f7570732d676f6c642d73696d706c65000b67726f7570732d676f6c6400000002",
        "000400000000000003e70000000501000001a1fb4c19d8010010de56613f83c7498fbba6baae75298c3e",
    ),
    "offset tombstone": (
        "0001001267726f7570732d676f6c642d73696d706c65000b67726f7570732d676f6c6400000000",
        None,
    ),
    "group tombstone": (
        "0002000f67726f7570732d676f6c642d657870",
        None,
    ),
    "848 member": (
        "0005000f67726f7570732d676f6c642d38343800164237475a645570515171434a335851304f74657a3151",
        "0000000005676f6c640b2f3132372e302e302e31020c67726f7570732d676f6c6401000493e00001000100",
    ),
    "848 group": (
        "0003000f67726f7570732d676f6c642d383438",
        "0000000000020100087265306e68a63f69",
    ),
    "848 target member": (
        "0007000f67726f7570732d676f6c642d38343800164237475a645570515171434a335851304f74657a3151",
        "000002de56613f83c7498fbba6baae75298c3e05000000000000000100000002000000030000",
    ),
    "848 target": (
        "0006000f67726f7570732d676f6c642d383438",
        "000000000002010008000001a1fb4c1b0a",
    ),
    "848 current": (
        "0008000f67726f7570732d676f6c642d38343800164237475a645570515171434a335851304f74657a3151",
        (
            "000000000002000000000002de56613f83c7498fbba6baae75298c3e0500000000000000010000000200000003010011"
            "05000000020000000200000002000000020100"
        ),
    ),
    "848 tombstone": (
        "0008000f67726f7570732d676f6c642d38343800164237475a645570515171434a335851304f74657a3151",
        None,
    ),
}

#: type number, value version, value: made by Kafka 4.3.0's generated classes.
CODED = (
    (1, 0, "0000000000000000000000000000000000000000"),
    (1, 1, "0001000000000000000000000000000000000000ffffffffffffffff"),
    (1, 3, "00030000000000000000ffffffff00000000000000000000"),
    (1, 4, "00040000000000000000ffffffff01000000000000000000"),
    (2, 0, "00000008636f6e73756d657200000007000572616e676500016c0000000100016d00016300022f680000000600"
     "00000201020000000103"),
    (2, 1, "00010008636f6e73756d657200000007000572616e676500016c0000000100016d00016300022f680000000800"
     "0000060000000201020000000103"),
    (2, 2, "00020008636f6e73756d657200000007000572616e676500016c00000000000000090000000100016d00016300"
     "022f6800000008000000060000000201020000000103"),
    (2, 3, "00030008636f6e73756d657200000007000572616e676500016c00000000000000090000000100016d00016900"
     "016300022f6800000008000000060000000201020000000103"),
    (2, 4, "000409636f6e73756d6572000000070672616e6765026c000000000000000902026d02690263032f6800000008"
     "0000000603010202030000"),
    (5, 0, "0000010101010101ffffffff0100"),
    (5, 0, "0000010101010101ffffffff0101000701000000050100"),
    (17, 0, "000000000000000000000000000001010100"),
    (19, 0, "000001010101ffffffff0000000001ff0100"),
    (19, 0, "000001010101ffffffff00000000010102680009000100"),
)  # fmt: skip

MEMBER = GroupMember("m", "i", "c", "/h", 8, 6, b"\1\2", b"\3")


def _bytes(name: str) -> tuple[bytes, bytes | None]:
    key, value = GOLDEN[name]
    return bytes.fromhex(key), None if value is None else bytes.fromhex(value)


@pytest.mark.claim(83, 84, part=True)
@pytest.mark.behaviour(11, part=True)
@pytest.mark.parametrize("name", GOLDEN)
def test_real_records_decode_and_encode_to_the_same_bytes(name: str) -> None:
    key, value = _bytes(name)
    kind = RECORD_TYPES[int.from_bytes(key[:2], "big")]
    assert encode_key(kind, decode_key(kind, key)) == key
    if value is not None:
        version, fields = decode_value(kind, value)
        assert encode_value(kind, version, fields) == value
    decoded = decode(key, value)
    if isinstance(decoded, OffsetCommitRecord):
        assert records.offset_key(*decoded.key) == key
        assert value is None or (decoded.value is not None and records.offset_value(decoded.value) == value)
    elif isinstance(decoded, GroupRecord):
        assert records.group_key(*decoded.key) == key
        assert value is None or (decoded.value is not None and records.group_value(decoded.value) == value)
    else:
        assert isinstance(decoded, CoordinatorRecord)


@pytest.mark.behaviour(11, part="d")
@pytest.mark.parametrize(("number", "version", "value"), CODED)
def test_every_value_version_is_read(number: int, version: int, value: str) -> None:
    kind = RECORD_TYPES[number]
    read_version, fields = decode_value(kind, bytes.fromhex(value))
    assert read_version == version
    assert encode_value(kind, version, fields).hex() == value


@pytest.mark.claim(83, part=True)
@pytest.mark.behaviour(11, part="b")
def test_commits_are_written_as_v4_and_with_an_expiry_as_v1() -> None:
    key, value = _bytes("commit with metadata")
    topic_id = bytes.fromhex("de56613f83c7498fbba6baae75298c3e")
    assert decode(key, value) == (
        OffsetKey("groups-gold-simple", "groups-gold", 1),
        OffsetCommitValue(2, 0, "hello ü", 1795217431000, -1, topic_id),
    )
    key, value = _bytes("commit with its own expiry")
    assert value is not None
    assert value[:2] == b"\0\1"
    decoded = decode(key, value)
    assert isinstance(decoded, OffsetCommitRecord)
    assert decoded.value == OffsetCommitValue(2, -1, "m2", 1795217447941, 1795217447941 + 60_000, None)


@pytest.mark.claim(84, part=True)
@pytest.mark.behaviour(11, part="c")
def test_group_metadata_is_written_as_v3_and_read_in_every_version() -> None:
    full = GroupMetadata("consumer", 7, "range", "l", 9, (MEMBER,))
    assert records.group_value(full).hex() == CODED[7][2]
    key = records.group_key("g")
    read = {}
    for version in range(5):
        decoded = decode(key, bytes.fromhex(CODED[4 + version][2]))
        assert isinstance(decoded, GroupRecord)
        assert decoded.key == GroupKey("g")
        read[version] = decoded.value
    assert read[3] == read[4] == full
    dynamic = MEMBER._replace(group_instance_id=None)
    assert read[2] == full._replace(members=(dynamic,))
    assert read[1] == full._replace(members=(dynamic,), current_state_timestamp_ms=-1)
    # Version 0 has no rebalance timeout: the session timeout is used.
    assert read[0] == full._replace(members=(dynamic._replace(rebalance_timeout_ms=6),), current_state_timestamp_ms=-1)


@pytest.mark.behaviour(11, part=True)
def test_a_legacy_offset_key_is_read() -> None:
    key = bytes.fromhex(GOLDEN["commit with metadata"][0])
    legacy = b"\0\0" + key[2:]
    assert decode(legacy, bytes.fromhex(CODED[0][2])) == (
        OffsetKey("groups-gold-simple", "groups-gold", 1),
        OffsetCommitValue(0, -1, "", 0, -1, None),
    )


@pytest.mark.claim(86, part="b")
@pytest.mark.behaviour(12, part=True)
def test_kafka_43_has_22_key_types_and_all_are_known() -> None:
    assert sorted(RECORD_TYPES) == [*range(9), *range(10, 18), *range(19, 24)]
    assert len(RECORD_TYPES) == 22


@pytest.mark.claim(86, part=True)
@pytest.mark.behaviour(12, part="b")
@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("848")])
def test_kip_848_records_are_read_by_field(name: str) -> None:
    decoded = decode(*_bytes(name))
    assert isinstance(decoded, CoordinatorRecord)
    assert decoded.key["group_id"] == "groups-gold-848"
    if name == "848 member":
        assert decoded.value is not None
        assert decoded.value["subscribed_topic_names"] == ["groups-gold"]
        assert decoded.value["rebalance_timeout_ms"] == 300_000
    if name == "848 tombstone":
        assert decoded.value is None


@pytest.mark.claim(87, part=True)
@pytest.mark.behaviour(12, part="a")
@pytest.mark.parametrize(
    ("key", "value", "number", "reason"),
    [
        (None, b"x", -1, "no key"),
        (b"\0", b"x", -1, "key shorter"),
        (b"\x7f\xff\0\1a", b"x", 0x7FFF, "key type 32767 is unknown"),
        (b"\0\x09\0\1a", b"x", 9, "key type 9 is unknown"),
        (b"\0\1\0\5ab", b"", 1, "runs past"),
        (records.offset_key("g", "t", 0), b"\0\x63", 1, "value version 99"),
        (records.offset_key("g", "t", 0), b"\0", 1, "shorter than its version"),
        (records.offset_key("g", "t", 0), b"\0\4\0\0", 1, "offset_commit v4"),
        (records.offset_key("g", "t", 0) + b"x", None, 1, "bytes too many"),
        (
            records.group_key("g"),
            b"\0\3\0\1c\0\0\0\1\xff\xff\xff\xff" + bytes(8) + b"\x7f\xff\xff\xff",
            2,
            "past the end",
        ),
        (records.group_key("g"), b"\0\3\xff\xff", 2, "length -1"),
        (b"\0\2\0\1\xff", b"", 2, "utf-8"),
    ],
)
def test_an_unreadable_record_is_kept_as_bytes_with_the_reason(
    key: bytes | None, value: bytes | None, number: int, reason: str
) -> None:
    decoded = decode(key, value)
    assert isinstance(decoded, UnknownRecord)
    assert (decoded.key_type, decoded.key, decoded.value) == (number, key, value)
    assert reason in decoded.reason


@pytest.mark.behaviour(12, part=True)
def test_unknown_tagged_fields_of_newer_brokers_are_skipped() -> None:
    key, value = _bytes("commit of a member")
    assert value is not None
    assert value.endswith(bytes.fromhex("010010de56613f83c7498fbba6baae75298c3e"))
    newer = value[:-19] + b"\2\0\x10" + value[-16:] + b"\7\3abc"
    assert decode(key, newer) == decode(key, value)


JSON = {
    "commit with metadata": '{"key":{"type":1,"data":{"group":"groups-gold-simple","topic":"groups-gold",'
    '"partition":1}},"value":{"version":4,"data":{"offset":2,"leaderEpoch":0,"metadata":"hello ü",'
    '"commitTimestamp":1795217431000,"topicId":"3lZhP4PHSY-7prqudSmMPg"}}}',
    "commit with its own expiry": '{"key":{"type":1,"data":{"group":"groups-gold-exp2","topic":"groups-gold",'
    '"partition":2}},"value":{"version":1,"data":{"offset":2,"metadata":"m2","commitTimestamp":1795217447941,'
    '"expireTimestamp":1795217507941}}}',
    "offset tombstone": '{"key":{"type":1,"data":{"group":"groups-gold-simple","topic":"groups-gold","partition":0}},'
    '"value":null}',
}
GROUP_JSON = {
    "new classic group": '{"key":{"type":2,"data":{"group":"groups-gold-dyn"}},"value":{"version":3,"data":'
    '{"protocolType":"","generation":0,"protocol":null,"leader":null,"currentStateTimestamp":1795217431091,'
    '"members":[]}}}',
    "generation with a static member": '{"key":{"type":2,"data":{"group":"groups-gold-dyn"}},"value":{"version":3,'
    '"data":{"protocolType":"consumer","generation":1,"protocol":"range",'
    '"leader":"inst-1-82f7cbbf-db7b-4bc7-9e38-2d4e15647164","currentStateTimestamp":1795217431091,"members":['
    '{"memberId":"inst-1-82f7cbbf-db7b-4bc7-9e38-2d4e15647164","groupInstanceId":"inst-1","clientId":"gold",'
    '"clientHost":"/127.0.0.1","rebalanceTimeout":300000,"sessionTimeout":45000,'
    '"subscription":"AAMAAAABAAtncm91cHMtZ29sZAAAAAAAAAAA/////wAA",'
    '"assignment":"AAAAAAABAAtncm91cHMtZ29sZAAAAAQAAAAAAAAAAQAAAAIAAAADAAAAAA=="}]}}}',
    "group tombstone": '{"key":{"type":2,"data":{"group":"groups-gold-exp"}},"value":null}',
}


@pytest.mark.claim(100, part=True)
@pytest.mark.parametrize("name", JSON)
def test_json_equals_that_of_kafkas_formatter(name: str) -> None:
    assert records.format_json(*_bytes(name)) == JSON[name]


@pytest.mark.claim(100, part=True)
@pytest.mark.parametrize("name", GROUP_JSON)
def test_group_json_equals_that_of_kafkas_formatter(name: str) -> None:
    assert records.format_json(*_bytes(name)) is None
    assert records.format_json(*_bytes(name), types=(2,)) == GROUP_JSON[name]


def test_json_omits_a_topic_id_that_was_not_written() -> None:
    key = records.offset_key("g", "t", 0)
    text = records.format_json(key, bytes.fromhex(CODED[3][2]))
    assert text is not None
    assert json.loads(text)["value"]["data"] == {"offset": 0, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 0}
    assert records.format_json(key, b"\0\4broken") is None
    assert records.format_json(None, None) is None


@pytest.mark.claim(100, part=True)
def test_the_line_equals_that_of_the_formatter_before_kafka_4() -> None:
    assert records.format_line(*_bytes("commit with metadata")) == (
        "[groups-gold-simple,groups-gold,1]::OffsetAndMetadata(offset=2, leaderEpoch=Optional[0], metadata=hello ü,"
        " commitTimestamp=1795217431000, expireTimestamp=None)"
    )
    assert records.format_line(*_bytes("commit with its own expiry")) == (
        "[groups-gold-exp2,groups-gold,2]::OffsetAndMetadata(offset=2, leaderEpoch=Optional.empty, metadata=m2,"
        " commitTimestamp=1795217447941, expireTimestamp=Some(1795217507941))"
    )
    assert records.format_line(*_bytes("offset tombstone")) == "[groups-gold-simple,groups-gold,0]::NULL"
    assert records.format_line(*_bytes("new classic group")) is None


def test_null_in_a_field_that_is_not_nullable_is_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        encode_key(RECORD_TYPES[2], {"group": None})
    with pytest.raises(MalformedRecord):
        decode_value(RECORD_TYPES[5], bytes.fromhex("0000" + "ff" * 12))
