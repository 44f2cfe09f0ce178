"""A worker's memory has a limit for any offset range. The test measures a process that does the work of one task."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from support.brokers import unique
from support.publish import create_topic

from odradek import Producer

MOST_BYTES = 600 << 20
RECORDS, RECORD_BYTES = 500_000, 1024
"""512 MB of values; the log stores them in 256 MB, which is one task with the default --task-size."""
_TASK = """
import json, pickle, sys
from pathlib import Path
from odradek.core.ids import TopicPartition
from odradek.pipelines.decoders.decoder import decoder_for
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.files.table_folders import folder_of
from odradek.pipelines.files.table_writer import TableWriter
from odradek.pipelines.values.record_values import Values
from odradek.spark.options import parse_options
from odradek.spark.offsets.offset_ranges import Piece

bootstrap, topic, output, end = sys.argv[1:]
options = parse_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, streaming=True)
writer = TableWriter(options, decoder_for(Values()), folder_of(LocalLocation(Path(output))), "batch-000000-ab")
report = writer.write([Piece(TopicPartition(topic, 0), 0, int(end), None)])
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps([report.rows, report.peak_bytes, peak]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.slow
def test_a_worker_stays_under_600_mib(bootstrap: str, tmp_path: Path) -> None:
    topic = unique("memory")
    create_topic(bootstrap, topic)
    _publish(bootstrap, topic)
    line = [sys.executable, "-c", _TASK, bootstrap, topic, str(tmp_path / "t"), str(RECORDS)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rows, reported, peak = json.loads(ended.stdout)
    assert rows == RECORDS
    assert reported >= peak, "a report has at least the real peak"
    assert 100 << 20 < peak < MOST_BYTES


def _publish(bootstrap: str, topic: str) -> None:
    """Publishes different values that lz4 compresses to half their size."""
    count, half = 10_000, RECORD_BYTES // 2
    numbers = random.Random(7)
    with Producer(bootstrap, compression_type="lz4", linger_ms=5) as producer:
        for _ in range(RECORDS // count):
            varied = numbers.randbytes(count * half)
            values = [varied[at : at + half] + b"." * half for at in range(0, len(varied), half)]
            producer.send_batch(topic, pa.record_batch({"value": pa.array(values, pa.binary())}))
