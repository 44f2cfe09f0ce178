"""Arguments of pipelines: each is checked before Spark starts, and an option cannot say something else."""

from __future__ import annotations

import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.formats.checkpoint_mark import check_checkpoint_folder, check_table_folders
from odradek.pipelines.formats.table_description import check_not_foreign
from odradek.pipelines.ingestion.job import Ingest
from odradek.pipelines.option_checks import OF_A_QUERY, partition_terms
from odradek.pipelines.options import IngestOptions, ReplayOptions, TransformOptions
from odradek.pipelines.queries import parse_trigger
from odradek.pipelines.replays.input import ReplayRanges
from odradek.pipelines.replays.job import destination, find_ranges, replay_of
from odradek.pipelines.replays.selection import parse_ranges
from odradek.pipelines.replays.topic import ReplayTopic
from odradek.pipelines.transforms.job import Transform
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.options import parse_options
from odradek.text.table_paths import check_uri

AVRO = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"at","type":"int"}]}'


def everything(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def refused(tmp_path: Path, says: str, **changed: Any) -> None:
    """Checks that an ingest is refused without a broker, without Spark and without a file."""
    before = everything(tmp_path)
    given: dict[str, Any] = {"topics": "a", "group": "g", "output": tmp_path / "t"} | changed

    def check() -> None:
        job = Ingest.of(IngestOptions("127.0.0.1:1", **given))
        job.target.check()
        job.source.all_options()

    with pytest.raises(ConfigError, match=says) as error:
        check()
    assert "\n" not in str(error.value)
    assert everything(tmp_path) == before


_ARGUMENTS = [name for name, what in OF_A_QUERY.items() if name != "subscribe" and "the pipeline" not in what]


@pytest.mark.parametrize("name", _ARGUMENTS)
@pytest.mark.parametrize("write", [str, str.upper])
def test_an_option_that_says_something_else_than_an_argument_is_refused(name: str, write: Any, tmp_path: Path) -> None:
    refused(
        tmp_path,
        f"(?i)options {name}=other: an argument says .* already; leave the option out",
        options={write(name): "other"},
    )


def test_a_second_subscription_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "options subscribe=b: an argument says the topics already", options={"subscribe": "b"})
    refused(tmp_path, "options progressTo=x: the pipeline sets it", options={"progressTo": "x"})
    refused(tmp_path, "options groupLook=x: the pipeline sets it", options={"groupLook": "x"})
    said = "options columns=value: the pipeline reads all columns that it needs; leave the option out"
    refused(tmp_path, said, options={"columns": "value"})
    refused(tmp_path, "options lossesTo=x: the pipeline sets it", options={"lossesTo": "x"})
    refused(tmp_path, "options committedByTable=true: the pipeline sets it", options={"committedByTable": "true"})
    with pytest.raises(ConfigError, match=r"options kafka\.group\.id=x: an argument says the group already"):
        Transform.of(
            TransformOptions(
                "h:1",
                topics="a",
                group="g",
                to_topic="t",
                checkpoint="c",
                sql="SELECT 1",
                options={"kafka.group.id": "x"},
            )
        )
    for name in ("subscribe", "endingOffsets", "startingTimestamp", "kafka.bootstrap.servers"):
        options = ReplayOptions("h:1", topics="a", output=tmp_path / "t", options={name: "1"})
        with pytest.raises(ConfigError, match=f"options {name}=1: an argument says"):
            find_ranges(options, None)


