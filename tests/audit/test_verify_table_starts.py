"""``odradek pipeline verify`` knows from the notes of a table where it began: a missing first file is a loss, and a
table that began later is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pytest
from support.publish import create_topic

from odradek import Admin, TopicPartition
from odradek.cli.main import run

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

    def verified(self, capsys: Capture, *options: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run(["pipeline", "verify", str(self.table), "--json", *options])
        (one,) = json.loads(capsys.readouterr().out)["partitions"]
        return code, one


def test_a_missing_first_file_is_a_loss_and_a_later_start_is_none(
    bootstrap: str, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    first = [Ingested(bootstrap, f"{topic}-{kind}", tmp_path / kind, kind) for kind in KINDS]
    later = [Ingested(bootstrap, f"{topic}-{kind}-later", tmp_path / f"{kind}-later", kind) for kind in KINDS]
    steps = []
    for one in first:
        steps += [one.send(20), one.ingest(), one.send(20), one.ingest()]
    for one in later:  # its notes have the start after an adoption, too
        latest = one.ingest("--from", "latest")
        steps += [one.send(50), latest, one.send(10), latest, one.delete(60), one.adopt(), one.send(10), one.ingest()]
    child = [sys.executable, str(Path(__file__).with_name("plain_steps.py")), json.dumps(steps)]
    done = subprocess.run(child, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for one in later:
        code, found = one.verified(capsys, *one.log)
        assert (code, found["start"], found["first"], found["rows"], found["unknown"]) == (0, 50, 50, 20, 0)
    for one in first:
        check_missing_first_file(one, capsys)


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
