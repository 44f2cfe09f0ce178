"""``python -m bench.spark``: ``format("odradek")`` compared with Spark's built-in Kafka connector.

Both sides use one Spark session (``local[2]``), one Apache Kafka and the same topics. They run in turn in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from pyspark import StorageLevel

from bench import overview, report
from bench.apache import SPARK_CONNECTOR_VERSION, ApacheBroker, class_path, spark_connector
from bench.pages import SPARK, option_help
from bench.sides import CONFIG, cpu_seconds, with_descendants
from bench.topics import PARTITIONS, T0, event_values, filled
from bench.workload import create_topic
from odradek.client.admin import Admin
from odradek.client.producer import Producer
from odradek.core.ids import LATEST
from odradek.spark import register
from odradek.spark.session import session

OURS, THEIRS = "odradek", "kafka"
SIDES = (OURS, THEIRS)
FEW = 40
SINK_ROWS = ((100, "100 B", 2_000_000), (1000, "1 KB", 500_000))
Figures = dict[str, float]


@dataclass(frozen=True)
class Figure:
    """One row of the report. ``aim``: how many times better than the connector's figure ours should be; 0: no aim."""

    title: str
    unit: str
    higher_is_better: bool = True
    aim: float = 0


FIGURES: dict[str, Figure] = {}
for _size in ("100 B", "1 KB"):
    for _codec in ("none", "lz4"):
        _name = f"{_size}, {_codec}"
        FIGURES[f"noop {_name}"] = Figure(f"into noop, {_name}", "rows/s", aim=3)
        FIGURES[f"noop {_name} cpu"] = Figure("… CPU of all processes, broker included, per million rows", "s", False)
        FIGURES[f"parquet {_name}"] = Figure(f"into Parquet, {_name}", "rows/s", aim=1.5)
        FIGURES[f"parquet {_name} cpu"] = Figure(
            "… CPU of all processes, broker included, per million rows", "s", False
        )
        FIGURES[f"sink {_name}"] = Figure(f"from memory into a topic, {_name}", "rows/s")
        FIGURES[f"sink {_name} cpu"] = Figure("… CPU of all processes, broker included, per million rows", "s", False)
FIGURES |= {
    "batch": Figure(f"a micro-batch of {FEW} records of a backlog, into noop", "ms", False, aim=1 / 1.2),
    "live": Figure(f"… of {FEW} new records", "ms", False, aim=1 / 1.2),
    "live tuned": Figure("… the same, kafka.fetch.max.wait.ms=10 on both sides", "ms", False, aim=1 / 1.2),
    "now": Figure(f"a run of AvailableNow with {FEW} new records, from load() to the end", "ms", False),
    "range": Figure("1 % of a topic by a filter on timestamp, count", "s", False, aim=20),
}


class Bench:
    """The Spark session, the broker's address and the filled topics."""

    def __init__(self, bootstrap: str, work: Path, scale: float) -> None:
        self.bootstrap, self.work, self.scale = bootstrap, work, scale
        jars = ",".join(map(str, spark_connector()))
        log = str(work / "spark.log")
        config = {
            "spark.jars": jars,
            "spark.odradek.log.file": log,
            "spark.driver.memory": "2g",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            "spark.sql.python.filterPushdown.enabled": "true",
        }
        self.spark = session("bench", config=config)
        register(self.spark)
        self.admin = Admin(bootstrap)
        self._kept: dict[tuple[int, int], Any] = {}

    def close(self) -> None:
        self.admin.close()
        self.spark.stop()

    def filled(self, topic: str, rows: int, size: int, codec: str, step_ms: float = 0.1) -> str:
        """Fills a topic of ``rows`` records with values of ``size`` bytes, unless an earlier run has filled it.

        Returns the topic's name, which is ``topic`` with the number of rows.
        """
        return filled(self.bootstrap, self.admin, topic, rows, event_values(size), codec, step_ms)

    def kept(self, rows: int, size: int) -> Any:
        """A DataFrame of ``rows`` keys and values in Spark's memory, with as many partitions as our topics."""
        if (rows, size) not in self._kept:
            number = "(id % 10000) * 2654435761 % 4294967296"
            head = f'concat(\'{{"id":\', {number}, \',"user":"user-\', id % 9973, \'","note":"\')'
            value = f"cast(rpad({head}, {size}, hex({number})) as binary) value"
            key = "cast(lpad(cast(id % 5000 as string), 8, '0') as binary) key"
            frame = self.spark.range(0, rows, 1, PARTITIONS).selectExpr(key, value).persist(StorageLevel.MEMORY_ONLY)
            frame.count()
            self._kept[rows, size] = frame
        return self._kept[rows, size]

    def read(self, kind: str, topic: str, **options: str) -> Any:
        chosen = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic} | options
        return self.spark.read.format(kind).options(**chosen).load()


