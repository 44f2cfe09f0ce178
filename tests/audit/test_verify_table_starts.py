"""``odradek pipeline verify`` knows from the notes of a table where it began: a missing first file is a loss, and a
table that began later is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.forks import run_steps
from support.publish import create_topic

from odradek import Admin, TopicPartition
from odradek.cli.main import run


def write_another_topic(table: Path, topic: str) -> None:
    columns = {"topic": [f"{topic}-other"], "partition": [0], "offset": [0]}
    pq.write_table(pa.table(columns), table / "other.parquet")


Capture = pytest.CaptureFixture[str]
KINDS = ("parquet", "delta")


class Ingested:
    """A table, and the steps that make it."""

    def __init__(self, bootstrap: str, topic: str, table: Path, kind: str) -> None:
        self.bootstrap, self.topic, self.table, self.kind = bootstrap, topic, table, kind
        self.log = ("-b", bootstrap, "--group", f"{topic}-group")
        create_topic(bootstrap, topic)

    def ingest(self, *more: str) -> list[str]:
        own = ["--topics", self.topic, "--table-format", self.kind, "--output", str(self.table)]
        return ["pipeline", "ingest", *self.log, *own, *more]

    def create_again(self) -> list[list[str]]:
        cluster = ["-b", self.bootstrap, self.topic]
        return [["topics", "delete", "--yes", *cluster], ["topics", "create", "--partitions", "1", *cluster]]

    def adopt(self) -> list[str]:
        return ["pipeline", "adopt", *self.log, "--output", str(self.table), "--execute"]

    def send(self, count: int) -> list[str]:
        return ["send", self.bootstrap, self.topic, str(count)]

    def delete(self, offset: int) -> list[str]:
        return ["delete", self.bootstrap, self.topic, str(offset)]

    def remove_rows_of_first_batch(self) -> None:
        if self.kind == "delta":
            deltalake.DeltaTable(self.table).delete("offset < 20")
        else:
            (first,) = self.table.glob("batch-000000-*.parquet")
            first.unlink()

    @contextmanager
    def without_rows_from(self, offset: int) -> Iterator[None]:
        """Takes back the rows of the micro-batches from this offset on, for a while."""
        if self.kind == "delta":
            version = deltalake.DeltaTable(self.table).version()
            deltalake.DeltaTable(self.table).delete(f"offset >= {offset}")
            yield
            deltalake.DeltaTable(self.table).restore(version)
            return
        files = [file for file in self.table.glob("batch-*.parquet") if offset == 0 or "batch-000001-" in file.name]
        for file in files:
            file.rename(file.with_name(f"_{file.name}"))
        yield
        for file in files:
            file.with_name(f"_{file.name}").rename(file)
        self.table.joinpath("other.parquet").unlink(missing_ok=True)

    def audited(self, capsys: Capture, *options: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run(["pipeline", "verify", str(self.table), "--json", *options])
        return code, json.loads(capsys.readouterr().out)

    def verified(self, capsys: Capture, *options: str) -> tuple[int, dict[str, Any]]:
        code, audit = self.audited(capsys, *options)
        (one,) = audit["partitions"]
        return code, one


def test_a_missing_first_file_is_a_loss_and_a_later_start_is_none(
    bootstrap: str, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    first = [Ingested(bootstrap, f"{topic}-{kind}", tmp_path / kind, kind) for kind in KINDS]
    later = [Ingested(bootstrap, f"{topic}-{kind}-later", tmp_path / f"{kind}-later", kind) for kind in KINDS]
    again = [Ingested(bootstrap, f"{topic}-{kind}-again", tmp_path / f"{kind}-again", kind) for kind in KINDS]
    steps = []
    for one in first:
        committed = one.ingest("--option", "kafka.isolation.level=read_committed")
        steps += [one.send(20), committed, one.send(20), committed]
    for one in again:  # its topic is deleted and created again
        steps += [one.send(50), one.ingest(), *one.create_again(), one.send(30), one.adopt(), one.ingest()]
    for one in later:  # its notes have the start after an adoption, too
        latest = one.ingest("--from", "latest")
        steps += [one.send(50), latest, one.send(10), latest, one.delete(60), one.adopt(), one.send(10), one.ingest()]
    done = run_steps(*steps)
    assert done.returncode == 0, done.stdout + done.stderr
    for one in later:
        code, found = one.verified(capsys, *one.log)
        assert (code, found["start"], found["first"], found["rows"], found["unknown"]) == (0, 50, 50, 20, 0)
    for one in again:
        check_rows_of_an_earlier_topic(one, capsys)
    for one in first:
        assert one.verified(capsys, *one.log)[1]["reads_committed"]
        check_missing_last_file(one, capsys)
        check_missing_first_file(one, capsys)


def check_rows_of_an_earlier_topic(one: Ingested, capsys: Capture) -> None:
    """The table has 50 rows of the earlier topic and 30 of the present one. The group stands at its end, 30."""
    code, found = one.verified(capsys, *one.log)
    assert (code, found["rows"], found["repeated"], found["committed"]) == (1, 80, 30, 30)
    assert run(["pipeline", "verify", str(one.table), *one.log]) == 1
    out = capsys.readouterr().out
    assert "the table's notes end at offset 30, before its last rows: these are of an earlier topic" in out
    assert "its next reader would add rows again" not in out


def check_missing_last_file(one: Ingested, capsys: Capture) -> None:
    """Also without a group, the table's notes say how far it has read."""
    code, found = one.verified(capsys, "-b", one.bootstrap)
    assert (code, found["lost"]) == (0, 0)
    with one.without_rows_from(20):
        code, found = one.verified(capsys, "-b", one.bootstrap)
        assert (code, found["rows"], found["lost"], found["lost_ranges"]) == (1, 20, 20, [[20, 40]])
        run(["pipeline", "verify", str(one.table), "-b", one.bootstrap])
        assert "LOST: the table's notes have passed and the table lacks 20 records" in capsys.readouterr().out
    with one.without_rows_from(0):
        if one.kind == "parquet":  # a folder without files is no table
            write_another_topic(one.table, one.topic)
        else:
            return
        code, audit = one.audited(capsys, "-b", one.bootstrap)
        lost = {part["partition"]: part["lost"] for part in audit["partitions"] if part["topic"] == one.topic}
        assert (code, lost) == (1, {0: 40})


def check_missing_first_file(one: Ingested, capsys: Capture) -> None:
    code, found = one.verified(capsys, *one.log)
    assert (code, found["start"], found["lost"], found["unknown"]) == (0, 0, 0, 0)
    one.remove_rows_of_first_batch()
    code, found = one.verified(capsys, *one.log)
    assert (code, found["start"], found["lost"], found["lost_ranges"]) == (1, 0, 20, [[0, 20]])
    assert one.verified(capsys)[0] == 1  # without a cluster, too: the offsets have no cause
    with Admin(one.bootstrap) as admin:
        admin.delete_records({TopicPartition(one.topic, 0): 30})
    code, found = one.verified(capsys, *one.log)
    assert (code, found["lost"], found["unknown"]) == (1, 0, 20)
    assert run(["pipeline", "verify", str(one.table), *one.log]) == 1
    out = capsys.readouterr().out
    assert "the table began at offset 0, by its notes; its first row is 20" in out
    assert "UNKNOWN: offsets 0 to 19 were deleted from the log" in out
