"""A broker whose data directory is put back from an older copy, and ingests that read from it in other processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
from support.publish import create_topic

import odradek
from odradek import Admin, Producer

KINDS = ("parquet", "delta")


def send(
    bootstrap: str, topic: str, count: int, partition: int = 0, linger_ms: int = 0, keys: Sequence[bytes] = ()
) -> None:
    """Sends records of random bytes; with ``linger_ms`` several are in one batch. ``keys``: one after the other."""
    with Producer(bootstrap_servers=bootstrap, linger_ms=linger_ms) as producer:
        for number in range(count):
            key = keys[number % len(keys)] if keys else None
            producer.send(topic, os.urandom(200), key=key, partition=partition)
            if not linger_ms and keys:
                producer.flush()


def offsets_of(table: Path, kind: str) -> list[tuple[int, int]]:
    files = deltalake.DeltaTable(table).to_pyarrow_dataset() if kind == "delta" else ds.dataset(table)
    rows = files.to_table(columns=["partition", "offset"]).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


class Restored:
    """A broker whose directory is put back. ``copy``: 30 records of partition 0, and 10 of partition 1, are in it.
    ``topic``: settings of the topic. ``keys``: of its records."""

    def __init__(self, root: Path, topic: Mapping[str, str] | None = None, keys: Sequence[bytes] = ()) -> None:
        self.root = root
        cleaner = {"log.cleaner.backoff.ms": "20", "log.segment.delete.delay.ms": "0"}
        self.broker = odradek.Broker(root / "data", cleaner).start()
        self.bootstrap = self.broker.bootstrap_servers
        create_topic(self.bootstrap, "events", partitions=2, **(topic or {}))
        send(self.bootstrap, "events", 30, keys=keys)
        send(self.bootstrap, "events", 10, 1, linger_ms=20, keys=keys)
        self.take_copy()

    def take_copy(self) -> None:
        self.broker.stop()
        shutil.rmtree(self.root / "copy", ignore_errors=True)
        shutil.copytree(self.root / "data", self.root / "copy")
        self.broker.start()

    def put_back(self, log: str = "") -> None:
        """Puts the copy back; with the name of a log only this log, as of one of several brokers or disks."""
        self.broker.stop()
        shutil.rmtree(self.root / "data" / log)
        shutil.copytree(self.root / "copy" / log, self.root / "data" / log)
        self.broker.start()

    def ingest(self, kind: str, *more: str) -> list[str]:
        into = ["--topics", "events", "--group", kind, "--output", str(self.root / kind), "--table-format", kind]
        return ["pipeline", "ingest", "-b", self.bootstrap, *into, *more]

    def committed(self, group: str) -> dict[int, int]:
        with Admin(self.bootstrap) as admin:
            return {tp.partition: one.offset for tp, one in sorted(admin.list_group_offsets(group).items())}
