"""The output of ``odradek pipeline history``: the findings, the HTML page and JSON, with Spark or without."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.terminal import CommandError, heading, note, print_json
from odradek.core.counts import counted
from odradek.core.extras import command_of

if TYPE_CHECKING:
    from odradek.cli.pipeline.options import HistoryLine
    from odradek.history.analysis import Analysis
    from odradek.history.records.columns import Row

_SHOWN = 20
_OTHER_KINDS = (".csv", ".docx", ".json", ".jsonl", ".md", ".parquet", ".pdf", ".png", ".svg", ".txt", ".xlsx")


def check_plotly(line: HistoryLine) -> None:
    """Raises CommandError if the report's extra is missing.

    Call this before any import of pyarrow. The extra ``[report]`` installs both plotly and pyarrow, but an error about
    pyarrow would name the extra ``[arrow]``.
    """
    if line.report is not None and str(line.report).lower().endswith(_OTHER_KINDS):
        raise CommandError(f"--report {line.report}: the report is a page of HTML: give a name that ends with .html")
    if line.report is not None and importlib.util.find_spec("plotly") is None:
        raise CommandError(f"a report needs plotly, which is not installed: {command_of('report')}")


def check_report(line: HistoryLine) -> None:
    """Checks the report's file before the long read. Raises CommandError."""
    from odradek.core.errors import StorageError
    from odradek.history.report import check_page

    if line.report is not None:
        try:
            check_page(Path(line.report))
        except StorageError as error:
            raise CommandError(f"--report {error}") from error


def write_report(line: HistoryLine, analysis: Analysis) -> None:
    from odradek.core.errors import StorageError
    from odradek.history.report import render, write_page

    if line.report is not None:
        whose = line.address if line.group is None else f"{line.group} on {line.address}"
        try:
            write_page(Path(line.report), render(analysis, whose))
        except StorageError as error:
            raise CommandError(f"--report {error}") from error


def print_findings(line: HistoryLine, analysis: Analysis) -> None:
    from odradek.history.findings import KINDS
    from odradek.history.records.columns import rows_with_numbers
    from odradek.history.report import TITLES, incompleteness

    rows = rows_with_numbers(analysis.findings)
    if line.as_json:
        print_json(_as_json(line, analysis, rows), indent=2, default=str)
        return
    note(
        f"{counted(len(analysis.groups), 'group')}, {counted(analysis.commit_count, 'commit')} in "
        f"{counted(analysis.record_count, 'record')}; {counted(len(rows), 'finding')}"
    )
    for kind in KINDS:
        of_kind = [row for row in rows if row["kind"] == kind]
        if of_kind:
            heading(TITLES[kind])
        for row in of_kind[:_SHOWN]:
            likely = "" if row["certainty"] == "certain" else " (likely)"
            note(f"  {_when(row)}  {row['group']}  {row['text']}{likely}")
        if len(of_kind) > _SHOWN:
            where = "" if line.output or line.report else ": see --output, --report"
            note(f"  and {len(of_kind) - _SHOWN:,} more{where}")
    if analysis.incomplete_below:
        note("", incompleteness(analysis))
    if analysis.unreadable.count:
        where = f": see {line.output}/unknown.parquet" if line.output else ". --output writes their bytes"
        note("", f"{analysis.unreadable}{where}")
    if line.output is not None:
        note("", f"Tables: {line.output}")
    if line.report is not None:
        note(*([] if line.output else [""]), f"Report: {line.report}")


def _when(row: Row) -> str:
    """Returns when a finding ended, in UTC: by the time a person knows what else happened then."""
    shown = row["to_timestamp"] if row["to_timestamp"] is not None else row["from_timestamp"]
    time = "-" if shown is None else str(_json_time(shown))
    return f"{time[:19].replace('T', ' ')}Z" if "T" in time else time


def _json_time(micros: int) -> str | int:
    """Returns a time in ISO format; a number of milliseconds beyond Python's calendar, as ``odradek consume``."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return micros // 1000


def _as_json(line: HistoryLine, analysis: Analysis, rows: list[Row]) -> Row:
    for row in rows:
        for one in (row, *row["proof"]):
            for name, value in one.items():
                if name.endswith("timestamp") and value is not None:
                    one[name] = _json_time(value)
    return {
        "groups": list(analysis.groups),
        "records": analysis.record_count,
        "commits": analysis.commit_count,
        "offsets_retention_ms": analysis.retention_ms,
        "incomplete_below": {str(number): offset for number, offset in sorted(analysis.incomplete_below.items())},
        "unreadable_records": analysis.unreadable.count,
        "unreadable": [one._asdict() for one in analysis.unreadable.first],
        "coverage": analysis.coverage.to_pylist(),
        "findings": rows,
        "output": None if line.output is None else str(line.output),
        "report": None if line.report is None else str(line.report),
    }