@contextmanager
def timed() -> Iterator[Figures]:
    """Measures the block: the seconds ``s``, and ``cpu`` as in ``_cpu_seconds``. Both are set at the block's end."""
    took: Figures = {}
    cpu, began = _cpu_seconds(), time.perf_counter()
    yield took
    took["s"] = time.perf_counter() - began
    took["cpu"] = _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """The CPU seconds of this process and its descendants: Spark's Java, the Python workers, and a broker started here.

    Ended processes are included, because Spark ends workers that were idle for a minute.
    """
    return cpu_seconds(with_descendants([os.getpid()]))


def throughput(bench: Bench, kind: str, number: int, only: list[str]) -> Figures:
    """Measures reads of whole topics into noop and into Parquet. Round 0 also checks the rows in Parquet."""
    figures: Figures = {}
    for size, title, full in ((100, "100 B", 4_000_000), (1000, "1 KB", 1_000_000)):
        for codec in ("none", "lz4"):
            rows = int(full * bench.scale)
            for sink in ("noop", "parquet"):
                if f"{sink}-{size}" not in only:
                    continue
                topic = bench.filled(f"bench-{size}-{codec}", rows, size, codec)
                key = f"{sink} {title}, {codec}"
                took = _written(bench, kind, topic, sink, check=rows if number == 0 else None)
                figures[key] = rows / took["s"]
                figures[f"{key} cpu"] = took["cpu"] / rows * 1e6
    return figures


def _written(bench: Bench, kind: str, topic: str, sink: str, check: int | None) -> Figures:
    path = bench.work / "parquet"
    shutil.rmtree(path, ignore_errors=True)
    with timed() as took:
        writer = bench.read(kind, topic).write
        if sink == "noop":
            writer.format("noop").mode("overwrite").save()
        else:
            writer.parquet(str(path))
    if check is not None and sink == "parquet":
        found = bench.spark.read.parquet(str(path)).count()
        if found != check:
            raise RuntimeError(f"{kind} wrote {found} rows of {check}")
    return took


def sinks(bench: Bench, kind: str, number: int, only: list[str]) -> Figures:
    """Measures writes of rows from Spark's memory into new topics.

    Round 0 writes three times with each codec, because Java warms up slowly.
    """
    figures: Figures = {}
    for size, title, full in SINK_ROWS:
        if f"sink-{size}" not in only:
            continue
        rows = int(full * bench.scale)
        frame = bench.kept(rows, size)
        for codec in ("none", "lz4") if number else ("none", "lz4") * 3:
            topic = f"bench-sink-{uuid.uuid4().hex[:8]}"
            create_topic(bench.bootstrap, topic, PARTITIONS)
            options = {"kafka.bootstrap.servers": bench.bootstrap, "topic": topic, "kafka.compression.type": codec}
            with timed() as took:
                frame.write.format(kind).options(**options).mode("append").save()
            partitions = bench.admin.partitions(topic)
            ends = bench.admin.list_offsets(dict.fromkeys(partitions, LATEST)).values()
            if sum(listed.offset for listed in ends) != rows:
                raise RuntimeError(f"{kind} wrote {sum(listed.offset for listed in ends)} records of {rows}")
            bench.admin.delete_topics([topic])
            key = f"sink {title}, {codec}"
            figures[key] = rows / took["s"]
            figures[f"{key} cpu"] = took["cpu"] / rows * 1e6
    return figures


