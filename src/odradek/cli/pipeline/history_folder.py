"""``odradek pipeline history --from DIR``: the same report and tables, from the history that a monitor keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.cli.pipeline.history import output_folder, report_tables
from odradek.cli.pipeline.history_output import check_report, print_findings, write_report
from odradek.cli.terminal import CommandError, warning_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.cli.pipeline.options import HistoryLine


def run_history_of_folder(line: HistoryLine, count: Callable[[int], None]) -> None:
    """Runs the analysis of a folder. ``count`` gets the number of records that were read since its last call.

    Raises CommandError."""
    from odradek.core.errors import StorageError
    from odradek.history.analysis import RESULTS
    from odradek.history.kept.folder_analysis import analyse_folder
    from odradek.history.kept.history_files import folder_of

    assert line.folder is not None
    check_report(line)
    try:
        folder = folder_of(line.folder)
        with report_tables(None if line.output is None else output_folder(str(line.output))) as writers:

            def on_batch(batch: pa.RecordBatch) -> None:
                count(batch.num_rows)
                writers.add_batch(batch, line.since_us)

            analysis = analyse_folder(
                folder, group=line.group, since_us=line.since_us, rules=line.rules, verdict_rules=line.verdict_rules,
                on_batch=on_batch,
            )  # fmt: skip
            if line.group is not None and line.group not in analysis.groups:
                raise CommandError(f"the history has no records of group {line.group}: leave --group out for all")
            for name in RESULTS:
                writers.write(name, getattr(analysis, name))
    except StorageError as error:
        raise CommandError(f"--from {error}") from None
    for name in folder.unreadable:
        warning_lines(f"Warning: {folder.directory / name} is damaged and left out.")
    write_report(line, analysis)
    print_findings(line, analysis)
