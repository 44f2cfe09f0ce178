"""What a Spark worker makes of a leader that has not what its predecessor had: data loss, named, or what is left."""

from __future__ import annotations

import pytest
from scripted import ScriptedCluster, scripted

from odradek.batches.encode import encode_batch
from odradek.core.effects import Record
from odradek.core.ids import TopicPartition
from odradek.spark.loss import DataLoss
from odradek.spark.options import parse_options
from odradek.spark.worker import read_task

T0 = TopicPartition("t", 0)


def batch(first: int, count: int) -> tuple[int, bytes]:
    records = [Record(b"k", b"%d" % (first + n)) for n in range(count)]
    return first + count - 1, encode_batch(records, now_ms=1, base_offset=first, leader_epoch=0)


def read(cluster: ScriptedCluster, **options: str) -> list[int]:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "assign": '{"t":[0]}'} | options
    task = read_task(parse_options(given, streaming=True), T0, 0, 30, cluster.topic_id)
    return [offset for one in task for offset in one.column("offset").to_pylist()]


@pytest.mark.parametrize("fails", [True, False])
def test_a_new_leader_epoch_tells_of_a_truncation(fails: bool) -> None:  # behaviour 52
    with scripted(2) as cluster:
        cluster.log = [batch(0, 10), batch(10, 20)]
        cluster.fall_over()
        if fails:
            with pytest.raises(
                DataLoss, match=r"data may have been lost: t-0: offsets 0 to 29: .*truncated to offset 8"
            ):
                read(cluster)
        else:
            assert read(cluster, failOnDataLoss="false") == list(range(10))
