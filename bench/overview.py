"""``python -m bench.overview``: the table and the picture of docs/benchmarks.md, from the tables of the other pages.

This module measures nothing. Each benchmark calls ``publish``, which writes the benchmark's page and then the overview.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import overview_plot, report
from bench.overview_plot import Bars
from bench.page_tables import CONTINUATION, Table, number, tables
from bench.pages import (
    BROKER,
    CLIENTS,
    FOLDER,
    HISTORY,
    MECHANISMS,
    OFFSET_STORES,
    OVERVIEW,
    SPARK,
    TABLES,
    TRANSACTIONS,
)
from odradek.core.counts import counted

NAME = "overview"
_NO_FIGURE = "–"
_KAFKA, _CONNECTOR = "Apache Kafka", "spark-sql-kafka"
_BROKER_CPU = "broker CPU per million rows, s"
_SPARK_CPU = "CPU of all processes, broker included, per million rows, s"


class MissingFigureError(LookupError):
    """A page has no figure for a cell of the overview."""


@dataclass(frozen=True)
class Cell:
    """A cell of a page. ``row`` is the row's name, and ``column`` the beginning of the column's title.

    ``heading`` selects the table: by the table's whole heading, or by the beginning of the title of its first column.
    Without it, any table of the page can have the cell.
    """

    page: Path
    row: str
    column: str
    heading: str = ""

    def find(self) -> tuple[str, Table]:
        """The text of the cell and its table. Raises MissingFigureError.

        If several tables have the cell, the newest counts. A row does not count if one of its cells is "–".
        """
        found = [table for table in tables(self.page) if self._is_in(table)]
        if not found:
            place = f"{self.page.name}, {self.heading or 'any table'}"
            raise MissingFigureError(f"{place}: no row {self.row!r} with a column {self.column!r}")
        table = max(found, key=lambda table: table.moment)
        return table.rows[self.row][self._index(table)], table

    def _is_in(self, table: Table) -> bool:
        is_under = (table.heading == self.heading) or table.columns[0].startswith(self.heading)
        cells = table.rows.get(self.row, (_NO_FIGURE,))
        return is_under and _NO_FIGURE not in cells and self._index(table) >= 0

    def _index(self, table: Table) -> int:
        return next((n for n, title in enumerate(table.columns) if title.startswith(self.column)), -1)


@dataclass(frozen=True)
class Ratio:
    """How many times better odradek is: the number in ``cell``, divided by that in ``base`` if there is one.

    ``is_inverse``: the cell says how many times as much odradek takes.
    """

    cell: Cell
    is_inverse: bool = False
    base: Cell | None = None

    def value(self) -> float:
        found = number(self.cell.find()[0])
        if self.base:
            found /= number(self.base.find()[0])
        return 1 / found if self.is_inverse else found


@dataclass(frozen=True)
class Figure:
    """One row of the overview. Without ``times``, the ratio is the median of ``ours`` divided by that of ``theirs``."""

    name: str
    ours: Cell
    theirs: Cell
    unit: str
    times: Ratio | None = None
    cpu: Ratio | None = None

    def ratio(self) -> float:
        if self.times:
            return self.times.value()
        return number(self.ours.find()[0]) / number(self.theirs.find()[0])

    def line(self) -> str:
        ours, table = self.ours.find()
        cpu = times(self.cpu.value()) if self.cpu else ""
        theirs, _ = self.theirs.find()
        cells = (self.name, self._median(ours), self._median(theirs), times(self.ratio()), cpu, table.day)
        return f"| {' | '.join(cells)} |"

    def bars(self) -> Bars:
        return Bars(self.name, self.ratio(), self.cpu.value() if self.cpu else None)

    def _median(self, cell: str) -> str:
        return f"{cell.split(' (', maxsplit=1)[0]} {self.unit}"


@dataclass(frozen=True)
class Group:
    title: str
    beside: str
    page: Path
    figures: Sequence[Figure]

    @property
    def line(self) -> str:
        link = self.page.relative_to(OVERVIEW.parent).as_posix()
        return f"| **[{self.title}]({link})** beside {self.beside} | | | | | |"


def times(value: float) -> str:
    """A ratio as text: ``12 ×``, ``1.2 ×``, ``0.12 ×``."""
    return f"{value:.0f} ×" if value >= 10 else f"{value:.1f} ×" if value >= 1 else f"{value:.2f} ×"


def _beside(page: Path, other: str, name: str, title: str, cpu: str = "") -> Figure:
    """The figure in the row ``title`` of a table with the columns odradek, ``other`` and "times better".

    ``cpu`` is the title of the row with the CPU time of the same work. If the title begins with "…", that row follows
    the row ``title``.
    """
    cpu_row = f"{title} {cpu}" if cpu.startswith(CONTINUATION) else cpu
    return Figure(
        name,
        Cell(page, title, "odradek"),
        Cell(page, title, other),
        title.rsplit(", ", 1)[1],
        Ratio(Cell(page, title, "times better")),
        Ratio(Cell(page, cpu_row, "times better")) if cpu else None,
    )


def _broker(name: str, title: str, cpu: str = "") -> Figure:
    return _beside(BROKER, _KAFKA, name, title, cpu)


def _spark(name: str, title: str, *, has_cpu: bool = True) -> Figure:
    return _beside(SPARK, _CONNECTOR, name, title, CONTINUATION + _SPARK_CPU if has_cpu else "")


def _client(name: str, title: str, client: str) -> Figure:
    """A figure of our client beside another ``client``, both on Apache Kafka's broker."""
    heading = f"on {_KAFKA}"
    return Figure(
        name,
        Cell(CLIENTS, f"{title} | odradek", "figure", heading),
        Cell(CLIENTS, f"{title} | {client}", "figure", heading),
        title.rsplit(", ", 1)[1],
        Ratio(Cell(CLIENTS, f"{title} | {client}", "odradek is", heading)),
    )


