"""Retention by time removes segments while an ingest reads. No row is twice, and no remaining row is missing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import parquet, record_ids
from support.brokers import unique
from support.publish import create_topic, publish

import odradek
from odradek.client.admin import Admin
from odradek.core.ids import EARLIEST, TopicPartition
from odradek.pipelines import ingest
from odradek.pipelines.queries import QueryFailed


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_continuous_ingest_follows_a_topic_with_short_retention(fails: bool, spark: Any, tmp_path: Path) -> None:
    topic, group, output = unique("short"), "g", tmp_path / "t"
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        servers = broker.bootstrap_servers
        create_topic(servers, topic, 2, retention_ms="4000", segment_ms="500")
        stop, done = threading.Event(), threading.Event()

        def produce() -> None:
            for _ in range(40):
                for partition in range(2):
                    publish(servers, topic, [b"x" * 100] * 40, partition=partition)
                broker.clock.advance(seconds=1)
                time.sleep(0.25)
            done.set()
            time.sleep(3)
            stop.set()

        producer = threading.Thread(target=produce)
        producer.start()
        options = {"failOnDataLoss": str(fails).lower(), "maxOffsetsPerTrigger": "200"}
        said = ""
        try:
            ingest(
                servers,
                topics=topic,
                group=group,
                output=output,
                trigger="100ms",
                stop=stop,
                options=options,
                spark=spark,
            )
        except QueryFailed as error:
            said = str(error)
        finally:
            stop.set()
            producer.join()
        tps = [TopicPartition(topic, number) for number in range(2)]
        starts = {tp: row.offset for tp, row in admin.list_offsets(dict.fromkeys(tps, EARLIEST)).items()}
        commits = {tp: row.offset for tp, row in admin.list_group_offsets(group).items()}
        found = record_ids(parquet(output))
    assert all(count == 1 for count in found.values())
    read = {tp: {offset for of, number, offset in found if number == tp.partition} for tp in tps}
    missing = {tp: sorted(set(range(commits[tp])) - read[tp]) for tp in tps}
    if fails:
        assert not any(missing.values()), "with failOnDataLoss, no offset below the commit is skipped"
        assert not said or "\n" not in said
    else:
        assert said == ""
        assert all(not gone or gone[-1] < starts[tp] for tp, gone in missing.items()), (missing, starts)
    assert all(max(read[tp], default=-1) < commits[tp] for tp in tps), (commits, said)
