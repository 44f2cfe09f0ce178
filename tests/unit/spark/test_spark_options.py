"""Options of the Spark source: the names, rules and defaults of Spark's own Kafka source, and additional options."""

from __future__ import annotations

import pickle
import re

import pytest

from odradek.batches.columns import COLUMNS, DEFAULT_COLUMNS
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.spark.errors import reason
from odradek.spark.options import OnGroupReset, Position, ReadOptions, Start, parse_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}
GROUP = {"kafka.group.id": "flight-lake"}


def stream(**options: str) -> ReadOptions:
    return parse_options(BASE | {name.replace("__", "."): value for name, value in options.items()}, streaming=True)


def test_columns_are_named_in_any_case_and_order() -> None:
    assert batch(columns="value").columns == ("value",)
    assert stream(columns=" TIMESTAMPtype ,offset,headers").columns == ("timestampType", "offset", "headers")
    assert batch(includeHeaders="true").columns == COLUMNS
    assert batch(includeHeaders="true", columns="headers,key").columns == ("headers", "key")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("", "columns=: there is no column '': the columns are key, value, topic, partition, offset, timestamp, "
             "timestampType, headers"),
        ("value,", "columns=value,: there is no column '': the columns are"),
        ("valeu", "columns=valeu: there is no column 'valeu': did you mean value?"),
        ("timestamp type", "columns=timestamp type: there is no column 'timestamp type': did you mean timestampType?"),
        ("key,Value,KEY", "columns=key,Value,KEY: key is named twice: leave one out"),
    ],
)  # fmt: skip
def test_columns_that_are_none_are_one_line(columns: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        batch(columns=columns)
    assert str(refused.value).startswith(said)


def test_headers_are_either_wanted_or_not() -> None:
    with pytest.raises(ConfigError, match=r"^columns=key has no headers, and includeHeaders=true: leave one"):
        batch(columns="key", includeHeaders="true")


def batch(**options: str) -> ReadOptions:
    return parse_options(BASE | {name.replace("__", "."): value for name, value in options.items()}, streaming=False)


def test_defaults_are_those_of_sparks_own_source() -> None:
    options = stream()
    assert options.starting == Position(Start.LATEST)
    assert batch().starting == Position(Start.EARLIEST)
    assert batch().ending == Position(Start.LATEST)
    assert options.fail_on_data_loss
    assert options.columns == DEFAULT_COLUMNS
    assert options.max_offsets_per_trigger is options.min_offsets_per_trigger is options.min_partitions is None
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.poll_timeout_ms == 120_000
    assert (options.fetch_offset_retries, options.fetch_offset_retry_interval_ms) == (3, 10)
    assert options.isolation_level == "read_uncommitted"
    assert not options.commit_offsets
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_are_compared_without_case() -> None:
    # Spark lowercases them before a Python data source sees them
    assert stream(startingoffsets="EARLIEST").starting == Position(Start.EARLIEST)
    assert stream(FAILONDATALOSS="False").fail_on_data_loss is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "unknown option startingoffset; did you mean startingOffsets?"),
        ({"maxOffsetPerTriger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"bootstrap.servers": "x:1"}, "did you mean kafka.bootstrap.servers?"),
        (
            {"kafka.request.timeout": "1"},
            "unknown option kafka.request.timeout; did you mean kafka.request.timeout.ms?",
        ),
        ({"topic": "t"}, "unknown option topic; did you mean subscribe?"),
        ({"group.id": "g"}, "did you mean kafka.group.id?"),
        ({"somethingelse": "1"}, "unknown option somethingelse (strictOptions=false"),
    ],
)
def test_errors_for_unknown_options_name_the_nearest_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_options(BASE | options, streaming=True)


def test_unknown_options_are_accepted_with_strict_options_false() -> None:
    assert stream(strictOptions="false", somethingelse="1") == stream()
    assert stream(strictOptions="false", kafka__no__such__setting="1") == stream()
    with pytest.raises(
        ConfigError, match=r"unknown option kafka\.fetch\.max\.wait; did you mean kafka\.fetch\.max\.wait\.ms"
    ):
        stream(kafka__fetch__max__wait="1")