def micro_batches(bench: Bench, kind: str, number: int, only: list[str]) -> Figures:
    """Measures micro-batches of ``FEW`` records: of a backlog, of new records, and one per run of AvailableNow."""
    topic = f"bench-batch-{uuid.uuid4().hex[:8]}"
    create_topic(bench.bootstrap, topic, PARTITIONS)
    batches = max(3, int(40 * bench.scale))
    warm = max(3, int((50 if number == 0 else 15) * bench.scale))
    with Producer(bench.bootstrap, linger_ms=0) as producer:
        for _ in range(warm + batches):
            _send(producer, topic, FEW)
        done = FEW * (warm + batches)
        query = _started(bench, kind, topic, "waiting", maxOffsetsPerTrigger=str(FEW))
        progress = _progress_until(query, topic, done)
        figures = _batch_figures(progress[warm:])
        for name, tuned in (("live", {}), ("live tuned", {"kafka.fetch.max.wait.ms": "10"})):
            query = _started(bench, kind, topic, name, **tuned)
            _wait_for(query, topic, done)
            for _ in range(max(5, int(15 * bench.scale))):
                _send(producer, topic, FEW)
                done += FEW
                _wait_for(query, topic, done)
            progress = [one for one in _progress_until(query, topic, done) if one["numInputRows"] == FEW]
            # A micro-batch that was planned while records arrived has only some of them, and the next micro-batch has
            # the others. Neither counts.
            figures[name] = median(one["durationMs"]["triggerExecution"] for one in progress[2:])
        runs = [_available_now(bench, kind, topic, producer) for _ in range(4)]
    figures["now"] = median(runs[1:]) * 1000
    return figures


def _send(producer: Producer, topic: str, count: int) -> None:
    for n in range(count):
        producer.send(topic, b"x" * 100, partition=n % PARTITIONS)
    producer.flush()


def _started(bench: Bench, kind: str, topic: str, name: str, **options: str) -> Any:
    """Starts a query from the start of the topic into noop, and returns it."""
    frame = bench.spark.readStream.format(kind).options(**_options(bench, kind, topic) | options).load()
    checkpoint = bench.work / f"checkpoint-{topic}-{name}"
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()


def _options(bench: Bench, kind: str, topic: str) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": bench.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return options | ({"kafka.group.id": f"bench-{uuid.uuid4().hex[:8]}"} if kind == OURS else {})


def _progress_until(query: Any, topic: str, done: int) -> list[dict[str, Any]]:
    """Waits until a query has read ``done`` records, and stops it. Returns its progress reports with records."""
    try:
        _wait_for(query, topic, done)
        progress = [json.loads(one.json()) for one in query._jsq.recentProgress()]
    finally:
        query.stop()
    return [one for one in progress if one["numInputRows"]]


def _batch_figures(progress: list[dict[str, Any]]) -> Figures:
    parts = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    figures = {f"part {name}": median(one["durationMs"].get(name, 0) for one in progress) for name in parts}
    return {"batch": median(one["durationMs"]["triggerExecution"] for one in progress)} | figures


def _wait_for(query: Any, topic: str, done: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        progress = query._jsq.lastProgress()
        if progress is not None:
            end = json.loads(progress.json())["sources"][0]["endOffset"]
            if isinstance(end, dict) and sum(end.get(topic, {}).values()) == done:
                return
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.02)
    raise TimeoutError(f"the query did not reach {done} records")


def _available_now(bench: Bench, kind: str, topic: str, producer: Producer) -> float:
    _send(producer, topic, FEW)
    began = time.perf_counter()
    options = _options(bench, kind, topic) | ({"kafka.group.id": f"bench-now-{topic}"} if kind == OURS else {})
    frame = bench.spark.readStream.format(kind).options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(bench.work / f"checkpoint-{topic}-now"))
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(60):
        raise TimeoutError("a run of AvailableNow did not end")
    return time.perf_counter() - began


def time_range(bench: Bench, kind: str, number: int, only: list[str]) -> Figures:
    """Measures the read of one hundredth of a topic, from its middle, by a filter on ``timestamp``."""
    rows = int(50_000_000 * bench.scale)
    topic = bench.filled("bench-times", rows, 100, "none", step_ms=1)
    low, high = T0 + rows // 2, T0 + rows // 2 + rows // 100
    options = {"pushFilters": "true", "maxTimestampDisorder": "1s"} if kind == OURS else {}
    filters = f"timestamp >= timestamp_millis({low}) AND timestamp < timestamp_millis({high})"
    with timed() as took:
        found = bench.read(kind, topic, **options).where(filters).count()
    if found != high - low:
        raise RuntimeError(f"{kind} found {found} rows instead of {high - low}")
    return {"range": took["s"]}


Measure = Callable[[Bench, str, int, list[str]], Figures]
MEASURES: dict[str, Measure] = {
    "noop-100": throughput, "noop-1000": throughput, "parquet-100": throughput, "parquet-1000": throughput,
    "batches": micro_batches, "range": time_range, "sink-100": sinks, "sink-1000": sinks,
}  # fmt: skip


