"""``odradek check-history``: reads files of operations and prints what must not be in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from odradek.cli.terminal import (
    EXIT_FAILED,
    EXIT_OK,
    Advance,
    CommandError,
    note,
    print_json,
    progress,
    spinner,
)
from odradek.consistency.anomalies import Anomaly
from odradek.consistency.checks import find_anomalies
from odradek.consistency.client_history import ClientHistory, HistoryReader, HistoryRefused
from odradek.core.counts import counted


def run_check(files: Sequence[Path], *, as_json: bool) -> int:
    """Prints the anomalies of the history in these files, and returns the exit code."""
    history = _read(files)
    with spinner(f"Checking {counted(len(history), 'operation')}"):
        found = find_anomalies(history)
    if as_json:
        print_json({"operations": len(history), "anomalies": [_as_json(one) for one in found]}, indent=2)
    else:
        for one in found:
            note(*one.lines())
        note(f"{counted(len(history), 'operation')}: {counted(len(found), 'finding') if found else 'nothing found'}.")
    return EXIT_FAILED if found else EXIT_OK


def _read(files: Sequence[Path]) -> ClientHistory:
    reader = HistoryReader()
    try:
        with progress("Reading", sum(one.stat().st_size for one in files), "B") as advance:
            for path in files:
                _read_file(reader, path, "line" if len(files) == 1 else f"{path} line", advance)
        return reader.end()
    except HistoryRefused as error:
        where = "" if len(files) > 1 else f"{files[0]}, "
        raise CommandError(f"{where}{error}") from error
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}: give files with one operation a line") from error


def _read_file(reader: HistoryReader, path: Path, word: str, advance: Advance) -> None:
    with path.open(encoding="utf-8") as file:
        try:
            for number, line in enumerate(file, 1):
                reader.take(f"{word} {number}", line)
                advance(len(line))
        except UnicodeDecodeError as error:
            raise CommandError(
                f"{path} is not UTF-8 text ({error.reason}): give files with one operation a line"
            ) from error


def _as_json(anomaly: Anomaly) -> dict[str, object]:
    shown = [{"place": one.place, "op": one.kind, "text": one.describe()} for one in anomaly.proof]
    return {name: value for name, value in asdict(anomaly).items() if name != "proof"} | {"proof": shown}
