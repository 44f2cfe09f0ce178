"""The command line of ``odradek top``."""

from __future__ import annotations

import typer

from odradek.cli.monitor.options import ReaderLine
from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT
from odradek.cli.top.options import TopLine

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek top -b 127.0.0.1:9092\n"
    "  odradek top --url http://127.0.0.1:8000 --token-file token --sort -lag\n"
    "  odradek top -b 127.0.0.1:9092 --once\n"
    "  odradek top --url http://127.0.0.1:8000 --once --json --search billing"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="top", epilog=EPILOG, context_settings=CONTEXT)
@of_fields(ReaderLine)
def top(line: TopLine) -> None:
    """Show the groups of a cluster in the terminal: lag, time lag, rates, state, status and findings.

    It follows a cluster (-b), or shows what a running `odradek monitor` follows (--url). Keys: / searches, a letter
    sorts (the last line names them), Enter opens a group, Esc goes back, q ends. It changes nothing in Kafka.
    """
    from odradek.cli.top.top import run_top

    run_top(line)
