"""A driver in a process of its own: it reads a JSON object of a job's keywords per line, and prints what happened.

Usage: driver_child.py CONF, where CONF has Spark's settings as JSON. Another run of the table never stops a run of this
process: it has no lock and takes every other run for dead, as if the table had a URI and the other host's clock were
wrong. The table has to be right even then.

``job``: ``ingest`` (the default), ``adopt``, ``replay``, ``transform``, or ``query``, a program with
``transactional_writer``.

A line may have ``halt``: an operation of the commit machine or a call of a producer with transactions, ``before`` or
``after`` it, and the signal that the process sends itself there: STOP or KILL. A line with ``files`` is not a run:
Spark reads these Parquet files or folders and the ids of their records are printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from odradek.client.producer import Producer
from odradek.core.errors import OdradekError
from odradek.pipelines import Replayed, adopt, ingest, replay, transform
from odradek.pipelines.delta import table as delta
from odradek.pipelines.parquet import table as lake
from odradek.pipelines.tables import runs
from odradek.pipelines.tables import table as tables

ORIGIN = "concat(topic, '-', partition, '@', offset) AS value"
PUBLISH = ("CreateEntry", "CommitVersion")
CALLS = ("init_transactions", "begin_transaction", "send_offsets_to_transaction", "commit_transaction")
halt: dict[str, str] = {}


def open_all_locks() -> None:
    if hasattr(tables, "_lock"):
        tables._lock = lambda *of: contextlib.ExitStack()
    if hasattr(runs, "_is_alive"):
        runs._is_alive = lambda run: False


def _halt_at(name: str, when: str) -> None:
    if (halt.get("operation"), halt.get("when")) != ("publish" if name in PUBLISH else name, when):
        return
    chosen = signal.Signals[f"SIG{halt['signal']}"]
    halt.clear()
    print(json.dumps({"halted": name}), flush=True)
    os.kill(os.getpid(), chosen)


def halt_at_operations(kind: Any) -> None:
    if not hasattr(kind, "_perform"):
        return
    real = kind._perform

    def perform(self: Any, operation: Any) -> Any:
        _halt_at(type(operation).__name__, "before")
        result = real(self, operation)
        _halt_at(type(operation).__name__, "after")
        return result

    kind._perform = perform


def halt_at_calls() -> None:
    def halting(name: str) -> Any:
        real = getattr(Producer, name)

        def call(*given: Any, **more: Any) -> Any:
            _halt_at(name, "before")
            result = real(*given, **more)
            _halt_at(name, "after")
            return result

        return call

    for name in CALLS:
        setattr(Producer, name, halting(name))


def said_by(spark: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Does the job of a line. Returns what happened."""
    if "files" in given:
        rows = spark.read.parquet(*given["files"]).select("topic", "partition", "offset").collect()
        return {"ids": [list(row) for row in rows]}
    halt.update(given.pop("halt", {}))
    try:
        return JOBS[given.pop("job", "ingest")](spark, **given)
    except OdradekError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        halt.clear()


def _ingest(spark: Any, bootstrap_servers: str, **given: Any) -> dict[str, Any]:
    done = ingest(bootstrap_servers, spark=spark, **given)
    others = [] if done.start is None else list(done.start.outputs)
    return {"rows": done.rows, "bad": done.bad, "committed": done.group.is_committed, "others": others}


def _adopt(spark: Any, bootstrap_servers: str, **given: Any) -> dict[str, Any]:
    done = adopt(bootstrap_servers, spark=spark, execute=True, **given)
    return {"done": done.is_done, "offsets": sum(done.offsets.values())}


def _replay(spark: Any, bootstrap_servers: str, **given: Any) -> dict[str, Any]:
    done = replay(bootstrap_servers, spark=spark, **given)
    assert isinstance(done, Replayed)
    return {"rows": done.rows, "already": done.already}


def _transform(spark: Any, bootstrap_servers: str, **given: Any) -> dict[str, Any]:
    done = transform(bootstrap_servers, spark=spark, **given)
    return {"rows": done.rows, "committed": done.group.is_committed}


def _query(spark: Any, bootstrap_servers: str, **given: str) -> dict[str, Any]:
    """Writes the source of each record to a topic, as a program of a user does."""
    from odradek.pipelines.queries import spark_failures
    from odradek.spark import register, transactional_writer

    register(spark)
    options = {
        "kafka.bootstrap.servers": bootstrap_servers, "subscribe": given["topics"], "startingOffsets": "earliest",
        "kafka.group.id": given["group"], "commitOffsets": "transaction", "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": "60",
    }  # fmt: skip
    rows = spark.readStream.format("odradek").options(**options).load().selectExpr(ORIGIN)
    with spark_failures("the query stopped"):
        writer = rows.writeStream.foreachBatch(transactional_writer(bootstrap_servers, given["to_topic"]))
        query = writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(400)
        finally:
            query.stop()
    return {"rows": None}


JOBS = {"ingest": _ingest, "adopt": _adopt, "replay": _replay, "transform": _transform, "query": _query}


def main() -> None:
    from odradek.spark.session import session

    open_all_locks()
    for kind in (lake.ParquetTable, delta.DeltaTable):
        halt_at_operations(kind)
    halt_at_calls()
    spark: Any = session("odradek driver", master="local[2]", config=json.loads(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(said_by(spark, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
