"""``python -m bench.ingest``: topics of Apache Kafka 4.3 into tables, by the pipeline and by Spark's own connector.

A case fills its topics, runs each side as a warm-up, and then runs all sides in turn. One run of each side is a
"pair". Only the case "backlog" has a single side, which it measures once without a warm-up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import overview, report
from bench.apache import SPARK_CONNECTOR_VERSION, ApacheBroker, class_path
from bench.ingest_commands import COMMAND, Commands
from bench.ingest_report import Limit, Ratio, Rounds, section
from bench.ingest_session import CONNECTOR, DELTA, SPARK, WORKERS, Figures, Job, SessionRuns
from bench.memory_curve import WORKER, csv, peaks, plot
from bench.pages import TABLES, option_help
from bench.sides import CONFIG
from bench.topics import JSON_SCHEMA, BlockValues, event_values, filled, json_values, random_values
from odradek.client.admin import Admin

ROWS_100, ROWS_1000, ROWS_JSON, ROWS_COLD, ROWS_BACKLOG = 20_000_000, 4_000_000, 10_000_000, 2_000_000, 10_000_000
FEW, WARM_BATCHES, BATCHES = 40, 20, 60
WARM_SHARE = 0.1
BACKLOG_RECORD_BYTES = 1000
BACKLOG_BATCHES = 10
DISK_SHARE = 2.5
_FORMATS = {
    "s": "{:.2f} s", "batches_s": "batches {:.2f} s", "cpu": "CPU {:.2f} s/M", "batch_ms": "{:.0f} ms a batch",
    "nothing_s": "nothing left {:.2f} s", "mb": "{:.0f} MB", "batches": "{:.0f} batches",
}  # fmt: skip


@dataclass
class Bench:
    """The broker and the Spark session, which starts when a case first needs it. The methods fill topics."""

    broker: ApacheBroker
    work: Path
    scale: float
    pairs: int
    are_distinct: bool
    page: Path
    closing: ExitStack = field(default_factory=ExitStack)
    _session: SessionRuns | None = None

    @property
    def session(self) -> SessionRuns:
        if self._session is None:
            self._session = SessionRuns(self.broker, self.work)
            self.closing.callback(self._session.close)
        return self._session

    @property
    def commands(self) -> Commands:
        return Commands(self.broker.bootstrap, self.work)

    def events(self, rows: float, size: int) -> Job:
        values = event_values(size, are_distinct=self.are_distinct)
        return self.topic(f"ingest-{'distinct' if self.are_distinct else 'events'}-{size}", rows, values)

    def topic(
        self, name: str, rows: float, values: BlockValues, codec: str = "lz4", *, is_full: bool = False, **job: Any
    ) -> Job:
        """The job for a topic of ``rows`` × ``scale`` records, at least 1,000; if ``is_full``, of ``rows`` records."""
        count = int(rows) if is_full else max(1000, int(rows * self.scale))
        with Admin(self.broker.bootstrap) as admin:
            began = time.perf_counter()
            topic = filled(self.broker.bootstrap, admin, name, count, values, codec)
        print(f"  {topic}: {count:,} records, filled in {time.perf_counter() - began:.1f} s", flush=True)
        return Job(topic, count, **job)


Measure = Callable[[Bench], tuple[Rounds, str]]
"""Measures a case. Returns the figures of each side, pair by pair, and a note for the page ("" without one)."""


@dataclass(frozen=True)
class Case:
    """A case. ``rows``: the number for the placeholder in ``title``, if it has one: the records at full size.

    ``is_command``: its figure ``s`` is that of a whole command, not of a query in a session.
    """

    title: str
    rows: int
    measure: Measure
    aims: tuple[Ratio | Limit, ...] = ()
    is_command: bool = False


def in_turn(bench: Bench, sides: tuple[str, ...], run: Callable[[str], Figures]) -> Rounds:
    """Runs every side once in each pair, in reverse order in every second pair. Returns the figures by side."""
    rounds: Rounds = {side: [] for side in sides}
    for number in range(bench.pairs):
        for side in sides if number % 2 == 0 else sides[::-1]:
            figures = run(side)
            rounds[side].append(figures)
            line = ", ".join(text.format(figures[key]) for key, text in _FORMATS.items() if key in figures)
            print(f"  pair {number + 1} {side}: {line}", flush=True)
    return rounds


def session_case(make: Callable[[Bench, float], Job], *sides: str) -> Measure:
    """A case in the session. ``make`` returns the job for a share of the full size; the warm-up has ``WARM_SHARE``."""

    def measure(bench: Bench) -> tuple[Rounds, str]:
        warm, job = make(bench, WARM_SHARE), make(bench, 1)
        for side in sides:
            bench.session.run(side, warm)
        return in_turn(bench, sides, lambda side: bench.session.run(side, job)), ""

    return measure


def small_batches(bench: Bench) -> tuple[Rounds, str]:
    """Many micro-batches of ``FEW`` records each in one query. The query's first quarter does not count."""
    batches = max(8, int((WARM_BATCHES + BATCHES) * bench.scale))
    topic = bench.topic("ingest-few", batches * FEW, event_values(100), is_full=True)
    job = Job(topic.topic, topic.rows, offsets=FEW)
    sides = (WORKERS, SPARK)
    for side in sides:
        bench.session.run(side, job)

    def run(side: str) -> Figures:
        figures = bench.session.run(side, job)
        if figures["batches"] != batches:
            raise RuntimeError(f"{side} made {figures['batches']:.0f} batches of {batches}")
        return {key: figures[key] for key in ("batch_ms", "batches")}

    return in_turn(
        bench, sides, run
    ), f"{FEW} records a batch, the median without the first quarter of a query's batches."


