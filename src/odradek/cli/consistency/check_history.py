"""``odradek check-history``: reads files of operations and prints what must not be in them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from io import TextIOWrapper
from math import isinf
from pathlib import Path
from typing import TextIO

from odradek.cli.progress_lines import LinePace, progress_lines
from odradek.cli.terminal import (
    EXIT_FAILED,
    EXIT_OK,
    Advance,
    CommandError,
    note,
    print_json,
    progress,
    spinner,
    warning_lines,
)
from odradek.consistency.anomalies import Anomaly
from odradek.consistency.checks import find_anomalies, unchecked
from odradek.consistency.client_history import ClientHistory, HistoryReader, HistoryRefused
from odradek.core.counts import counted

STANDARD_INPUT = Path("-")
PACE = LinePace(first_s=3.0)
"""Most histories are checked before the first line."""


def run_check(files: Sequence[Path], *, as_json: bool) -> int:
    """Prints the anomalies of the history in these files, and returns the exit code."""
    history = _read(files)
    checked = ""

    def step(label: str) -> None:
        nonlocal checked
        checked = label
        show(f"Checking {label}")

    with (
        spinner(f"Checking {counted(len(history), 'operation')}") as show,
        progress_lines(lambda: f"Checking {checked or 'the history'}…", PACE),
    ):
        found = find_anomalies(history, step)
    left_open = unchecked(history)
    if as_json:
        shown = [_as_json(one) for one in found]
        print_json({"operations": len(history), "anomalies": shown, "not_checked": left_open}, indent=2)
    else:
        for one in found:
            note(*one.lines())
        note(*(f"Not checked: {one}." for one in left_open))
        note(f"{counted(len(history), 'operation')}: {counted(len(found), 'finding') if found else 'nothing found'}.")
    return EXIT_FAILED if found else EXIT_OK


def _read(files: Sequence[Path]) -> ClientHistory:
    if files.count(STANDARD_INPUT) > 1:
        raise CommandError("- is standard input: give it once")
    reader = HistoryReader()
    try:
        with progress("Reading", sum(one.stat().st_size for one in files if one != STANDARD_INPUT), "B") as advance:
            for path in files:
                _read_file(reader, path, "line" if len(files) == 1 else f"{path} line", advance)
        return reader.end()
    except HistoryRefused as error:
        where = "" if len(files) > 1 else f"{files[0]}, "
        raise CommandError(f"{where}{error}") from error
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}: give files with one operation a line") from error


def _opened(path: Path) -> TextIO:
    """A byte order mark, which some systems write at the begin of a file, is no part of its first line."""
    if path == STANDARD_INPUT:
        return TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _read_file(reader: HistoryReader, path: Path, word: str, advance: Advance) -> None:
    before = reader.count
    with _opened(path) as file:
        try:
            for number, line in enumerate(file, 1):
                reader.take(f"{word} {number}", line)
                advance(len(line))
        except UnicodeDecodeError as error:
            raise CommandError(
                f"{path} is not UTF-8 text ({error.reason}): give files with one operation a line"
            ) from error
    if reader.count == before and word != "line":
        warning_lines(f"odradek: {path} has no operation: what its client did is not checked")


def _as_json(anomaly: Anomaly) -> dict[str, object]:
    shown = [
        {
            "place": one.place, "op": one.kind, "client": one.client, "start": one.start,
            "end": None if isinf(one.end) else one.end, "text": one.describe(),
        }
        for one in anomaly.proof
    ]  # fmt: skip
    return {name: value for name, value in asdict(anomaly).items() if name != "proof"} | {"proof": shown}
