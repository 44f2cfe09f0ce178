"""Checkpoints of Spark's own Kafka source, continued by this source: no micro-batch is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from spark_runs import StreamingRun, span
from stream_planner import Planner
from support.publish import create_topic, numbers, publish

from odradek.core.ids import TopicPartition
from odradek.spark.errors import reason
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.offsets.initial_offsets import UnknownStart

META = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
LINES = 3
ID = '{"id":"11111111-2222-3333-4444-555555555555"}'


@pytest.fixture
def planned(stream: StreamingRun) -> StreamingRun:
    """Partition 0 has 30 records, partition 1 has 10. Spark's own source has planned offsets 2 to 5 and 0 to 6 as the
    first micro-batch; its end is in the checkpoint, and its start is not yet."""
    create_topic(stream.bootstrap, stream.topic, 2)
    publish(stream.bootstrap, stream.topic, numbers(30))
    publish(stream.bootstrap, stream.topic, numbers(10), partition=1)
    for name in ("offsets", "commits", "sources/0"):
        (stream.checkpoint / name).mkdir(parents=True)
    (stream.checkpoint / "metadata").write_text(ID)
    end = f'v1\n{META}\n{{"{stream.topic}":{{"0":5,"1":6}}}}'
    path = stream.spark._jvm.org.apache.hadoop.fs.Path(f"file:{stream.checkpoint}/offsets/0")
    file = path.getFileSystem(stream.spark._jsc.hadoopConfiguration()).create(path)  # with a checksum, as Spark's
    file.write(bytearray(end.encode()))
    file.close()
    stream.options["startingOffsets"] = "latest"
    return stream


def write_initial(checkpoint: Path, topic: str) -> None:
    (checkpoint / "sources/0/0").write_bytes(f'\0v1\n{{"{topic}":{{"0":2,"1":0}}}}'.encode())


def test_an_unfinished_first_micro_batch_begins_at_sparks_initial_offsets(planned: StreamingRun) -> None:
    write_initial(planned.checkpoint, planned.topic)
    first, *others = planned.run()
    assert first == span(0, 2, 5) + span(1, 0, 6)
    assert sorted(row for batch in others for row in batch) == span(0, 5, 30) + span(1, 6, 10)
    assert planned.source_offset(0)["$odradek"] == {"from": {planned.topic: {"0": 2, "1": 0}}}
    assert planned.committed() == {0: 30, 1: 10}
    assert (planned.checkpoint / "offsets/.0.crc").exists()
    assert planned.spark.read.text(f"file:{planned.checkpoint}/offsets/0").count() == LINES, "its checksum is right"


def test_a_first_micro_batch_that_spark_had_not_planned_yet_begins_at_its_initial_offsets(
    planned: StreamingRun,
) -> None:
    """Spark's own source was killed between its start offsets and its first plan. Before, the query began at the
    group's offsets, or as ``startingOffsets`` says: 38 records were skipped."""
    for file in (planned.checkpoint / "offsets").iterdir():
        file.unlink()
    write_initial(planned.checkpoint, planned.topic)
    assert planned.rows() == span(0, 2, 30) + span(1, 0, 10)
    assert planned.source_offset(0) == {
        planned.topic: {"0": 2, "1": 0},
        "$odradek": {"from": {planned.topic: {"0": 2, "1": 0}}},
    }
    assert planned.committed() == {0: 30, 1: 10}


def test_without_the_initial_offsets_the_query_ends_with_one_line(planned: StreamingRun) -> None:
    with pytest.raises(StreamingQueryException) as error:
        planned.run()
    said = reason(error.value)
    assert said is not None
    assert "start offsets are unknown" in said
    assert 'format("kafka")' in said
    assert planned.log("commits") == [], "the micro-batch is not done"
    write_initial(planned.checkpoint, planned.topic)
    assert planned.rows() == span(0, 2, 30) + span(1, 0, 10), "the file was put back"


def test_a_new_partition_of_a_later_micro_batch_is_read_from_its_beginning(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(30))
    publish(bootstrap, topic, numbers(10), partition=1)
    planner = Planner(bootstrap, topic, topic)
    try:
        start, end = {topic: {"0": 4}}, {topic: {"0": 7, "1": 6}}
        assert planner.read(start, end) == span(0, 4, 7) + span(1, 0, 6)
        with pytest.raises(UnknownStart, match="sources/0/0"):
            planner.read({}, end)
        planner.client.delete_records({TopicPartition(topic, 1): 3})
        with pytest.raises(DataLoss, match="offsets 0 to 2 are lost"):
            planner.read(start, end)
        planner.reader = planner.made(failOnDataLoss="false")
        assert planner.read(start, end) == span(0, 4, 7) + span(1, 3, 6)
    finally:
        planner.close()