def test_an_option_that_says_the_same_is_accepted() -> None:
    same = {"kafka.bootstrap.servers": "h:1", "Kafka.Group.Id": "g", "subscribe": "a", "startingOffsets": "committed"}
    job = Ingest.of(IngestOptions("h:1", topics="a", group="g", output="t", options=same))
    assert job.source.options == same


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"topics": None}, "topics: expected text or a list of texts, not None"),
        ({"topics": [1]}, r"topics: expected text or a list of texts, not \[1\]"),
        ({"output": None}, "output is missing: give the location of the table"),
        ({"group": None}, "group: expected text, not None"),
        ({"flat": "no"}, "flat: expected True or False, not 'no'"),
        ({"files_per_batch": True}, "files_per_batch: expected a whole number or None, not True"),
        ({"options": {"a": 1}}, "options: expected a mapping or None"),
        ({"partition_by": "topic,topic"}, "column topic is named twice"),
        ({"partition_by": ["topic", "Topic"]}, "column Topic is named twice"),
        ({"partition_by": "nope"}, "partition_by nope: the table's columns are topic, partition, offset"),
        ({"partition_by": "date(timestamp)"}, r"date\(timestamp\): the .* An expression is no column: .* --flat"),
        ({"flat": True}, "flat needs fields: give value_format json or avro, and schema with the fields of the values"),
        ({"value_format": "json", "flat": True}, "flat needs fields: give schema with the fields of the values"),
        ({"value_format": "json", "schema": "a int", "partition_by": "a"}, "with --flat the fields of values are"),
        ({"value_format": "json", "schema": "a int", "partition_by": "value.a"}, "with --flat the fields of values"),
        ({"partition_by": "topic,partition,offset,timestamp,key,value"}, "cannot have all its columns in folders"),
        ({"partition_by": "headers", "headers": True}, "a column of type struct"),
        ({"value_format": "json", "schema": "id bigint", "partition_by": "value"}, "a column of type struct"),
        ({"value_format": "json", "schema": "id bigint", "partition_by": "id"}, "partition_by id: the table's"),
        ({"value_format": "json", "schema": "id bigin"}, "'bigin' is not a type of Spark; did you mean bigint"),
        ({"value_format": "json", "schema": "id bigint, ID int"}, "has a field twice"),
        ({"value_format": "json", "schema": "key bigint", "flat": True}, "'key' has the same name"),
        ({"value_format": "json", "schema": '{"type":"struct"'}, "nor Spark's JSON"),
        ({"value_format": "json", "schema": "id int", "flat": True, "partition_by": "nope"}, "columns are id, topic"),
        ({"value_format": "avro", "schema": "{"}, "is not a valid Avro schema"),
        ({"value_format": "avro", "schema": AVRO, "flat": True, "partition_by": "nope"}, "columns are id, at, topic"),
        ({"table_format": "orc"}, "choose one of parquet, delta"),
    ],
)  # fmt: skip
def test_mistakes_are_found_without_spark_and_leave_nothing(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    refused(tmp_path, says, **changed)


def test_places_that_cannot_be_used_are_found_without_spark(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for at in ("file", "file/t", "dangling"):
        refused(tmp_path, f"output .*{at} cannot be used: .* is not a folder", output=tmp_path / at)
        refused(tmp_path, f"checkpoint .*{at} cannot be used: .* is not a folder", checkpoint=tmp_path / at)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3a://", "names no bucket: give s3a://BUCKET/FOLDER"),
        ("s3a:///folder", "names no bucket: give s3a://BUCKET/FOLDER"),
        ("http://x/y", "http is not a file system to write to: give a path, or a URI"),
        ("hdfs://h/t", "workers cannot write to hdfs: choose --writer spark"),
    ],
)
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_uris_that_cannot_be_written_are_found_without_spark(
    uri: str, says: str, table_format: str, tmp_path: Path
) -> None:
    """Before, Spark started first, and Java refused them with a traceback or without a reason."""
    refused(tmp_path, says, output=uri, table_format=table_format)
    if "workers" not in says:
        refused(tmp_path, f"checkpoint .*{says}", checkpoint=uri, table_format=table_format)


def test_a_checkpoint_may_be_where_workers_cannot_write() -> None:
    check_uri("the checkpoint", "hdfs://h/c", workers=False)
    check_uri("the output", "file:///t", workers=True)


@pytest.mark.parametrize("text", ["0s", "0.0m", "0ms", "0.4ms", "9999999999h", "-1s"])
def test_an_interval_of_nothing_or_of_years_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an interval"):
        parse_trigger(text)


def test_columns_keep_their_order() -> None:
    assert partition_terms("topic, key,") == ("topic", "key")


def test_a_replay_checks_its_arguments_before_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partition_by nope"):
        destination(ReplayOptions("h:1", topics="a", output=tmp_path / "t", partition_by="nope"))
    with pytest.raises(ConfigError, match="topics: expected"):
        destination(ReplayOptions("h:1", topics=3, output=tmp_path / "t"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("value_format", "json"), ("partition_by", "topic"), ("writer", "spark"), ("flat", True), ("files_per_batch", 3)],
)
def test_a_replay_into_a_topic_refuses_the_options_of_tables(name: str, value: Any) -> None:
    """Before, they had no effect, without a word."""
    with pytest.raises(ConfigError, match=f"{name} is for output: a topic gets the records as they are"):
        destination(ReplayOptions("h:1", topics="a", to_topic="b", **{name: value}))
    assert destination(ReplayOptions("h:1", topics="a", to_topic="b")) is not None


@pytest.mark.parametrize(
    "text",
    ['{"a":{"0":[0,5],"0":[20,25]}}', '{"a":{"0":[0,5]},"a":{"1":[5,10]}}'],
)
def test_ranges_whose_names_stand_twice_are_refused(text: str) -> None:
    """Before, the first one was dropped without a word."""
    with pytest.raises(ConfigError, match=r"stands twice in one object: give the ranges of a partition as .*\[\[100,"):
        parse_ranges(text)
    assert len(parse_ranges('{"a":{"0":[[0,5],[20,25]]}}')) == 2


