"""``odradek pipeline history --from DIR``: the same analysis, of the history that a monitor keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.terminal import CommandError, warning_lines
from odradek.text.printable import one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.cli.pipeline.options import HistoryLine
    from odradek.history.analysis import Analysis
    from odradek.history.kept.history_files import HistoryFolder


def opened_history(given: Path) -> HistoryFolder:
    """Returns the history in a monitor's directory. Raises CommandError if there is none."""
    from odradek.core.errors import StorageError
    from odradek.history.kept.history_files import folder_of

    try:
        return folder_of(given)
    except (StorageError, OSError) as error:
        raise CommandError(f"--from {one_line(error)}") from None


def analysed_history(
    line: HistoryLine, folder: HistoryFolder, on_batch: Callable[[pa.RecordBatch], None]
) -> Analysis:  # fmt: skip
    """Analyses a history. ``on_batch`` gets the records. Raises CommandError."""
    from odradek.core.errors import StorageError
    from odradek.history.kept.folder_analysis import analyse_folder

    damaged: list[str] = []
    try:
        analysis = analyse_folder(
            folder, group=line.group, since_us=line.since_us, rules=line.rules, verdict_rules=line.verdict_rules,
            on_batch=on_batch, on_damaged=damaged.append,
        )  # fmt: skip
    except StorageError as error:
        raise CommandError(f"--from {one_line(error)}") from None
    if line.group is not None and line.group not in analysis.groups:
        raise CommandError(f"the history has no records of group {line.group}: leave --group out for all groups")
    for name in damaged:
        warning_lines(f"Warning: {folder.directory / name} is damaged and left out.")
    return analysis
