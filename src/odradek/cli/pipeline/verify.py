"""``odradek pipeline verify``: audits a table, prints what it found, and ends with 1 if the table is not whole."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from odradek.audit.log_check import ABORTED, DELETED, LOST, NO_RECORD
from odradek.cli.options import check_bootstrap, columns, connect
from odradek.cli.pipeline.options import VerifyLine
from odradek.cli.terminal import EXIT_OK, CommandError, note, note_table, print_json, progress, with_remedy
from odradek.core.counts import counted, span, was
from odradek.core.errors import OdradekError
from odradek.core.extras import extra_in_errors
from odradek.pipelines.values.arguments import ArgumentError
from odradek.text.printable import printable

if TYPE_CHECKING:
    from odradek.audit.connect_commits import SinkCommits
    from odradek.audit.tables import AuditedTable
    from odradek.audit.verification import PartitionAudit, TableAudit
    from odradek.pipelines.iceberg.catalogs import TableName

EXIT_NOT_WHOLE = 1
_HEADER = ("TOPIC", "PARTITION", "ROWS", "FIRST", "LAST", "REPEATED", "MISSING", "LOST", "UNKNOWN", "GROUP", "LOG END")
_WORDS = {
    ABORTED: "of aborted transactions",
    NO_RECORD: "without a record: markers of transactions, or compaction",
}


def run_verify_command(line: VerifyLine) -> int:
    """Runs the command; returns the exit code. Raises OdradekError."""
    name = _table_name(line)
    if line.group is not None and line.bootstrap_servers is None:
        raise CommandError("--group needs -b / --bootstrap-server: the commits of a group are in a cluster")
    with extra_in_errors("an audit of a table"):
        import odradek.audit.verification  # noqa: F401  its packages may be missing
    names = (line.topic_column, line.partition_column, line.offset_column)
    if line.topic is not None and line.topic_column is not None:
        raise CommandError("--topic and --topic-column: give one of them")
    from odradek.audit.tables import FilesMissing

    try:
        audit = _verified(line, name, names)
    except FilesMissing as error:
        raise CommandError(str(error), EXIT_NOT_WHOLE) from error
    except ArgumentError:  # shown with the names of options
        raise
    except OdradekError as error:  # exit code 1 is for a table that is not whole
        raise CommandError(with_remedy(error)) from error
    if line.as_json:
        print_json(as_json(audit))
    else:
        _show(line, audit)
    return EXIT_OK if audit.is_whole else EXIT_NOT_WHOLE


def _table_name(line: VerifyLine) -> TableName | None:
    """Returns the name of an Iceberg table; None for a folder. Raises CommandError and ArgumentError unless the line
    names one table."""
    is_iceberg = bool(line.catalog is not None or line.table is not None or line.catalog_options)
    if line.folder is not None and is_iceberg:
        raise CommandError(
            f"TABLE {line.folder} and --catalog, --table: give the folder of a Parquet or Delta table, or the catalogue"
            " and the name of an Iceberg table"
        )
    if is_iceberg:
        from odradek.pipelines.iceberg.catalogs import TableName

        return TableName.of(line.catalog, line.table, line.catalog_options)
    if line.folder is None:
        raise CommandError(
            "TABLE is missing: give a folder of Parquet files, a Delta table, or --catalog and --table of an Iceberg"
            " table"
        )
    if not line.folder.strip():
        raise CommandError("TABLE is empty: give a folder of Parquet files, or a Delta table")
    return None


def _opened(line: VerifyLine, name: TableName | None) -> AuditedTable:
    """Returns the table. Raises OdradekError."""
    if name is None:
        from odradek.audit.tables import open_table

        return open_table(line.folder or "")
    from odradek.audit.iceberg_tables import IcebergRows
    from odradek.pipelines.iceberg.catalogs import load, open_catalog, shown_catalog

    table = load(open_catalog(name), name)
    if table is None:
        raise CommandError(
            f"--table {name.table}: the catalogue {shown_catalog(name.catalog)} has no such table: correct the name, or"
            " choose the catalogue in the database with --catalog-option name=…"
        )
    return IcebergRows(name.table, table)


def _verified(line: VerifyLine, name: TableName | None, names: tuple[str | None, ...]) -> TableAudit:
    from odradek.audit.verification import verify_table

    with ExitStack() as stack:
        admin = None
        if line.bootstrap_servers is not None:
            check_bootstrap(line.bootstrap_servers)
            admin = stack.enter_context(connect(line.bootstrap_servers, line.timeout_ms, line.command_config))
        table = _opened(line, name)
        return verify_table(table, admin, group=line.group, topic=line.topic, columns=names, stage=progress)


def _show(line: VerifyLine, audit: TableAudit) -> None:
    right = frozenset(range(1, len(_HEADER)))
    note_table(columns(_HEADER, [_cells(one) for one in audit.partitions], right=right))
    note(*(line for one in audit.partitions for line in _lines(one)), *_of_table(line, audit))
    if line.group is not None and all(one.committed is None for one in audit.partitions):
        note(f"Group {line.group} has no committed offset of these partitions: the table is not compared with it.")
    rows = sum(one.rows.rows for one in audit.partitions if one.rows is not None)
    what = f"{audit.table.uri}: {counted(rows, 'row')} in {counted(len(audit.table.files), 'file')}"
    uncommitted = sum(one.uncommitted.aborted for one in audit.partitions)
    if uncommitted:
        what += f", {uncommitted:,} of aborted transactions"
    unknown = sum(one.unknown for one in audit.partitions)
    is_known = not any(one.topic_is_missing for one in audit.partitions)
    if audit.is_whole and not rows:
        missing = (
            f"no record is known to be missing; {counted(unknown, 'offset')} unknown" if unknown else "none is missing"
        )
        note(f"{what}: the table has no row, and {missing}.")
    elif audit.is_whole and not is_known:
        note(f"{what}: each offset once; of a topic that the cluster does not have, it is not known what is missing.")
    elif audit.is_whole and unknown:
        note(f"{what}: each offset once, and no record is known to be missing; {counted(unknown, 'offset')} unknown.")
    elif audit.is_whole:
        note(f"{what}: each offset once, and no record is missing.")
    elif any(one.unexplained for one in audit.partitions) and line.bootstrap_servers is None:
        note(f"{what}: not whole, or not known: with -b HOST:PORT the log shows why offsets are missing.")
    else:
        note(f"{what}: the table is not whole.")


def _cells(one: PartitionAudit) -> tuple[str, ...]:
    rows = one.rows
    own = ("0", "-", "-", "0", "0") if rows is None else (
        str(rows.rows), str(rows.first), str(rows.next_offset - 1), str(rows.repeated), str(rows.missing),
    )  # fmt: skip
    log = (
        "-" if one.bounds is None else str(one.lost),
        "-" if one.bounds is None else str(one.unknown),
        "-" if one.committed is None else str(one.committed),
        "-" if one.bounds is None else str(one.bounds.end),
    )
    return (one.tp.topic, str(one.tp.partition), *own, *log)


def _lines(one: PartitionAudit) -> list[str]:
    lines = [
        f"{one.tp}: {_span(repeat.start, repeat.end)} more than once, in {', '.join(repeat.files)}"
        for repeat in one.repeated
    ]
    if one.rows is not None and one.missing_before:
        lines.append(
            f"{one.tp}: the table began at offset {one.start}, by its notes; its first row is {one.rows.first}"
        )
    began = "before its first row, the table lacks"
    passed = f"{_passed_by(one)} and the table lacks"
    for causes, what in ((one.before, began), (one.gaps, "the table lacks"), (one.passed, passed)):
        if causes is None:
            continue
        if causes.lost:
            spans = ", ".join(_span(start, end) for start, end in causes.lost)
            lines.append(f"{one.tp}: LOST: {what} {counted(causes.counts[LOST], 'record')} of the log: {spans}")
        explained = [f"{count:,} {_WORDS[cause]}" for cause, count in causes.counts.items() if cause in _WORDS]
        if explained and causes is one.gaps:
            lines.append(f"{one.tp}: missing offsets that are no loss: {'; '.join(explained)}")
    lines += [*_unknown(one), *_uncommitted(one)]
    if one.is_ahead:
        assert one.bounds is not None
        lines.append(
            f"{one.tp}: the table has offsets from {one.bounds.end} on, which the log has not reached: the topic was"
            " deleted and created again, or the log was truncated"
        )
    if one.has_rows_of_others:
        lines.append(
            f"{one.tp}: the table's notes end at offset {one.end}, before its last rows: these are of an earlier topic"
            " of this name, or of another writer, so it is not known whether newer rows are missing there"
        )
    if one.is_behind_group:
        lines.append(
            f"{one.tp}: the group stands at {one.committed}, before the end of the table: its next reader would add"
            " rows again, unless the table refuses them (`odradek pipeline ingest` does)"
        )
    if one.partition_is_missing:
        lines.append(
            f"{one.tp}: the topic has no such partition: the rows are of an earlier topic of this name, or wrong"
        )
    if one.topic_is_missing:
        lines.append(f"{one.tp}: the cluster has no such topic")
    return lines


def _passed_by(one: PartitionAudit) -> str:
    is_group = one.committed is not None and one.committed >= one.end
    return "the group has passed" if is_group else "the table's notes have passed"


def _unknown(one: PartitionAudit) -> list[str]:
    """The lines about offsets of which it is not known whether the table lacks a record."""
    if one.bounds is None:
        return []
    lines = []
    began = f"the table began at offset {one.start}, by its notes"
    for causes, start, why in ((one.before, one.start, began), (one.passed, one.first_passed, _passed_by(one))):
        if causes is not None and (count := causes.counts.get(DELETED)):
            assert start is not None
            lines.append(
                f"{one.tp}: UNKNOWN: {_span(start, start + count)} {was(count)} deleted from the log: {why}, and the"
                " table has no row there"
            )
    if one.gaps is not None and (count := one.gaps.counts.get(DELETED)):
        lines.append(
            f"{one.tp}: unknown: {counted(count, 'offset')} between two rows {was(count)} deleted from the log"
        )
    if one.before_start:
        lines.append(
            f"{one.tp}: UNKNOWN: the group has passed {counted(one.before_start, 'offset')} of the log before offset"
            f" {one.start}, at which the table began to read, by its notes: another reader of the group has them, or"
            " the table was put back from a copy, and lost them (`odradek pipeline replay` reads them)"
        )
    if one.earlier and one.rows is None:
        lines.append(
            f"{one.tp}: unknown: the log has {counted(one.earlier, 'offset')}, and the table has no row of this"
            " partition, and no note about it"
        )
    elif one.earlier:
        lines.append(
            f"{one.tp}: unknown: the log has {counted(one.earlier, 'offset')} before the first row of the table, which"
            " has no note of the offset at which it began"
        )
    return lines


def _uncommitted(one: PartitionAudit) -> list[str]:
    """The lines about rows of transactions that were not committed."""
    found = one.uncommitted
    start = f"{one.tp}: the table has"
    if one.has_uncommitted_rows:
        start = f"{one.tp}: NOT COMMITTED: the table was read with read_committed, and has"
    lines = []
    if found.aborted:
        spans = ", ".join(_span(low, high) for low, high in found.ranges)
        lines.append(f"{start} {counted(found.aborted, 'row')} of aborted transactions: {spans}")
    if found.undecided:
        assert one.bounds is not None
        lines.append(
            f"{start} {counted(found.undecided, 'row')} from offset {one.bounds.stable} on, where a transaction"
            " is open: which of them will be committed is not known yet"
        )
    return lines


def _of_table(line: VerifyLine, audit: TableAudit) -> list[str]:
    """The lines about files and snapshots, which are of no single partition."""
    lines = [
        f"MISSING FILE: {name}: the table names it, so no reader can read the table" for name in audit.missing_files
    ]
    lines += [f"{name}: the table references this file {count} times" for name, count in audit.referenced_again.items()]
    lines += [f"{name} was added by {by}" for name, by in audit.added_by.items()]
    for sink in audit.table.sinks:
        compare = "" if line.group is not None else "; --group compares the commits of the group with the table"
        lines.append(
            f"Kafka Connect's Iceberg sink has made {counted(sink.snapshots, 'snapshot')} of the table"
            f" (control topic and group: {printable(sink.name)}){compare}"
        )
        lines += [
            f"commit {printable(commit)} of Kafka Connect's sink is in several snapshots: {', '.join(map(str, ids))}"
            for commit, ids in sink.again.items()
        ]
        lines += [
            f"snapshot {one.snapshot} stands at offset {one.offset} of partition {one.partition} of the sink's control"
            f" topic, and snapshot {one.earlier} before it at {one.before}: two coordinators have committed, or the"
            " control topic was created again"
            for one in sink.set_back
        ]
    return lines


def _span(start: int, end: int) -> str:
    return span(start, end)


def as_json(audit: TableAudit) -> dict[str, object]:
    """Returns the audit for ``--json``."""
    return {
        "table": audit.table.uri,
        "kind": audit.table.kind,
        "version": audit.table.version,
        "files": len(audit.table.files),
        "whole": audit.is_whole,
        "missing_files": list(audit.missing_files),
        "referenced_again": audit.referenced_again,
        "added_by": dict(audit.added_by),
        "sinks": [_sink_json(one) for one in audit.table.sinks],
        "partitions": [_partition_json(one) for one in audit.partitions],
    }


def _sink_json(one: SinkCommits) -> dict[str, object]:
    return {
        "name": one.name,
        "snapshots": one.snapshots,
        "repeated_commits": {commit: list(ids) for commit, ids in one.again.items()},
        "set_back": [back._asdict() for back in one.set_back],
    }


def _partition_json(one: PartitionAudit) -> dict[str, object]:
    rows, bounds = one.rows, one.bounds
    lost = [causes.lost for causes in (one.before, one.gaps, one.passed) if causes is not None]
    return {
        "topic": one.tp.topic,
        "partition": one.tp.partition,
        "rows": 0 if rows is None else rows.rows,
        "first": None if rows is None else rows.first,
        "last": None if rows is None else rows.next_offset - 1,
        "repeated": 0 if rows is None else rows.repeated,
        "repeats": [{"start": r.start, "end": r.end, "files": list(r.files)} for r in one.repeated],
        "missing": one.missing,
        "missing_by_cause": None if one.gaps is None else one.gaps.counts,
        "start": one.start,
        "before_first": None if one.before is None else one.before.counts,
        "passed_by_group": None if one.passed is None else one.passed.counts,
        "unknown": None if bounds is None else one.unknown,
        "lost": None if bounds is None else one.lost,
        "lost_ranges": [list(span) for spans in lost for span in spans],
        "aborted_rows": None if bounds is None else one.uncommitted.aborted,
        "aborted_ranges": [list(span) for span in one.uncommitted.ranges],
        "undecided_rows": None if bounds is None else one.uncommitted.undecided,
        "reads_committed": one.reads_committed,
        "committed": one.committed,
        "log_start": None if bounds is None else bounds.start,
        "log_end": None if bounds is None else bounds.end,
        "whole": one.is_whole,
    }
