"""The offsets topic read and decoded, compared with the same records as bytes: ``python -m bench.history``.

The benchmark commits offsets on a broker. Then it reads all of ``__consumer_offsets`` in each mode, every time in a new
process, and in the reverse order in every second round. The modes are:

* raw: ``PartitionReader.read`` returns RecordBatches of key, value, partition, offset and timestamp. It fetches, checks
  CRCs and makes Arrow columns as the decoder needs them. Keys and values stay bytes.
* decoded: ``history.read.stream_offset_history`` reads in the same way. A second thread decodes each RecordBatch into
  typed columns while the next RecordBatch is read.
* analysed: like decoded; also, a ``Journal`` collects all columns and sorts the commits.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench import overview, report
from bench.pages import HISTORY, option_help
from bench.sides import start
from bench.workload import CommitConnection, create_topic
from odradek import __version__
from odradek.testing.process import BrokerProcess

GROUPS, PARTITIONS = 16, 50
MODES = ("raw", "decoded", "analysed")
AIM = 1.5
_CONFIG = {"offsets.topic.num.partitions": "4", "log.cleaner.enable": "false"}


class Filled:
    """An odradek broker that keeps all commits, because its log cleaner is disabled."""

    name = f"odradek {__version__}"

    def __init__(self, directory: Path) -> None:
        self._process = BrokerProcess(directory, config=_CONFIG)
        self.bootstrap = self._process.bootstrap_servers

    def spawn(self) -> None:
        self._process.start()
        self.bootstrap = self._process.bootstrap_servers

    def kill(self) -> None:
        self._process.kill()


def fill(bootstrap: str, records: int) -> float:
    """Commits until the offsets topic has at least ``records`` records. Returns the seconds."""
    create_topic(bootstrap, "orders", PARTITIONS)
    began, written = time.perf_counter(), 0
    connections = [CommitConnection(bootstrap, "orders", f"group-{n}", PARTITIONS) for n in range(GROUPS)]
    while written < records:
        for connection in connections:
            written += connection.run(0.25) * PARTITIONS
            if written >= records:
                break
    return time.perf_counter() - began


def child(mode: str, bootstrap: str) -> dict[str, float]:
    """Reads all records in one mode. Returns the seconds, the CPU seconds and the number of rows.

    The function first decodes up to 1,000 records, so that one-time work such as a compilation does not count.
    """
    from odradek.client.admin import Admin
    from odradek.client.config import as_config
    from odradek.client.reader import PartitionReader
    from odradek.history.records.decode import NEEDED, decode_batch
    from odradek.history.records.journal import Journal
    from odradek.history.records.read import history_ranges, stream_offset_history

    config = as_config(bootstrap)
    with Admin(config) as admin:
        ranges = history_ranges(admin)
    tp, (first, last) = next(iter(ranges.items()))
    for batch in PartitionReader(config, tp, NEEDED, "read_committed").read(first, min(first + 1000, last)):
        Journal().add(decode_batch(batch))
    rows, journal = 0, Journal()
    began, worked = time.perf_counter(), time.process_time()
    if mode == "raw":
        for tp, (begin, end) in ranges.items():
            for batch in PartitionReader(config, tp, NEEDED, "read_committed").read(begin, end):
                rows += batch.num_rows
    else:
        for batch in stream_offset_history(config):
            rows += batch.num_rows
            if mode == "analysed":
                journal.add(batch)
        journal.sorted_commits()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked, "rows": rows}


def run_child(mode: str, bootstrap: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.history", "--child", mode, bootstrap], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def section(runs: dict[str, list[dict[str, float]]], command: str) -> str:
    rows = int(runs["raw"][0]["rows"])
    lines = [
        report.head(len(runs["raw"]), command),
        "",
        f"{rows:,} records of `__consumer_offsets` ({GROUPS} groups, {PARTITIONS} partitions each, 4 partitions of the "
        "topic), uncompressed, in the page cache.",
        "",
        "| way | seconds | million records/s | CPU seconds of the reader | times as long as raw | aim |",
        "|---|---|---|---|---|---|",
    ]
    for mode in MODES:
        seconds = [run["seconds"] for run in runs[mode]]
        ratios = [mine / raw["seconds"] for mine, raw in zip(seconds, runs["raw"], strict=True)]
        aim = f"≤ {AIM} ({'met' if median(ratios) <= AIM else 'missed'})" if mode == "decoded" else ""
        lines.append(
            f"| {mode} | {report.spread(seconds)} | {report.spread([rows / one / 1e6 for one in seconds])} | "
            f"{report.spread([run['cpu'] for run in runs[mode]])} | {report.spread(ratios)} | {aim} |"
        )
    shares = [mine["cpu"] / raw["cpu"] for mine, raw in zip(runs["decoded"], runs["raw"], strict=True)]
    lines += ["", "| | median (least–greatest) of the rounds |", "|---|---|"]
    lines.append(f"| decoded ÷ raw, CPU | {report.spread(shares)} × |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all modes (default 5)")
    parser.add_argument("--records", type=int, default=10_000_000, help="commits to read (default 10 million)")
    parser.add_argument("--out", type=Path, default=HISTORY, help=option_help(HISTORY))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(*args.child)))
        return 0
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    side = Filled(work)
    try:
        start(side)
        print(f"filled in {fill(side.bootstrap, args.records):.0f} s", flush=True)
        runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for number in range(args.rounds):
            for mode in MODES if number % 2 == 0 else MODES[::-1]:
                runs[mode].append(run_child(mode, side.bootstrap))
                print(mode, runs[mode][-1], flush=True)
    finally:
        side.kill()
        shutil.rmtree(work, ignore_errors=True)
    if len({run["rows"] for some in runs.values() for run in some}) != 1:
        raise RuntimeError("the modes did not read the same records")
    command = f"python -m bench.history --rounds {args.rounds} --records {args.records}"
    overview.publish(args.out, section(runs, command), "history")
    return 0


if __name__ == "__main__":
    sys.exit(main())
