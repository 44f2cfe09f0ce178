"""A log that was put back is seen without the last batch that was read, too: by the rows of the table.

A compacted topic has no such batch any more, and a table of an earlier version has not noted it. An ingest went on
there, and the records between the end of the copy and the table's offset were never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from restored_broker import KINDS, Restored, offsets_of, send
from support.brokers import eventually
from support.forks import run_steps

from odradek import Admin, TopicPartition
from odradek.client.reader import read_range
from odradek.core.errors import OdradekError
from odradek.core.ids import LATEST
from odradek.pipelines import ingest

COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "4000", "min.cleanable.dirty.ratio": "0.01"}
KEYS = [b"key-%d" % number for number in range(10)]
OTHER = [b"other-%d" % number for number in range(500)]


def held(bootstrap: str, partition: int = 0) -> list[int]:
    """The offsets that a log has."""
    found = read_range(bootstrap, ("events", partition), 0, log_end(bootstrap, partition), columns=("offset",))
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def log_end(bootstrap: str, partition: int) -> int:
    tp = TopicPartition("events", partition)
    with Admin(bootstrap) as admin:
        return admin.list_offsets({tp: LATEST})[tp].offset


def forget_batches(table: Path) -> None:
    """Makes the notes of a table those of an earlier version, which did not note the last batches."""
    for entry in table.glob("_odradek/batches/log-*.json"):
        noted = json.loads(entry.read_text())
        entry.write_text(json.dumps(_without_tails(noted)))
    for commit in table.glob("_delta_log/*.json"):
        lines = [line for line in commit.read_text().splitlines() if "odradek-tail" not in line]
        commit.write_text("\n".join(lines) + "\n")


def _without_tails(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_tails(one) for name, one in value.items() if name != "tails"}
    return [_without_tails(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def compacted(tmp_path: Path) -> Iterator[Restored]:
    found = Restored(tmp_path, COMPACTED, KEYS)
    yield found
    found.broker.close()


def test_an_ingest_stops_at_a_compacted_log_that_was_put_back(compacted: Restored) -> None:
    bootstrap = compacted.bootstrap
    send(bootstrap, "events", 70, keys=KEYS)
    done = run_steps(*map(compacted.ingest, KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    before = {kind: offsets_of(compacted.root / kind, kind) for kind in KINDS}
    compacted.put_back()
    send(bootstrap, "events", 70, keys=OTHER)  # up to 100; the last 5 are written again
    send(bootstrap, "events", 30, keys=OTHER[65:70])
    eventually(lambda: not set(held(bootstrap)) & set(range(95, 100)), what="the end of the former log is compacted")
    assert 94 in held(bootstrap)
    for kind in KINDS:
        done = run_steps(compacted.ingest(kind))
        lines = [line for line in done.stderr.splitlines() if "it was read up to offset 100" in line]
        assert done.returncode != 0
        assert len(lines) == 1, done.stderr
        assert "the log has another record of " in lines[0]
        assert "at offset 94 now than the table" in lines[0]
        assert "odradek groups reset --mark" in lines[0]
        assert offsets_of(compacted.root / kind, kind) == before[kind]
    done = run_steps(compacted.ingest("parquet", "--option", "failOnDataLoss=false"), compacted.ingest("parquet"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("data may have been lost") == 1


@pytest.mark.parametrize("policy", ["delete", pytest.param("compact", marks=pytest.mark.slow)])
def test_compaction_of_the_last_batch_is_no_replaced_log(compacted: Restored, policy: str) -> None:
    """Also if the topic is no compacted one any more when its log is read."""
    bootstrap = compacted.bootstrap
    send(bootstrap, "events", 70, keys=KEYS)  # partition 1: ten records in one batch or two
    done = run_steps(*map(compacted.ingest, KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    before = {kind: set(offsets_of(compacted.root / kind, kind)) for kind in KINDS}
    for partition in (0, 1):
        send(bootstrap, "events", 40, partition, keys=KEYS[5:])
    eventually(lambda: 99 not in held(bootstrap) and 9 not in held(bootstrap, 1), what="the last batch is compacted")
    assert {90, 94} <= set(held(bootstrap))
    with Admin(bootstrap) as admin:
        admin.alter_topic_configs("events", {"cleanup.policy": policy})
    done = run_steps(*map(compacted.ingest, KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data may have been lost" not in done.stderr
    new = {(0, at) for at in held(bootstrap) if at >= 100} | {(1, at) for at in held(bootstrap, 1) if at >= 10}
    for kind in KINDS:
        assert before[kind] | new <= set(offsets_of(compacted.root / kind, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_run_after_an_upgrade_sees_it(restored: Restored, kind: str) -> None:
    bootstrap, output = restored.bootstrap, restored.root / kind
    send(bootstrap, "events", 70)
    assert run_steps(restored.ingest(kind)).returncode == 0
    forget_batches(output)
    send(bootstrap, "events", 5)
    assert run_steps(restored.ingest(kind)).returncode == 0  # the same log: nothing is said
    forget_batches(output)
    before = offsets_of(output, kind)
    restored.put_back()
    send(bootstrap, "events", 120)
    done = run_steps(restored.ingest(kind))
    assert done.returncode != 0
    assert "events-0: it was read up to offset 105, and the log has another record of" in done.stderr
    assert "at offset 104 now than the table" in done.stderr
    assert offsets_of(output, kind) == before
    reset = ["groups", "reset", "-b", bootstrap, "--group", kind, "--topic", "events:0", "--to-offset", "30"]
    done = run_steps([*reset, "--mark", "--create", "--execute"], restored.ingest(kind))
    assert done.returncode == 0, done.stdout + done.stderr
    assert offsets_of(output, kind) == sorted([*before, *((0, at) for at in range(30, 150))])


@pytest.mark.parametrize("kind", ["parquet", pytest.param("delta", marks=pytest.mark.slow)])
def test_it_is_seen_where_spark_writes_the_rows(restored: Restored, kind: str, spark: Any) -> None:
    bootstrap, output = restored.bootstrap, restored.root / kind
    given = {"topics": "events", "group": kind, "output": output, "table_format": kind, "spark": spark}
    partitioned = {"partition_by": ["topic", "partition"]}
    send(bootstrap, "events", 70)
    assert ingest(bootstrap, writer="spark", **given, **partitioned).rows == 110
    forget_batches(output)
    restored.put_back()
    send(bootstrap, "events", 120)
    for writer in ("spark", "workers"):
        with pytest.raises(OdradekError, match=r"another record of .* at offset 99 now than the table") as failed:
            ingest(bootstrap, writer=writer, **given, **partitioned)
        assert "\n" not in str(failed.value)
    assert ingest(bootstrap, writer="spark", options={"failOnDataLoss": "false"}, **given, **partitioned).rows == 50