def cold_case(rows: int, size: int) -> Measure:
    def measure(bench: Bench) -> tuple[Rounds, str]:
        job = bench.events(rows, size)
        few = bench.topic("ingest-few", 1000, event_values(100), is_full=True)
        for side in (CONNECTOR, COMMAND, COMMAND):  # COMMAND's second run writes Java's class archive
            bench.commands.cold(side, few.topic, few.rows)
        rounds = in_turn(bench, (CONNECTOR, COMMAND), lambda side: bench.commands.cold(side, job.topic, job.rows))
        return rounds, "After two runs of the command on this machine, so that Java's classes are cached."

    return measure


def backlog(bench: Bench) -> tuple[Rounds, str]:
    """Ingests a backlog of values that do not compress, from a topic without a codec. Writes the memory curve, too.

    Below full size, micro-batches and tasks are smaller too, so that their number stays the same.
    """
    stored = ROWS_BACKLOG * BACKLOG_RECORD_BYTES * bench.scale
    free = shutil.disk_usage(bench.work).free
    if free < stored * DISK_SHARE:
        raise RuntimeError(f"{stored * DISK_SHARE / 1e9:.0f} GB of disk are needed, {free / 1e9:.0f} GB are free")
    job = bench.topic("ingest-backlog", ROWS_BACKLOG, random_values(BACKLOG_RECORD_BYTES), "none")
    more = []
    if bench.scale < 1:
        more = ["--batch-size", str(int(bench.scale * (1 << 30))), "--task-size", str(int(bench.scale * (256 << 20)))]
    figures, samples = bench.commands.backlog(job.topic, job.rows, more)
    most = peaks(samples)
    figures |= {f"peak {name}": mb for name, mb in most.items()}
    data, picture = (bench.page.with_name(f"ingest-memory.{kind}") for kind in ("csv", "svg"))
    data.write_text(csv(samples))
    picture.write_text(plot(samples, f"resident memory while {stored / 1e9:g} GB are read into a table"))
    listing = ", ".join(f"{name} {mb:,.0f} MB" for name, mb in most.items())
    note = (
        f"Stored: {stored / 1e9:g} GB. Resident memory at most, of any process of a kind, sampled each half second: "
        f"{listing}. Each sample is in [{data.name}]({data.name}).\n\n![memory of each process]({picture.name})"
    )
    with Admin(bench.broker.bootstrap) as admin:
        admin.delete_topics([job.topic])
    print("  " + ", ".join(f"{key} {value:,.0f}" for key, value in figures.items()), flush=True)
    return {COMMAND: [figures]}, note


def _versus(batches: float, query: float, spark_batches: float, cpu: float) -> tuple[Ratio, ...]:
    """The ratios of a case of raw values, to the connector and to Spark's writer.

    The arguments are the aims of these ratios. The fourth ratio has no aim.
    """
    return (
        Ratio("connector ÷ workers, batches only", "batches_s", CONNECTOR, WORKERS, batches),
        Ratio("connector ÷ workers, with the query's start", "s", CONNECTOR, WORKERS, query),
        Ratio("spark ÷ workers, batches only", "batches_s", SPARK, WORKERS, spark_batches),
        Ratio("spark ÷ workers, with the query's start", "s", SPARK, WORKERS),
        Ratio("workers ÷ connector, CPU", "cpu", WORKERS, CONNECTOR, cpu, at_most=True),
    )


def _cold(aim: float) -> tuple[Ratio | Limit, ...]:
    return (
        Ratio("connector ÷ odradek", "s", CONNECTOR, COMMAND, aim),
        Ratio("connector ÷ odradek, nothing to read", "nothing_s", CONNECTOR, COMMAND),
        Limit("odradek, nothing to read", "nothing_s", COMMAND, 5, "s"),
    )


def _json(bench: Bench, share: float) -> Job:
    return bench.topic("ingest-json", ROWS_JSON * share, json_values, schema=JSON_SCHEMA)