@pytest.mark.parametrize("strict", ["true", "false"])
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.jaas.config", "ssl.truststore.location"])
def test_settings_of_sasl_and_tls_without_a_protocol_are_always_refused(name: str, strict: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"kafka.{name} has no effect without kafka.security.protocol")):
        parse_options(BASE | {f"kafka.{name}": "x", "strictOptions": strict}, streaming=True)


@pytest.mark.claim(101, part=True)
@pytest.mark.parametrize(
    "name", ["enable.auto.commit", "key.deserializer", "value.deserializer", "interceptor.classes"]
)
def test_options_that_spark_refuses_are_refused(name: str) -> None:
    # Claim 101 says the same of Flink's option, which is not tested here.
    for strict in ("true", "false"):
        with pytest.raises(ConfigError, match=f"option kafka.{name} is not supported"):
            parse_options(BASE | {f"kafka.{name}": "true", "strictOptions": strict}, streaming=True)


@pytest.mark.claim(53, part=True)
def test_auto_offset_reset_applies_only_to_committed_starts() -> None:
    assert stream(**GROUP, startingOffsets="committed").auto_offset_reset == "earliest"
    chosen = stream(**GROUP, startingOffsets="committed", kafka__auto__offset__reset="none")
    assert chosen.auto_offset_reset == "none"
    with pytest.raises(ConfigError, match="set the start with startingOffsets"):
        stream(kafka__auto__offset__reset="earliest")
    with pytest.raises(ConfigError, match="expected earliest, latest, none, not 'newest'"):
        stream(**GROUP, startingOffsets="committed", kafka__auto__offset__reset="newest")


def test_kafka_settings_reach_the_client_and_unused_ones_are_accepted() -> None:
    options = stream(kafka__request__timeout__ms="5000", kafka__client__id="me", kafka__max__poll__records="10")
    assert options.client.request_timeout_ms == 5000
    assert options.client.client_id == "me"
    with pytest.raises(ConfigError, match=r"sasl\.mechanism: it is not set"):
        stream(kafka__security__protocol="SASL_SSL")
    login = {"kafka__sasl__mechanism": "PLAIN", "kafka__sasl__username": "u", "kafka__sasl__password": "p"}
    security = stream(kafka__security__protocol="SASL_SSL", **login).client.security
    assert (security.protocol, security.mechanism) == ("SASL_SSL", "PLAIN")
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is required"):
        parse_options({"subscribe": "t"}, streaming=True)


def test_exactly_one_of_subscribe_pattern_and_assign_is_required() -> None:
    assert stream(subscribe=" a , b,a,").topics == ("a", "b")
    with pytest.raises(ConfigError, match="not subscribe and assign together"):
        stream(assign='{"a":[0]}')
    with pytest.raises(ConfigError, match="none was given"):
        parse_options({"kafka.bootstrap.servers": "127.0.0.1:9092"}, streaming=True)
    with pytest.raises(ConfigError, match="no topic"):
        stream(subscribe=" , ")
    rest = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    assigned = parse_options(rest | {"assign": '{"b":[2],"a":[1,0]}'}, streaming=True).assigned
    assert assigned == (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2))
    for wrong in ("[1]", '{"a":1}', '{"a":["0"]}', '{"a":[-1]}', '{"a":[true]}', "{}", "flights"):
        with pytest.raises(ConfigError, match="assign"):
            parse_options(rest | {"assign": wrong}, streaming=True)
    with pytest.raises(ConfigError, match="no regular expression"):
        parse_options(rest | {"subscribePattern": "a("}, streaming=True)


def test_a_start_at_one_time_has_precedence_over_times_and_offsets_of_partitions() -> None:
    by_offset = {"startingOffsets": '{"flights":{"0":5}}'}
    by_time = {"startingOffsetsByTimestamp": '{"flights":{"0":1000}}'}
    for_all = {"startingTimestamp": "2000"}
    tp = TopicPartition("flights", 0)
    assert stream(**by_offset).starting == Position(Start.OFFSETS, offsets={tp: 5})
    assert stream(**by_offset, **by_time).starting == Position(Start.TIMESTAMP, timestamps_ms={tp: 1000})
    assert stream(**by_offset, **by_time, **for_all).starting == Position(Start.TIMESTAMP, timestamp_ms=2000)