def table(rounds: dict[str, list[Figures]]) -> str:
    names = f"odradek {version('odradek')} | spark-sql-kafka-0-10 {SPARK_CONNECTOR_VERSION}"
    lines = [
        f"| figure | {names} | times better | aim |",
        "|---|---|---|---|---|",
    ]
    shown = dict(FIGURES)
    for key in rounds[OURS][0]:
        if key.startswith("part "):
            shown[key] = Figure(f"phase of the micro-batch of a backlog: {key.removeprefix('part ')}", "ms", False)
    for key, figure in shown.items():
        mine, other = ([values[key] for values in rounds[kind] if key in values] for kind in SIDES)
        if not mine:
            continue
        times = report.ratios(mine, other, higher_is_better=figure.higher_is_better)
        aim = ""
        if figure.aim:
            wanted = f"≥ {figure.aim:g} ×" if figure.aim >= 1 else f"≤ {1 / figure.aim:.2g} × the connector's time"
            aim = f"{wanted} ({'met' if median(times) >= figure.aim else 'missed'})"
        ratio = f"{report.spread(times)} ×" if times else "–"
        lines.append(
            f"| {figure.title}, {figure.unit} | {report.spread(mine)} | {report.spread(other)} | {ratio} | {aim} |"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="only this measure (repeatable)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both sides (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size, for a trial run")
    parser.add_argument("--directory", type=Path, help="keep the broker's data here, for the next run")
    parser.add_argument("--fill", action="store_true", help="only fill the topics in --directory")
    parser.add_argument("--out", type=Path, default=SPARK, help=option_help(SPARK))
    parser.add_argument("--bootstrap", help="measure against this Apache Kafka instead of one started here")
    args = parser.parse_args()
    args.only = args.only or list(MEASURES)
    return args


def fill_all(bench: Bench, only: list[str]) -> None:
    """Fills the topics of the chosen measures before the first round."""
    for size, rows in ((100, 4_000_000), (1000, 1_000_000)):
        if {f"noop-{size}", f"parquet-{size}"} & set(only):
            for codec in ("none", "lz4"):
                bench.filled(f"bench-{size}-{codec}", int(rows * bench.scale), size, codec)
    if "range" in only:
        bench.filled("bench-times", int(50_000_000 * bench.scale), 100, "none", step_ms=1)


def measure(bench: Bench, args: argparse.Namespace) -> dict[str, list[Figures]]:
    """Runs all rounds. Returns the figures of each side, round by round.

    Round 0 is a warm-up and is not in the result. In round 0 the connector does not run ``time_range``, because the
    connector reads the whole topic for it.
    """
    rounds: dict[str, list[Figures]] = {kind: [] for kind in SIDES}
    functions = list(dict.fromkeys(MEASURES[name] for name in args.only))
    for number in range(args.rounds + 1):
        for kind in SIDES if number % 2 == 0 else SIDES[::-1]:
            figures: Figures = {}
            for function in functions:
                if number or function is not time_range or kind == OURS:
                    figures |= function(bench, kind, number, args.only)
            line = "  ".join(f"{key}: {report.shown(value)}" for key, value in figures.items())
            print(f"round {number} {kind}: {line}", flush=True)
            if number:
                rounds[kind].append(figures)
    return rounds


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-spark-"))
    broker, bootstrap = None, args.bootstrap
    if not bootstrap:
        broker = ApacheBroker(args.directory or work / "kafka", CONFIG | {"log.retention.hours": "-1"}, cp=class_path())
        broker.start()
        bootstrap = broker.bootstrap
    try:
        bench = Bench(bootstrap, work, args.scale)
        try:
            fill_all(bench, args.only)
            if args.fill:
                return 0
            rounds = measure(bench, args)
        finally:
            bench.close()
    finally:
        if broker is not None:
            broker.stop()
        shutil.rmtree(work, ignore_errors=True)
    command = " ".join(["python -m bench.spark", f"--rounds {args.rounds} --scale {args.scale:g}"])
    command += "".join(f" --only {name}" for name in args.only)
    used = f"PySpark {version('pyspark')}, {ApacheBroker.name}, kafka-clients 3.9.1, pyarrow {version('pyarrow')}"
    text = f"{report.head(args.rounds, command)} · {used}\n\n{table(rounds)}"
    overview.publish(args.out, text, "spark " + ", ".join(args.only))
    print(f"\n{text}\n\nwritten to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
