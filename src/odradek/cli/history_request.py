"""The request of ``odradek pipeline history`` and the output of its results, with Spark or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.cli.terminal import CommandError, heading, note, print_json

if TYPE_CHECKING:
    from odradek.history.analysis import Analysis

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The command line. Times are in microseconds since 1970."""

    group: str | None
    since_us: int | None
    output: str | None
    report: Path | None
    as_json: bool
    bootstrap: str


class Spark(NamedTuple):
    """The Spark to run on. ``options``: connection options for our formats."""

    master: str
    conf: Mapping[str, str]
    options: Mapping[str, str]


def check_request(request: HistoryRequest) -> None:
    """Checks the report's file before the long read. Raises CommandError."""
    from odradek.core.errors import StorageError
    from odradek.history.report import PlotlyMissing, check_page

    if request.report is not None:
        try:
            check_page(request.report)
        except (PlotlyMissing, StorageError) as error:
            raise CommandError(str(error) if isinstance(error, PlotlyMissing) else f"--report {error}") from error


def write_report(request: HistoryRequest, found: Analysis) -> None:
    from odradek.core.errors import StorageError
    from odradek.history.report import render, write_page

    if request.report is not None:
        whose = request.bootstrap if request.group is None else f"{request.group} on {request.bootstrap}"
        try:
            write_page(request.report, render(found, whose))
        except StorageError as error:
            raise CommandError(f"--report {error}") from error


def print_findings(request: HistoryRequest, found: Analysis) -> None:
    from odradek.history.findings import KINDS
    from odradek.history.report import TITLES, incompleteness

    rows = found.findings.to_pylist()
    if request.as_json:
        print_json(_as_json(request, found, rows), indent=2, default=str)
        return
    note(
        f"{len(found.groups):,} groups, {found.commit_count:,} commits in {found.record_count:,} records; "
        f"{len(rows):,} findings"
    )
    for kind in KINDS:
        of_kind = [row for row in rows if row["kind"] == kind]
        if of_kind:
            heading(TITLES[kind])
        for row in of_kind[:_SHOWN]:
            note(f"  {row['group']}  {row['text']}{'' if row['certainty'] == 'certain' else ' (likely)'}")
        if len(of_kind) > _SHOWN:
            where = "" if request.output or request.report else ": see --output, --report"
            note(f"  and {len(of_kind) - _SHOWN:,} more{where}")
    if found.incomplete_below:
        note("", incompleteness(found))
    if request.output is not None:
        note("", f"Tables: {request.output}")
    if request.report is not None:
        note(*([] if request.output else [""]), f"Report: {request.report}")


def _as_json(request: HistoryRequest, found: Analysis, rows: list[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        for one in (row, *row["proof"]):
            for name, value in one.items():
                if name.endswith("timestamp") and value is not None:
                    one[name] = value.isoformat()
    return {
        "groups": list(found.groups),
        "records": found.record_count,
        "commits": found.commit_count,
        "offsets_retention_ms": found.retention_ms,
        "incomplete_below": {str(number): offset for number, offset in sorted(found.incomplete_below.items())},
        "coverage": found.coverage.to_pylist(),
        "findings": rows,
        "output": request.output,
        "report": None if request.report is None else str(request.report),
    }
