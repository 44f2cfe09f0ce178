"""The command line of ``odradek check-history``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.options import CONTEXT, AsJson

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek check-history history.jsonl\n"
    "  odradek check-history producer.jsonl consumer.jsonl\n"
    "  odradek check-history history.jsonl --json"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="check-history", epilog=EPILOG, context_settings=CONTEXT)
def check_history(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="JSON lines, one operation each; together one history. -: standard input."
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Check what clients of a cluster saw: sends, polls, commits, fetched and listed offsets, transactions.

    Finds lost and doubled records, broken order, skipped and repeated polls, lost commits, offsets that go back, and
    transactions that are aborted or half visible. Prints for each the part of the history that proves it.
    docs/checker.md describes the lines. Works for any Kafka cluster. Exit code 1 if something was found.
    """
    from odradek.cli.consistency.check_history import run_check

    raise typer.Exit(run_check(files, as_json=as_json))
