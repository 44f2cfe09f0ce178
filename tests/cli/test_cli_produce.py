"""``odradek produce``."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek.cli.main import run
from odradek.client import Admin, NewTopic, PartitionReader, TopicPartition
from odradek.client.config import as_config


def test_every_format(bootstrap: str, admin: Admin, topic: str, tmp_path: Path) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    (tmp_path / "lines").write_text("one\ntwo\n")
    (tmp_path / "json").write_text('{"key": "k", "value": {"n": 1}}\n{"value": null}\n')
    (tmp_path / "csv").write_text("key,value\na,b\n")
    pq.write_table(pa.table({"value": [b"p"]}), tmp_path / "parquet")
    for form in ("lines", "json", "csv", "parquet"):
        assert run(["produce", topic, "--file", str(tmp_path / form), "--format", form, "-b", bootstrap]) == 0
    found = [(r.key, r.value) for r in PartitionReader(as_config(bootstrap), TopicPartition(topic, 0)).read_rows(0, 6)]
    assert found == [(None, b"one"), (None, b"two"), (b"k", b'{"n":1}'), (None, None), (b"a", b"b"), (None, b"p")]


def test_bad_input_is_one_line(bootstrap: str, filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_text("[1]\n")
    for file, form in ((tmp_path / "bad", "json"), (tmp_path / "none", "lines"), (tmp_path / "bad", "xml")):
        assert run(["produce", filled, "--file", str(file), "--format", form, "-b", bootstrap]) == 2
        assert capsys.readouterr().err.count("\n") == 1
