"""Options and columns of the Spark sink: names and rules of Spark's own Kafka sink; rows by topic."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from odradek.core.errors import ConfigError
from odradek.spark.writes.write_options import WriteOptions, check_columns, parse_write_options
from odradek.spark.writes.write_task import UnwritableRow, by_topic

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def options(**given: str) -> WriteOptions:
    return parse_write_options(BASE | {name.replace("__", "."): value for name, value in given.items()})


def test_producer_settings_keep_kafkas_names_and_defaults() -> None:
    plain = options()
    assert (plain.producer.acks, plain.producer.enable_idempotence, plain.topic) == ("all", True, None)
    chosen = options(
        topic=" flights ", kafka__compression__type="zstd", kafka__linger__ms="20", kafka__retries="3",
        kafka__client__id="etl", includeHeaders="true", checkpointlocation="x",
    )  # fmt: skip
    assert (chosen.topic, chosen.producer.compression_type, chosen.producer.linger_ms) == ("flights", "zstd", 20)
    assert chosen.client.client_id == "etl"
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    assert hash(chosen) == hash(pickle.loads(pickle.dumps(chosen))), "workers keep producers by their options"
    assert not options(kafka__acks="1").producer.enable_idempotence, "the same rule as in Kafka's producer"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topik": "x"}, "unknown option topik; did you mean topic?"),
        ({"topic": " "}, "topic: no topic given"),
        ({"kafka.key.serializer": "x"}, "option kafka.key.serializer is not supported"),
        ({"kafka.transactional.id": "x"}, "at least once, without transactions"),
        ({"kafka.compression.typ": "x"}, "unknown option kafka.compression.typ; did you mean kafka.compression.type?"),
        ({"kafka.compression.type": "rar"}, "compression_type 'rar'"),
        ({"kafka.linger.ms": "soon"}, "kafka.linger.ms: expected a whole number"),
        ({"kafka.acks": "2"}, "acks: expected all"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "needs enable_idempotence=False"),
        ({"startingOffsets": "earliest"}, "unknown option startingoffsets"),
    ],
)
def test_errors_name_the_mistake(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_write_options(BASE | given)
    assert message in str(caught.value)


def test_bootstrap_servers_are_required_and_unknown_options_are_accepted_with_strict_options_false() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is required"):
        parse_write_options({"topic": "x"})
    assert options(topik="x", strictOptions="false").topic is None


ALL = {
    "key": "string", "value": "binary", "headers": "array<struct<key:string,value:binary>>", "topic": "string",
    "partition": "int", "offset": "bigint",
}  # fmt: skip


def test_columns_of_the_built_in_sink_are_accepted() -> None:
    check_columns(ALL, options())
    check_columns({"value": "string"}, options(topic="x"))
    check_columns({"value": "string", "topic": "int"}, options(topic="x"))  # the option has precedence
    check_columns({"value": "binary", "timestamp": "bigint"}, options(topic="x"))  # the sink ignores other columns


@pytest.mark.parametrize(
    ("types", "given", "message"),
    [
        ({"key": "string"}, {"topic": "x"}, "required attribute 'value' not found among key"),
        ({"Value": "string"}, {"topic": "x"}, "is it 'Value'?"),
        ({"value": "string"}, {}, "topic option required when no 'topic' attribute is present"),
        (ALL | {"value": "int"}, {}, "value attribute unsupported type int. value must be a(n) string or binary"),
        (ALL | {"key": "bigint"}, {}, "key attribute unsupported type bigint"),
        (ALL | {"topic": "binary"}, {}, "topic must be a(n) string"),
        (ALL | {"partition": "bigint"}, {}, "partition must be a(n) int"),
        (ALL | {"headers": "map<string,binary>"}, {}, "headers must be a(n) array<struct<key:string,value:binary>>"),
        (ALL, {"includeTimestamp": "true"}, "needs a column 'timestamp'"),
    ],
)
def test_errors_name_columns_that_cannot_be_written(types: dict[str, str], given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_columns(types, options(**given))
    assert message in str(caught.value)


def test_rows_are_split_by_topic_and_text_becomes_bytes() -> None:
    batch = pa.RecordBatch.from_pydict({
        "topic": ["a", "b", "a"], "value": ["ü", None, ""], "key": pa.array([b"1", b"2", None]), "offset": [7, 8, 9],
    })  # fmt: skip
    parts = {topic: rows.to_pydict() for topic, rows in by_topic(batch, options())}
    assert parts == {
        "a": {"key": [b"1", None], "value": ["ü".encode(), b""]},
        "b": {"key": [b"2"], "value": [None]},
    }
    one = list(by_topic(batch, options(topic="c")))
    assert [(topic, rows.num_rows) for topic, rows in one] == [("c", 3)]
    assert list(by_topic(batch.slice(0, 0), options())) == []


def test_a_row_without_topic_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["a", None], "value": ["x", "y"]})
    with pytest.raises(UnwritableRow, match="null topic present in the data"):
        list(by_topic(batch, options()))
