"""Paths and values of offsets, files of ExportZkOffsets, settings, and registrations of consumers: no server."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition as Tp
from odradek.zookeeper.config import config_of, parse_connect
from odradek.zookeeper.export_file import format_offsets, parse_offsets
from odradek.zookeeper.layout import KAFKA_LAYOUT, MAX_OFFSET, GroupPartition, OffsetLayout
from odradek.zookeeper.members import ConsumerRegistration, parse_registration
from odradek.zookeeper.store import StoredOffset, StoredOffsets


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"0", 0),
        (b"42", 42),
        (b"007", 7),
        (b"9223372036854775807", MAX_OFFSET),
        (b"9223372036854775808", "larger than any offset"),
        (b"-1", "-1 is below 0"),
        (b"abc", "'abc' is not a whole number"),
        (b"12 ", "'12 ' is not a whole number"),
        (b"12\n", "not a whole number"),
        (b"1.5", "not a whole number"),
        ("٣".encode(), "not a whole number"),
        (b"9" * 5000, "larger than any offset"),
        (b"", "it has no data"),
        (None, "it has no data"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_value_is_the_next_offset_in_decimal_digits_or_has_a_reason(data: bytes | None, found: int | str) -> None:
    value = KAFKA_LAYOUT.offset(data)
    assert value == found or (isinstance(found, str) and isinstance(value, str) and found in value)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/consumers/g/offsets/t/1-0", "Kafka 0.7, whose values are byte positions"),
        ("/consumers/g/offsets/t/01", "'01' is not the number of a partition"),
        ("/consumers/g/offsets/t/-1", "is not the number of a partition"),
        ("/consumers/g/offsets/t/2147483648", "is not the number of a partition"),
        ("/consumers/g/offsets/t", "does not match /consumers/{group}/offsets/{topic}/{partition}"),
        ("/consumers/g/owners/t/0", "does not match"),
        ("consumers/g/offsets/t/0", "does not match"),
        ("", "does not match"),
    ],
)
def test_a_path_belongs_to_a_partition_or_is_refused_with_a_reason(path: str, reason: str) -> None:
    found = KAFKA_LAYOUT.group_partition(path)
    assert isinstance(found, str)
    assert reason in found


NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["C"]), min_size=1).filter(
    lambda name: name not in (".", "..") and not any("\ufff0" <= char <= "\uffff" for char in name)
)


@given(NAMES, st.text("abc.-_", min_size=1).filter(lambda t: t not in (".", "..")), st.integers(0, 2**31 - 1))
def test_each_path_leads_back_to_its_partition(group: str, topic: str, partition: int) -> None:
    place = GroupPartition(group, Tp(topic, partition))
    assert KAFKA_LAYOUT.group_partition(KAFKA_LAYOUT.path(*place)) == place


@pytest.mark.parametrize("group", ["a/b", "", ".", "..", "a\0", "\x1f", "\ufff0", "\ue000"])
def test_names_that_no_path_can_hold_are_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="no path of ZooKeeper can hold this name"):
        KAFKA_LAYOUT.path(group, Tp("t", 0))


def test_paths_and_values_in_other_layouts_are_parsed() -> None:
    storm = OffsetLayout("/storm/{group}/partition_{partition}", json_field="offset", topic="orders")
    assert storm.group_partition("/storm/billing/partition_3") == GroupPartition("billing", Tp("orders", 3))
    assert storm.group_partition("/storm/billing/state_3") == f"it does not match {storm.template}"
    assert storm.offset(b'{"topology":{"id":"x"},"offset":4285,"partition":3}') == 4285
    assert storm.data(5000, b'{"topology":{"id":"x"},"offset":4285}') == b'{"topology":{"id":"x"},"offset":5000}'
    for data, reason in [
        (b"{}", "its JSON has no field offset"),
        (b'{"offset":true}', "the field offset of its JSON is no whole number"),
        (b'{"offset":1.0}', "is no whole number"),
        (b'{"offset":"x"}', "'x' is not a whole number"),
        (b'{"offset":-2}', "-2 is below 0"),
        (b"[", "its data is not JSON"),
    ]:
        assert reason in str(storm.offset(data))
    with pytest.raises(ConfigError, match="let the program that reads it store its first offset"):
        storm.data(1, None)
    nested = OffsetLayout("/x/{topic}-{partition}", json_field="a.next", group="g")
    assert nested.group_partition("/x/a-b-7") == GroupPartition("g", Tp("a-b", 7))
    assert nested.offset(b'{"a":{"next":"9"}}') == 9
    assert nested.data(10, b'{"a":{"next":"9","b":1}}') == b'{"a":{"next":"10","b":1}}'
    before = (
        b' { "cost": 1.10,\t"n": 123456789012345678901, "e": 1E400, "offset": 3 , "a":"\\u00e9", "offset" :4285 }\n'
    )
    assert storm.data(7, before) == before.replace(b"4285", b"7"), "numbers, spaces and escapes stay, byte for byte"
    last_read = OffsetLayout(last_read=True)
    assert (last_read.offset(b"41"), last_read.data(42, None)) == (42, b"41")
    with pytest.raises(ConfigError, match="offset 0 has no value"):
        last_read.data(0, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "relative/{partition}"}, "expected an absolute path"),
        ({"template": "/a/../{group}/{topic}/{partition}"}, "'..' means another path"),
        ({"template": "/a\t/{group}/{topic}/{partition}"}, "it has the character U"),
        ({"template": "/a/{group}/{topic}"}, "each once"),
        ({"template": "/a/{group}/{topic}/{partition}/{partition}"}, "each once"),
        ({"template": "/a/{what}/{partition}"}, "each once"),
        ({"template": "/a/{partition}", "topic": "t"}, r"has no \{group\}: name the group"),
        ({"template": "/a/{group}/{partition}", "group": "g", "topic": "t"}, "omit the fixed group"),
        ({"json_field": "a..b"}, "expected a name"),
    ],
)
def test_wrong_layouts_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OffsetLayout(**options)


def test_a_written_file_is_read_back() -> None:
    stored = {Tp("t", n): StoredOffset(n * 7, f"/consumers/a:b/offsets/t/{n}", 0, 0, b"") for n in (2, 0, 1)}
    text = format_offsets([StoredOffsets("a:b", stored)])
    assert text == "/consumers/a:b/offsets/t/2:14\n/consumers/a:b/offsets/t/0:0\n/consumers/a:b/offsets/t/1:7\n"
    expected = {GroupPartition("a:b", tp): one.offset for tp, one in stored.items()}
    assert parse_offsets(text, KAFKA_LAYOUT, "f") == expected
    assert parse_offsets(text.replace("\n", "\r\n").rstrip(), KAFKA_LAYOUT, "f") == expected


GOOD = "/consumers/g/offsets/t/0:5\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "\n" + GOOD.replace("/0:", "/1:"), "f, line 2: the line is empty"),
        (GOOD + "/consumers/g/offsets/t/1:abc\n", "f, line 2: 'abc' is not an offset"),
        (GOOD + "/consumers/g/offsets/t/1:-1\n", "f, line 2: '-1' is not an offset"),
        (GOOD + "/consumers/g/offsets/t/1:9223372036854775808\n", "f, line 2: .* is not an offset"),
        (GOOD + "/consumers/g/offsets/t/1-0:9\n", "f, line 2: /consumers/g/offsets/t/1-0: .*byte positions"),
        (GOOD + "/brokers/ids/0:9\n", "f, line 2: /brokers/ids/0: it does not match"),
        (GOOD + "nothing\n", "f, line 2: expected PATH:OFFSET"),
        (GOOD + GOOD, "f, line 2: /consumers/g/offsets/t/0 occurs twice"),
        ("", "f: the file has no line"),
    ],
)
def test_a_file_is_valid_as_a_whole_or_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_offsets(text, KAFKA_LAYOUT, "f")


def test_a_connect_string_is_parsed_or_refused() -> None:
    assert parse_connect("a:2181,b:2182/kafka/one/") == ("a:2181,b:2182", "/kafka/one")
    assert parse_connect("a, b:1") == ("a:2181,b:1", "")
    assert parse_connect("[::1]:99/x") == ("[::1]:99", "/x")
    for wrong in (
        "",
        "/kafka",
        "a:b",
        "a:2181/x,b:2181/x",
        "a:0",
        ":2181",
        "a:2181//x",
        "a:2181 b:2181",
        "a:1:2",
        "a#b",
        "a:1/../b",
        "a:1/b\n",
    ):
        with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
            parse_connect(wrong)


def test_the_login_comes_from_a_file_or_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    environment = {"ODRADEK_ZOOKEEPER_LOGIN": "kafka:secret"}
    assert config_of("a:1", environment=environment).login == "kafka:secret"
    both = config_of("a:1", {"zookeeper.login": "own:secret"}, environment)
    assert both.login == "own:secret"
    assert "secret" not in repr(both)
    with pytest.raises(ConfigError, match="expected user:password") as refused:
        config_of("a:1", {"zookeeper.login": "secret"}, {})
    assert "secret" not in str(refused.value)


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    for settings, message in [
        ({"zookeeper.conect": "a"}, "not a setting of ZooKeeper"),
        ({"zookeeper.session.timeout.ms": "soon"}, "expected milliseconds"),
        ({"zookeeper.ssl.truststore.location": "x"}, "no effect without zookeeper.ssl.client.enable"),
        ({"zookeeper.ssl.client.enable": "yes"}, "expected true or false"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": "/none"}, "no such file"),
    ]:
        with pytest.raises(ConfigError, match=message):
            config_of("a:1", settings, {})
    config = config_of(None, {"zookeeper.connect": "a:1/k", "zookeeper.session.timeout.ms": "400"}, {})
    assert (config.address, config.session_timeout_ms) == ("a:1/k", 400)


def test_registrations_of_consumers_are_parsed() -> None:
    static = parse_registration("g_host-1", b'{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"17"}')
    assert static == ConsumerRegistration("g_host-1", {"t": 2}, "static", 17)
    assert static.threads(["t", "u"]) == {"t": ["g_host-1-0", "g_host-1-1"]}
    white = parse_registration("c", b'{"subscription":{"a.*,b":1},"pattern":"white_list","timestamp":"1"}')
    assert isinstance(white, ConsumerRegistration)
    assert white.threads(["ab", "b", "bc"]) == {"ab": ["c-0"], "b": ["c-0"]}
    black = parse_registration("c", b'{"subscription":{"a.*":1},"pattern":"black_list","timestamp":"1"}')
    assert isinstance(black, ConsumerRegistration)
    assert black.threads(["ab", "b"]) == {"b": ["c-0"]}
    for data in (
        None,
        b"",
        b"[]",
        b"{}",
        b'{"subscription":{"t":"x"}}',
        b'{"subscription":{"(":1},"pattern":"white_list"}',
    ):
        assert isinstance(parse_registration("c", data), str)