def test_start_offsets_whose_names_stand_twice_are_refused() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "startingOffsets": '{"a":{"0":1,"0":2}}'}
    with pytest.raises(ConfigError, match="'0' stands twice in one object: leave one of them out"):
        parse_options(given, streaming=False)


def test_a_folder_of_another_program_is_no_checkpoint(tmp_path: Path) -> None:
    """A query whose checkpoint was the folder of a table wrote its files there. No reader could read the table then."""
    check_checkpoint_folder(tmp_path / "new")
    check_checkpoint_folder(tmp_path)
    (tmp_path / ".hidden").touch()
    check_checkpoint_folder(tmp_path)
    (tmp_path / "adopted").mkdir()
    (tmp_path / "adopted" / "odradek-table").touch()  # after an adoption, a checkpoint has only the table's mark
    check_checkpoint_folder(tmp_path / "adopted")
    shutil.rmtree(tmp_path / "adopted")
    (tmp_path / "part-0.parquet").touch()
    message = re.escape(f"checkpoint {tmp_path} holds something else, part-0.parquet for one: give an empty folder")
    with pytest.raises(ConfigError, match=message):
        check_checkpoint_folder(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == [".hidden", "part-0.parquet"]
    (tmp_path / "offsets").mkdir()
    check_checkpoint_folder(tmp_path)  # what has a part of a checkpoint is judged by Spark
    with pytest.raises(ConfigError, match="is not a folder"):
        check_checkpoint_folder(tmp_path / "part-0.parquet")


def test_new_tables_and_checkpoints_are_outside_of_tables(tmp_path: Path) -> None:
    """Before, Spark's files were among those of a table, and a table could be inside of another one."""
    outer = tmp_path / "outer"
    (outer / "_odradek").mkdir(parents=True)
    (outer / "_odradek" / "table.json").touch()
    for inner in ("in", "_odradek/in", "_odradek/checkpoint/in", "a/b"):
        with pytest.raises(ConfigError, match=f"{inner} is inside of the table {outer}: give a folder outside of it"):
            check_table_folders(outer / inner, None)
    for checkpoint in (outer, outer / "ck", outer / "a" / "b"):
        with pytest.raises(ConfigError, match=f"checkpoint {checkpoint} is inside of the table {outer}, and readers"):
            check_table_folders(outer, checkpoint)
    for checkpoint in (tmp_path / "ck", outer / "_odradek" / "checkpoint", outer / ".ck", None):
        check_table_folders(outer, checkpoint)
    (outer / "ck").mkdir()
    (outer / "ck" / "odradek-table").touch()
    check_table_folders(outer, outer / "ck")  # it has begun there
    (outer / "in" / "_odradek").mkdir(parents=True)
    (outer / "in" / "_odradek" / "table.json").touch()
    check_table_folders(outer / "in", None)


@pytest.mark.parametrize("name", ["offset", "timestamp"])
def test_a_folder_for_each_record_is_a_warning(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Ingest.of(IngestOptions("h:1", topics="a", group="g", output=tmp_path / "t", partition_by=name)).target.check()
    assert f"partition by {name}: nearly each record gets a folder" in caplog.text


def test_a_function_that_ends_its_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the command ended with the module's exit code, and without a line."""
    (tmp_path / "ending_module.py").write_text("import sys; sys.exit(3)")
    monkeypatch.chdir(tmp_path)
    given = {"topics": "a", "group": "g", "to_topic": "t", "checkpoint": tmp_path / "c"}
    with pytest.raises(ConfigError, match="importing ending_module failed: SystemExit: 3"):
        Transform.of(TransformOptions("h:1", function="ending_module:f", **given))


def test_a_table_among_the_files_of_a_streaming_query_is_refused(tmp_path: Path) -> None:
    """Spark's readers then see the files of that query alone. Before, an ingest went on without a word."""
    (tmp_path / "t" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "t" / "_odradek").mkdir()
    (tmp_path / "t" / "_odradek" / "table.json").touch()
    shape = Ingest.of(IngestOptions("h:1", topics="a", group="g", output=tmp_path / "t")).target.layout()
    with pytest.raises(ConfigError, match="has _spark_metadata: a streaming query of Spark writes to this folder"):
        check_not_foreign(LocalLocation(tmp_path / "t"), shape)


def test_a_replay_into_the_topic_that_it_reads_is_refused() -> None:
    """Before, the next run read the copies of the first one."""
    found = ReplayRanges((Range(TopicPartition("a", 0), 0, 5),))
    for name, is_refused in (("a", True), ("b", False)):
        options = ReplayOptions("h:1", topics="a", to_topic=name)
        with pytest.raises(ConfigError, match="topic a is read and written") if is_refused else nullcontext():
            replay_of(options, found, ReplayTopic(name))