def _session(name: str, heading: str) -> Figure:
    """A figure of a pipeline in a running session. Its time includes the start of the query."""
    column, ratios = "seconds, with the query's start", "median"
    return Figure(
        name,
        Cell(TABLES, "workers", column, heading),
        Cell(TABLES, "connector", column, heading),
        "s",
        Ratio(Cell(TABLES, "connector ÷ workers, with the query's start", ratios, heading)),
        Ratio(Cell(TABLES, "workers ÷ connector, CPU", ratios, heading), is_inverse=True),
    )


def _command(name: str, heading: str, column: str, ratio: str) -> Figure:
    """A figure of whole commands, from the start of the process to its end."""
    return Figure(
        name,
        Cell(TABLES, "odradek", column, heading),
        Cell(TABLES, "connector", column, heading),
        "s",
        Ratio(Cell(TABLES, ratio, "median", heading)),
    )


def _transactions(name: str, title: str, cpu: str = "") -> Figure:
    return _beside(TRANSACTIONS, _KAFKA, name, title, cpu)


def _store(name: str, partitions: int, other: str, kind: str = "") -> Figure:
    """A figure of pipelined commits to odradek beside another store. ``kind``: the kind of ZooKeeper's commits."""
    row = f"{other}, {kind}" if kind else other

    def cell(row: str, figure: str) -> Cell:
        title = f"{counted(partitions, 'partition')}: {figure}"
        return Cell(OFFSET_STORES, row, title, "32 commits in flight")

    cpu = Ratio(cell(row, "CPU"), base=cell("odradek", "CPU"))
    return Figure(name, cell("odradek", "commits/s"), cell(row, "commits/s"), "/s", cpu=cpu)


_SINGLE = "single produce of 100 B, one in flight, p50, ms"
_FAN_OUT = "8 raw consumers, one cached topic: broker CPU per GB, s"
_COMMITS = "OffsetCommit, pipelined, 8 connections, requests/s"
_WIDE = "OffsetCommit of 100 partitions, 8 connections, partitions/s"
_TRANSACTION_CPU = CONTINUATION + "broker CPU per thousand transactions, s"
_OFFSETS = "OffsetFetch of 10,000 partitions, no commits in between, partitions/s"
_KEPT = "read into Arrow, 100 B, none, rows/s … all records kept, none, rows/s"
_ALL = "seconds of the whole command"

