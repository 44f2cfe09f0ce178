"""The data directory of a broker is put back from an older copy, and its logs grow again beyond the table's offsets.

Other records stand at the offsets that the table has read. An ingest had gone on at its offset, so the records between
the end of the copy and that offset were never read, and no line said so.
"""

from __future__ import annotations

from typing import Any

import pytest
from restored_broker import KINDS, Restored, offsets_of, send
from support.forks import run_steps

from odradek import Admin, TopicPartition
from odradek.core.errors import OdradekError
from odradek.pipelines import ingest


def test_an_ingest_stops_at_a_log_that_was_put_back_and_has_grown_again(restored: Restored) -> None:
    bootstrap = restored.bootstrap
    send(bootstrap, "events", 40, linger_ms=20)
    assert run_steps(*map(restored.ingest, KINDS)).returncode == 0
    send(bootstrap, "events", 30, linger_ms=20)
    restored.broker.stop()
    restored.broker.start()  # an ordinary start of the broker changes nothing
    done = run_steps(*map(restored.ingest, KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    before = {kind: offsets_of(restored.root / kind, kind) for kind in KINDS}
    assert before["delta"] == before["parquet"] == [*((0, at) for at in range(100)), *((1, at) for at in range(10))]
    restored.put_back()
    send(bootstrap, "events", 120)
    send(bootstrap, "events", 5, 1)
    for kind in KINDS:
        done = run_steps(restored.ingest(kind))
        lines = [line for line in done.stderr.splitlines() if "events-0: it was read up to offset 100" in line]
        assert done.returncode != 0
        assert len(lines) == 1, done.stderr
        assert "has another batch of records at offset" in lines[0]
        assert "records below offset 100 are new, and were not read" in lines[0]
        assert "odradek groups reset --mark" in lines[0]
        assert offsets_of(restored.root / kind, kind) == before[kind]
        assert restored.committed(kind) == {}  # its commits were lost with the directory


def test_the_remedies_of_the_line_bring_the_new_records(restored: Restored) -> None:
    bootstrap = restored.bootstrap
    send(bootstrap, "events", 70)
    assert run_steps(*map(restored.ingest, KINDS)).returncode == 0
    restored.put_back()
    send(bootstrap, "events", 120, linger_ms=20)
    old = [*((0, at) for at in range(100)), *((1, at) for at in range(10))]
    reset = [
        "groups",
        "reset",
        "-b",
        bootstrap,
        "--topic",
        "events:0",
        "--to-offset",
        "30",
        "--mark",
        "--create",
        "--execute",
    ]
    done = run_steps([*reset, "--group", "parquet"], restored.ingest("parquet"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert offsets_of(restored.root / "parquet", "parquet") == sorted([*old, *((0, at) for at in range(30, 150))])
    done = run_steps(restored.ingest("delta", "--option", "failOnDataLoss=false"))  # goes on behind the lost records
    assert done.returncode == 0, done.stdout + done.stderr
    assert "events-0: it was read up to offset 100" in done.stderr
    assert offsets_of(restored.root / "delta", "delta") == sorted([*old, *((0, at) for at in range(100, 150))])
    send(bootstrap, "events", 5)
    done = run_steps(*map(restored.ingest, KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data may have been lost" not in done.stderr
    assert restored.committed("parquet") == restored.committed("delta") == {0: 155, 1: 10}


@pytest.mark.parametrize("kind", ["parquet", pytest.param("delta", marks=pytest.mark.slow)])
def test_an_ingest_whose_rows_spark_writes_stops_there_too(restored: Restored, kind: str, spark: Any) -> None:
    bootstrap, output = restored.bootstrap, restored.root / kind
    given = {"topics": "events", "group": kind, "output": output, "table_format": kind, "spark": spark}

    def read(writer: str = "spark", **options: str) -> int:
        return ingest(bootstrap, writer=writer, options=options, **given).rows

    send(bootstrap, "events", 40, linger_ms=20)
    assert read() == 80
    send(bootstrap, "events", 30, linger_ms=20)
    restored.broker.stop()
    restored.broker.start()  # an ordinary start of the broker changes nothing
    assert read(maxOffsetsPerTrigger="20") == 30
    before = offsets_of(output, kind)
    restored.put_back()
    send(bootstrap, "events", 120)
    says = "events-0: it was read up to offset 100, and the log has another batch of records at offset"
    for writer in ("spark", "workers"):
        with pytest.raises(OdradekError, match=says) as failed:
            read(writer)
        assert "\n" not in str(failed.value)
    assert offsets_of(output, kind) == before
    assert read(failOnDataLoss="false") == 50
    send(bootstrap, "events", 5)
    assert read() == 5


def test_a_last_batch_that_was_deleted_is_no_replaced_log(restored: Restored) -> None:
    bootstrap = restored.bootstrap
    assert run_steps(*map(restored.ingest, KINDS)).returncode == 0
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition("events", 0): 30, TopicPartition("events", 1): 5})
    send(bootstrap, "events", 3)
    send(bootstrap, "events", 3, 1)
    done = run_steps(*map(restored.ingest, KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        assert offsets_of(restored.root / kind, kind) == [
            *((0, at) for at in range(33)),
            *((1, at) for at in range(13)),
        ]


def test_a_log_that_is_shorter_now_has_a_line_with_both_ways_on(restored: Restored) -> None:
    """Before, the only way in the line read the partition once more from its start, and did not say so."""
    bootstrap = restored.bootstrap
    send(bootstrap, "events", 70)
    assert run_steps(restored.ingest("parquet")).returncode == 0
    restored.put_back()
    send(bootstrap, "events", 20)
    done = run_steps(restored.ingest("parquet"))
    (line,) = [line for line in done.stderr.splitlines() if "it was read up to offset 100 but ends at 50" in line]
    assert "odradek groups reset --mark with --to-datetime or --to-offset" in line
    assert "With failOnDataLoss=false the partition is read once more from its start, offset 0" in line
    reset = [
        "groups",
        "reset",
        "-b",
        bootstrap,
        "--topic",
        "events:0",
        "--to-offset",
        "30",
        "--mark",
        "--create",
        "--execute",
    ]
    done = run_steps([*reset, "--group", "parquet"], restored.ingest("parquet"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [*((0, at) for at in (*range(100), *range(30, 50))), *((1, at) for at in range(10))]
    assert offsets_of(restored.root / "parquet", "parquet") == sorted(rows)