@pytest.mark.parametrize(
    "text", ["newest", "[1]", '{"a":1}', '{"a":{"x":1}}', '{"a":{"0":-3}}', '{"a":{"0":"1"}}', "{"]
)
def test_malformed_offsets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        stream(startingOffsets=text)


def test_a_stream_has_no_end_and_a_batch_read_cannot_start_at_latest() -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigError, match=f"{name} is for batch reads"):
            stream(**{name: '{"flights":{"0":5}}' if name != "endingTimestamp" else "5"})
    for value in ("latest", '{"flights":{"0":-1}}'):
        assert stream(startingOffsets=value)
        with pytest.raises(ConfigError, match="cannot start at latest"):
            batch(startingOffsets=value)
    for value in ("earliest", '{"flights":{"0":-2}}'):
        with pytest.raises(ConfigError, match="cannot end at earliest"):
            batch(endingOffsets=value)
    # At load() Spark does not say whether the read is a stream.
    assert parse_options(BASE | {"startingOffsets": "latest", "endingOffsets": "latest"}, streaming=None)


def test_by_default_a_group_id_enables_commits_and_reset_handling() -> None:
    options = stream(**GROUP)
    assert options.commit_offsets
    assert options.on_group_reset is OnGroupReset.ASKED
    assert stream(**GROUP, onGroupReset="follow").on_group_reset is OnGroupReset.FOLLOW
    off = stream(**GROUP, commitOffsets="false")
    assert not off.commit_offsets
    assert off.on_group_reset is OnGroupReset.IGNORE
    with pytest.raises(ConfigError, match=r"commitOffsets=true needs kafka\.group\.id"):
        stream(commitOffsets="true")
    with pytest.raises(ConfigError, match="onGroupReset=follow needs"):
        stream(**GROUP, commitOffsets="false", onGroupReset="follow")
    with pytest.raises(ConfigError, match=r"startingOffsets=committed needs kafka\.group\.id"):
        stream(startingOffsets="committed")
    with pytest.raises(ConfigError, match="expected asked, follow, ignore, fail, not 'maybe'"):
        stream(**GROUP, onGroupReset="maybe")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-5"),
        ("maxOffsetsPerTrigger", "many"),
        ("minPartitions", "1.5"),
        ("includeHeaders", "yes"),
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "5 parsecs"),
        ("startingTimestamp", "yesterday"),
        ("kafka.request.timeout.ms", "soon"),
    ],
)
def test_errors_name_the_options_whose_values_cannot_be_parsed(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name.removeprefix("kafka.").split(".")[0]):
        parse_options(BASE | {name: value}, streaming=True)


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("15m", 900_000), ("30s", 30_000), ("2h", 7_200_000), ("1d", 86_400_000), ("250", 250)]
)
def test_a_trigger_delay_is_parsed(text: str, expected_ms: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == expected_ms


def test_the_reason_is_found_in_the_text_of_a_spark_error() -> None:
    quoted = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance calls method `latestOffset`: Traceback "
        '(most recent call last):\n  File "x.py", line 1, in f\nodradek.client.errors.UnknownTopic: first\n\n'
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        "odradek.spark.offsets.plan.DataLoss: data may have been lost: flights-0 is missing\n\n SQLSTATE: 38000"
    )
    assert reason(RuntimeError(quoted)) == "data may have been lost: flights-0 is missing"
    assert (
        reason(RuntimeError("org.apache.X: odradek.spark.offsets.plan.DataLoss: flights-1 is gone"))
        == "flights-1 is gone"
    )
    assert reason(ConfigError("plain")) == "plain"
    assert reason(ValueError("somebody else's")) is None


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("64k", 65536), ("2MB", 2 << 20), (" 1g ", 1 << 30)])
def test_sizes_have_sparks_format(text: str, size: int) -> None:
    assert stream(maxBytesPerTrigger=text).max_bytes_per_trigger == size


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5m", "1x"])
def test_errors_name_the_option_of_an_invalid_size(text: str) -> None:
    with pytest.raises(ConfigError, match="maxBytesPerTrigger: expected a size"):
        stream(maxBytesPerTrigger=text)
