"""CPU time of reads, writes and commits of the client in this revision, compared with another revision.

``python -m bench.client_revisions OTHER/src [ROUNDS] [CASE ...]``

One broker of this revision serves all cases. In each round of a case, three child processes do the same job in random
order: "first" and "second" with the other revision, "here" with this one. Each child does the job once with at most
1,000 records or commits, so that its modules are loaded. Then it does the whole job and measures the CPU time of all
its threads. The output has two ratios for each case, "here" to "first" and "second" to "first" ("itself"), each as a
median with its quartiles. The second ratio shows the spread between equal revisions. All modules are compiled before
the first round.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_ROWS = 2_000_000
_RECORDS = 30_000
_FEW = 1000
_PARTITIONS = 4
_SIZE = 100
_WAIT_S = 120.0  # the first poll of an older revision may compile the kernels
_CODECS = ("none", "lz4")
_SOURCE = Path(__file__).resolve().parent.parent / "src"
_EXAMPLE = """\
example: compares this revision with the tenth before it, in 10 rounds of two cases
  git worktree add ../other HEAD~10
  python -m bench.client_revisions ../other/src 10 commit "write from Arrow"
"""


def _read(bootstrap: str, topic: str, rows: int) -> None:
    from odradek import Consumer, TopicPartition

    seen = 0
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=100_000) as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(_PARTITIONS)])
        while seen < rows:
            polled = consumer.poll(_WAIT_S)
            if not polled:
                raise TimeoutError(f"{seen} of {rows} rows were read")
            seen += sum(batch.num_rows for batches in polled.values() for batch in batches)


def _write(bootstrap: str, topic: str, rows: int) -> None:
    import pyarrow as pa

    from odradek import Producer

    many = min(rows, 100_000)
    batch = pa.record_batch({"value": pa.array([b"x" * _SIZE] * many, pa.binary())})
    with Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        for _ in range(rows // many):
            producer.send_batch(topic, batch)
        producer.flush(120)


def _send(bootstrap: str, topic: str, rows: int) -> None:
    from odradek import Producer

    value = b"x" * _SIZE
    with Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        for _ in range(rows):
            producer.send(topic, value)
        producer.flush(120)


def _commit(bootstrap: str, topic: str, count: int) -> None:
    from odradek import Consumer, OffsetAndMetadata, TopicPartition

    with Consumer(bootstrap_servers=bootstrap, group_id="revisions", enable_auto_commit=False) as consumer:
        partitions = [TopicPartition(topic, n) for n in range(_PARTITIONS)]
        consumer.assign(partitions)
        for number in range(count):
            consumer.commit({partition: OffsetAndMetadata(number) for partition in partitions})


_JOBS: dict[str, tuple[Callable[[str, str, int], None], str, int]] = {
    "read into Arrow, none": (_read, "read-none", _ROWS),
    "read into Arrow, lz4": (_read, "read-lz4", _ROWS),
    "write from Arrow": (_write, "write", _ROWS),
    "send one by one": (_send, "send", _RECORDS),
    "commit": (_commit, "read-none", _FEW),
}
"""By the case's name: the function of the job, its topic, and its number of records or commits."""


def _child(name: str, bootstrap: str) -> int:
    """Does a job twice, first with at most ``_FEW`` records or commits. Returns the second run's CPU time in ns."""
    import time

    job, topic, count = _JOBS[name]
    job(bootstrap, topic, min(count, _FEW))
    before = time.process_time_ns()
    job(bootstrap, topic, count)
    return time.process_time_ns() - before


def _side_ns(sides: Mapping[str, Path], name: str, bootstrap: str, side: str) -> int:
    """Runs the child process of one side. Returns the CPU time of its job in ns."""
    source = sides[side]
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "bench.client_revisions", "--child", json.dumps([name, bootstrap])]
    environment = {**os.environ, "PYTHONPATH": f"{source}:{root}"}
    done = subprocess.run(
        command, cwd=tempfile.gettempdir(), env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed with the source {source}: {done.stderr[-2000:]}")
    return int(done.stdout.split()[-1])


def _fill(bootstrap: str) -> None:
    import pyarrow as pa

    from bench.workload import create_topic
    from odradek import Producer

    for topic in ("write", "send"):
        create_topic(bootstrap, topic, _PARTITIONS, {"retention.bytes": str(1 << 28), "segment.bytes": str(1 << 26)})
    batch = pa.record_batch({"value": pa.array([b"x" * _SIZE] * 100_000, pa.binary())})
    for codec in _CODECS:
        create_topic(bootstrap, f"read-{codec}", _PARTITIONS)
        with Producer(bootstrap_servers=bootstrap, linger_ms=5, compression_type=codec) as producer:
            for _ in range(_ROWS // batch.num_rows):
                producer.send_batch(f"read-{codec}", batch)
            producer.flush(120)


def main(arguments: Sequence[str] | None = None) -> None:
    from bench.revisions import argument_parser, compare, compile_modules, report
    from odradek.testing.process import BrokerProcess

    chosen = argument_parser("bench.client_revisions", __doc__, _EXAMPLE, 10, list(_JOBS)).parse_args(arguments)
    compile_modules(chosen.other, _SOURCE)
    sides = {"first": chosen.other, "second": chosen.other, "here": _SOURCE}
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        broker: Any = BrokerProcess(Path(directory))
        broker.start()
        try:
            _fill(broker.bootstrap_servers)
            for name in chosen.cases or _JOBS:
                count = _JOBS[name][2]
                measure = partial(_side_ns, sides, name, broker.bootstrap_servers)
                report(name, compare(list(sides), chosen.rounds, 1, chance, measure), count)
        finally:
            broker.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(_child(*json.loads(sys.argv[2])))
    else:
        main()
