"""The lag of running queries in Spark's progress, in our listener, its log and its metrics."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from spark_runs import StreamingRun
from support.brokers import eventually
from support.publish import create_topic, numbers, publish

from odradek.core.errors import ConfigError
from odradek.spark import watch
from odradek.spark.driver.lag_metrics import LagWatch


def test_a_query_with_lag_reports_its_offsets_and_time(
    stream: StreamingRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(stream.bootstrap, stream.topic, 2)
    old_ms = int(time.time() * 1000) - 3_600_000
    publish(stream.bootstrap, stream.topic, numbers(30), timestamps_ms=[old_ms] * 30, batch_num_messages=1)
    publish(stream.bootstrap, stream.topic, numbers(10), partition=1, batch_num_messages=1)
    caplog.set_level(logging.INFO, "odradek.spark.lag")
    path = tmp_path / "lag.prom"
    with watch(stream.spark, port=0, path=path) as watching:
        frame = stream.frame(maxOffsetsPerTrigger="20")
        writer = frame.writeStream.format("noop").queryName("lake").option("checkpointLocation", str(stream.checkpoint))
        query = writer.trigger(processingTime="1 second").start()
        try:
            # Spark delivers events late: the listener may also get the last events of an earlier test's query.
            eventually(
                lambda: [lag.batch for lag in watching.lags() if lag.query_id == query.id] == [1],
                within_s=60,
                what="two micro-batches",
            )
            assert watching.address is not None
            with urllib.request.urlopen(watching.address) as reply:
                served = reply.read().decode()
            first, second = [json.loads(progress.json) for progress in query.recentProgress[:2]]
        finally:
            query.stop()
        eventually(lambda: watching.lags() == [], what="the end of the query")
    assert path.read_text() == ""
    messages = [record.getMessage() for record in caplog.records if record.name == "odradek.spark.lag"]
    lines = [message for message in messages if message.startswith("query lake,")]
    assert lines[0].startswith(
        "query lake, source 0, micro-batch 0: 20 offsets behind latest (min 5, max 15, avg 10.0), 36"
    )
    assert lines[0].endswith(" s behind")
    assert lines[1].endswith("batch 1: 0 offsets behind latest (min 0, max 0, avg 0.0), 0.0 s behind")
    assert 'odradek_spark_total_offsets_behind_latest{query="lake"' in served
    assert "odradek_spark_rows_read_total" in served
    latest, end = first["sources"][0]["latestOffset"], first["sources"][0]["endOffset"]
    assert latest[stream.topic] == {"0": 30, "1": 10}
    assert end[stream.topic] == {"0": 15, "1": 5}
    assert latest["$odradek"] == {}, "the driver, not the query, requests the age of records"
    assert second["sources"][0]["latestOffset"][stream.topic] == {"0": 30, "1": 10}


def test_the_file_of_metrics_replaces_no_symlink_and_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, link, device = tmp_path / "target.prom", tmp_path / "link.prom", tmp_path / "null"
    target.write_text("old")
    link.symlink_to(target)
    device.symlink_to("/dev/null")
    monkeypatch.setattr(LagWatch, "metrics", lambda self: "new")
    for path in (link, device):
        watching = LagWatch(None, path=path)
        watching._write()
        watching._reports.put(None)
        watching._thread.join(timeout=10)
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    assert (device.is_symlink(), Path("/dev/null").is_char_device()) == (True, True)


def test_a_watch_that_could_report_nothing_is_refused_at_once(tmp_path: Path) -> None:
    """A file that no micro-batch can write was one warning of the log per micro-batch; a taken port named no port."""
    os.mkfifo(tmp_path / "pipe")
    for path, remedy in (
        (tmp_path / "none" / "lag.prom", f"the folder {tmp_path / 'none'} does not exist: create it first"),
        (tmp_path, f"is a folder: name a file in it, such as '{tmp_path / 'lag.prom'}'"),
        (tmp_path / "pipe", "is a pipe, and its readers would get parts of a text: name a file"),
    ):
        with pytest.raises(ConfigError, match=f"^path='{path}'.*{re.escape(remedy)}$"):
            LagWatch(None, path=path)  # refused before the session is used
    for port in ("9108", 65_536, -1, True, 9108.0):
        with pytest.raises(ConfigError, match=r"^port=.*: expected a number from 0 \(any free port\) to 65535$"):
            LagWatch(None, port=port)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"watch cannot listen on 127.0.0.1:{port} \(Address .*\): choose another"):
            LagWatch(None, port=port)