GROUPS = (
    Group("Broker", "Apache Kafka 4.3", BROKER, (
        _broker("start, to the first metadata answer", "start to first metadata answer, s"),
        _broker("idle memory", "idle memory, all processes (RSS), MB"),
        _broker("produce, confluent-kafka, 100 B",
                "produce, confluent-kafka, 100 B, acks=all, rows/s", CONTINUATION + _BROKER_CPU),
        _broker("produce, Java ProducerPerformance, 1 KB",
                "produce, Java ProducerPerformance, 1 KB, rows/s", CONTINUATION + _BROKER_CPU),
        _broker("single produce, one in flight, p50", _SINGLE),
        _broker("consume, confluent-kafka, 100 B",
                "consume, confluent-kafka, 100 B, rows/s", CONTINUATION + _BROKER_CPU),
        _broker("consume, Java ConsumerPerformance, 100 B", "consume, Java ConsumerPerformance, 100 B, rows/s"),
        _broker("consume, Java ConsumerPerformance, 1 KB", "consume, Java ConsumerPerformance, 1 KB, rows/s"),
        _broker("8 consumers of one cached topic", f"{_FAN_OUT} … to all consumers together, GB/s", _FAN_OUT),
        _broker("OffsetCommit, pipelined, 8 connections", _COMMITS, "… broker CPU per million requests, s"),
        _broker("OffsetCommit of 100 partitions", _WIDE, "… broker CPU per million partitions, s"),
        _broker("commit and wait, confluent-kafka, p50", "commit and wait, confluent-kafka, p50, ms"),
        _broker("OffsetFetch of 10,000 partitions, unchanged", _OFFSETS),
        _broker("OffsetFetch, all committed before each fetch",
                f"{_OFFSETS} … all partitions committed before each fetch, partitions/s"),
        _broker("100 members join at once", "100 members join at once, to the last assignment, ms"),
        _broker("memory per committed offset", "memory per committed offset, a million of them, bytes"),
        _broker("restart after kill -9, to all end offsets", "restart after kill -9 to all end offsets, s"),
        _broker("restart after kill -9, 2 million commits",
                "restart after kill -9, 2 million commits, to the last group, s"),
        _broker("compaction", "compaction of a log, start to end, s"),
    )),
    Group("Transactions", "Apache Kafka 4.3", TRANSACTIONS, (
        _transactions("one record each, 1 producer",
                      "transactions of one record, back to back, 1 producer, transactions/s", _TRANSACTION_CPU),
        _transactions("one record each, 16 producers",
                      "transactions of one record, back to back, 16 producers, transactions/s", _TRANSACTION_CPU),
        _transactions("produce in transactions of 100 ms",
                      "produce in transactions of 100 ms, confluent-kafka, 100 B, rows/s",
                      CONTINUATION + _BROKER_CPU),
        _transactions("restart, 100,000 transactional ids",
                      "restart after kill -9, 100,000 transactional ids, until all are listed, s"),
    )),
    Group("Clients", "another client on the same broker", CLIENTS, (
        _client("Arrow table, beside confluent-kafka", _KEPT, "confluent-kafka"),
        _client("read, beside Java ConsumerPerformance",
                "read into Arrow, 100 B, none, rows/s", "Java ConsumerPerformance"),
        _client("send_batch, beside confluent-kafka", "write, 100 B, acks=all, rows/s", "confluent-kafka"),
        _client("one record to its poll, beside confluent-kafka",
                "one record, from write to poll, p50, ms", "confluent-kafka"),
        Figure("commit and wait, beside confluent-kafka",
               Cell(MECHANISMS, "odradek", "synchronous", "client"),
               Cell(MECHANISMS, "confluent-kafka", "synchronous", "client"), "/s"),
    )),
    Group("Stores of offsets", "ZooKeeper 3.9, one node", OFFSET_STORES, (
        _store("commits of 1 partition", 1, "ZooKeeper, 1 node", "one write a partition"),
        _store("commits of 50 partitions", 50, "ZooKeeper, 1 node", "one write a partition"),
        _store("commits of 50, one ZooKeeper transaction", 50, "ZooKeeper, 1 node", "one transaction"),
    )),
    Group("Spark source and sink", "Spark's Kafka connector", SPARK, (
        _spark("into noop, 100 B", "into noop, 100 B, none, rows/s"),
        _spark("into noop, 1 KB, lz4", "into noop, 1 KB, lz4, rows/s"),
        _spark("into Parquet, 100 B", "into Parquet, 100 B, none, rows/s"),
        _spark("into Parquet, 1 KB, lz4", "into Parquet, 1 KB, lz4, rows/s"),
        _spark("a micro-batch of 40 records",
               "a micro-batch of 40 records of a backlog, into noop, ms", has_cpu=False),
        _spark("a run of AvailableNow, 40 records",
               "a run of AvailableNow with 40 new records, from load() to the end, ms", has_cpu=False),
        _spark("1 % of a topic by timestamp", "1 % of a topic by a filter on timestamp, count, s", has_cpu=False),
        _spark("sink, 100 B", "from memory into a topic, 100 B, none, rows/s"),
        _spark("sink, 1 KB, lz4", "from memory into a topic, 1 KB, lz4, rows/s"),
    )),
    Group("Topics into tables", "Spark's connector and file sink", TABLES, (
        _session("session up, 20 million × 100 B", "Session up: 20,000,000 × 100 B"),
        _session("session up, 4 million × 1 KB", "Session up: 4,000,000 × 1 KB"),
        _session("session up, 10 million × JSON", "Session up: 10,000,000 × JSON of six fields, 100 B"),
        _command("whole command, 20 million × 100 B",
                 "Whole commands: 20,000,000 × 100 B", _ALL, "connector ÷ odradek"),
        _command("whole command, 4 million × 1 KB", "Whole commands: 4,000,000 × 1 KB", _ALL, "connector ÷ odradek"),
        _command("whole command, 2 million × 100 B",
                 "Whole commands: 2,000,000 × 100 B", _ALL, "connector ÷ odradek"),
        _command("whole command, nothing to read", "Whole commands: 20,000,000 × 100 B",
                 "seconds with nothing left to read", "connector ÷ odradek, nothing to read"),
    )),
    Group("Offsets topic", "reading the same records as bytes", HISTORY, (
        Figure("10 million commits, decoded",
               Cell(HISTORY, "decoded", "seconds"), Cell(HISTORY, "raw", "seconds"), "s",
               Ratio(Cell(HISTORY, "decoded", "times as long as raw"), is_inverse=True),
               Ratio(Cell(HISTORY, "decoded ÷ raw, CPU", "median"), is_inverse=True)),
    )),
)  # fmt: skip


def table() -> str:
    lines = ["| | odradek | other | times better | … by CPU | measured |", "|---|---|---|---|---|---|"]
    for group in GROUPS:
        lines += [group.line, *(figure.line() for figure in group.figures)]
    return "\n".join(lines)


def plot() -> str:
    groups = [(f"{group.title} beside {group.beside}", [one.bars() for one in group.figures]) for group in GROUPS]
    return overview_plot.plot(groups, times)


def write(page: Path = OVERVIEW) -> None:
    """Writes the table into ``page`` and the picture beside it."""
    text, picture = table(), plot()
    report.write(page, text, NAME)
    page.with_suffix(".svg").write_text(picture)


def publish(page: Path, text: str, name: str) -> None:
    """Writes the section ``name`` of a benchmark into its page, and the overview if the page is in docs/benchmarks.

    If the overview lacks a figure, the function prints a line, and the overview stays as it is.
    """
    report.write(page, text, name)
    if page.parent != FOLDER:
        return
    try:
        write()
    except MissingFigureError as error:  # the benchmark's own page is complete, so the run is not lost
        print(f"{OVERVIEW.name} is not up to date: {error}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        write()
    except MissingFigureError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
