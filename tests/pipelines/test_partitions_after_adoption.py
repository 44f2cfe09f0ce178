"""A partition that is added to a topic of a table is read from its start, also by a run after an adoption.

``--from latest`` concerns partitions that were there when the table began. The first checkpoint of a table knows its
partitions. An adoption begins another checkpoint, and had lost the records of the added partition.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
from support.publish import create_topic

from odradek import Admin

STEPS = Path(__file__).parents[1] / "audit" / "plain_steps.py"
KINDS = ("parquet", "delta")


def steps_of(bootstrap: str, topic: str, table: Path, kind: str, *, adopted: bool) -> list[list[str]]:
    """The steps of a table that begins at the end of a partition of 7 records, and of the partition that is added."""
    log = ["-b", bootstrap, "--group", f"{topic}-group"]
    ingest = ["pipeline", "ingest", *log, "--topics", topic, "--table-format", kind, "--output", str(table)]
    ingest += ["--from", "latest"]
    adopt = ["pipeline", "adopt", *log, "--output", str(table), "--execute"]
    before = [ingest, ["send", bootstrap, topic, "10"], ingest, ["topics", "alter", "-b", bootstrap, topic]]
    before[-1] += ["--partitions", "2"]
    after = [["send", bootstrap, topic, "5"], ["send", bootstrap, topic, "10", "1"]]
    return [["send", bootstrap, topic, "7"], *before, *after, *([adopt] * adopted), ingest]


def test_an_added_partition_is_read_from_its_start(bootstrap: str, topic: str, tmp_path: Path) -> None:
    tables = {f"{topic}-{kind}-{is_adopted}": (kind, is_adopted) for kind in KINDS for is_adopted in (False, True)}
    steps = []
    for name, (kind, is_adopted) in tables.items():
        create_topic(bootstrap, name)
        steps += steps_of(bootstrap, name, tmp_path / name, kind, adopted=is_adopted)
    done = subprocess.run(
        [sys.executable, str(STEPS), json.dumps(steps)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, (kind, is_adopted) in tables.items():
        files = (
            deltalake.DeltaTable(tmp_path / name).to_pyarrow_dataset()
            if kind == "delta"
            else ds.dataset(tmp_path / name)
        )
        rows = files.to_table(columns=["partition", "offset"]).to_pylist()
        read = sorted((row["partition"], row["offset"]) for row in rows)
        assert read == [*((0, at) for at in range(7, 22)), *((1, at) for at in range(10))], name
        with Admin(bootstrap) as admin:
            held = admin.list_group_offsets(f"{name}-group")
        assert {tp.partition: at.offset for tp, at in held.items()} == {0: 22, 1: 10}
        assert (f"{name}-1 is new: neither the table nor the group" in done.stdout) == is_adopted