# Whole commands come first, before this process has a session.
CASES = {
    "cold100": Case("Whole commands: {rows:,} × 100 B", ROWS_100, cold_case(ROWS_100, 100), _cold(3.5), True),
    "cold1000": Case("Whole commands: {rows:,} × 1 KB", ROWS_1000, cold_case(ROWS_1000, 1000), _cold(2), True),
    "cold100-few": Case("Whole commands: {rows:,} × 100 B", ROWS_COLD, cold_case(ROWS_COLD, 100), _cold(1.5), True),
    "backlog": Case(
        "A backlog: {rows:,} × 1 KB that do not compress, and a kill in the middle",
        ROWS_BACKLOG,
        backlog,
        (
            Limit("batches", "batches", COMMAND, BACKLOG_BATCHES, "", at_least=True),
            Limit("batches that the run after the kill repeated", "batches_again", COMMAND, 1, ""),
            Limit("the largest worker", f"peak {WORKER}", COMMAND, 600, "MB"),
        ),
        True,
    ),
    "raw100": Case(
        "Session up: {rows:,} × 100 B",
        ROWS_100,
        session_case(lambda bench, share: bench.events(ROWS_100 * share, 100), CONNECTOR, WORKERS, SPARK),
        _versus(6, 4, 3, 1 / 4),
    ),
    "raw1000": Case(
        "Session up: {rows:,} × 1 KB",
        ROWS_1000,
        session_case(lambda bench, share: bench.events(ROWS_1000 * share, 1000), CONNECTOR, WORKERS, SPARK),
        _versus(2.8, 2.2, 2, 1 / 2),
    ),
    "json": Case(
        "Session up: {rows:,} × JSON of six fields, 100 B",
        ROWS_JSON,
        session_case(_json, CONNECTOR, WORKERS, SPARK),
        (
            Ratio("connector ÷ workers, batches only", "batches_s", CONNECTOR, WORKERS, 4),
            Ratio("connector ÷ workers, with the query's start", "s", CONNECTOR, WORKERS),
            Ratio("spark ÷ workers, batches only", "batches_s", SPARK, WORKERS),
            Ratio("workers ÷ connector, CPU", "cpu", WORKERS, CONNECTOR),
        ),
    ),
    "small": Case(
        f"Session up: batches of {FEW} records",
        WARM_BATCHES + BATCHES,
        small_batches,
        (Ratio("workers ÷ spark", "batch_ms", WORKERS, SPARK, 1.05, at_most=True),),
    ),
    "delta": Case(
        "Session up: Delta beside Parquet, {rows:,} × 100 B",
        ROWS_100,
        session_case(lambda bench, share: bench.events(ROWS_100 * share, 100), WORKERS, DELTA),
        (
            Ratio("Delta ÷ Parquet, batches only", "batches_s", DELTA, WORKERS, 1.1, at_most=True),
            Ratio("Delta ÷ Parquet, with the query's start", "s", DELTA, WORKERS),
        ),
    ),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="CASE", help=f"only these cases: {', '.join(CASES)}; cold: all cold cases"
    )
    parser.add_argument("--pairs", type=int, default=3, help="how often each side runs (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size, for a trial run")
    parser.add_argument("--distinct", action="store_true", help="unique raw values; otherwise they repeat after 10,000")
    parser.add_argument("--directory", type=Path, help="keep the broker's data here, for the next run")
    parser.add_argument("--out", type=Path, help="file of results (JSON); results of other cases stay in it")
    parser.add_argument("--page", type=Path, default=TABLES, help=option_help(TABLES))
    args = parser.parse_args()
    names = list(CASES) if args.only is None else [name for name in CASES if is_chosen(name, args.only)]
    unknown = [one for one in args.only or () if not any(is_chosen(name, [one]) for name in CASES)]
    if unknown:
        parser.error(f"no case {unknown[0]}: there are {', '.join(CASES)}")
    args.cases = names
    return args


def is_chosen(name: str, only: list[str]) -> bool:
    return name in only or ("cold" in only and name.startswith("cold"))


@contextmanager
def running(args: argparse.Namespace) -> Iterator[Bench]:
    """Apache Kafka until the block ends, with the data in ``--directory`` or in a new directory."""
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-ingest-", dir=args.directory and args.directory.parent))
    broker = ApacheBroker(args.directory or work / "kafka", CONFIG | {"log.retention.hours": "-1"}, cp=class_path())
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, work, ignore_errors=True)
        closing.callback(broker.stop)
        broker.start()
        yield Bench(broker, work, args.scale, args.pairs, args.distinct, args.page, closing)


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    used = f"PySpark {version('pyspark')}, {ApacheBroker.name}, spark-sql-kafka {SPARK_CONNECTOR_VERSION}, "
    used += f"pyarrow {version('pyarrow')}"
    with running(args) as bench:
        for name in args.cases:
            case = CASES[name]
            title = case.title.format(rows=int(case.rows * args.scale))
            print(f"{name}: {title}", flush=True)
            began = time.perf_counter()
            rounds, note = case.measure(bench)
            command = f"python -m bench.ingest --only {name} --pairs {args.pairs} --scale {args.scale:g}"
            command += " --distinct" * args.distinct
            head = f"{report.head(len(next(iter(rounds.values()))), command)} · {used}"
            results[name] = {"title": title, "head": head, "rounds": rounds, "note": note}
            results[name]["is_command"] = case.is_command
            if args.out:
                args.out.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{section(results[name], case.aims)}\n\n{name} took {time.perf_counter() - began:.0f} s\n", flush=True
            )
    texts = [section(results[name], case.aims) for name, case in CASES.items() if name in results]
    overview.publish(args.page, "\n\n".join(texts), "ingest")
    print(f"written to {args.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
