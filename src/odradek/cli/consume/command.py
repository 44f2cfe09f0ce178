"""The command line of ``odradek consume``."""

from __future__ import annotations

import typer

from odradek.cli.consume.options import ConsumeLine
from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek consume events -b 127.0.0.1:9092\n"
    "  odradek consume events --tail 10 -b 127.0.0.1:9092\n"
    "  odradek consume events:0,1 --from 2026-01-31T12:00:00 --json -b 127.0.0.1:9092\n"
    "  odradek consume events --from -5 --follow -b 127.0.0.1:9092\n"
    "  odradek consume events --key order-17 --grep 'error|refused' -b 127.0.0.1:9092\n"
    "  odradek consume events --from 1000 --output events.parquet -b 127.0.0.1:9092\n"
    "  odradek consume events --format csv --output /dev/stdout -b 127.0.0.1:9092 | head\n"
    "  odradek consume events --group billing --follow -b 127.0.0.1:9092\n"
    "  odradek consume orders --schema-registry http://[::1]:8081 -b [::1]:9092\n"
    "  odradek consume events --isolation read_committed -b 127.0.0.1:9092\n"
    "  odradek consume --topic events --from-beginning --max-messages 5 --bootstrap-server 127.0.0.1:9092"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="consume", epilog=EPILOG, context_settings=CONTEXT)
@of_fields()
def consume(line: ConsumeLine) -> None:
    """Print a topic's records up to the present end of its log; with --follow, also the records that arrive later.

    With --isolation read_committed, the end is before the first record of an open transaction.

    Lines are the values, with unchanged bytes unless the output is a terminal. In JSON, keys, values and header values
    are texts, or {"base64": "…"} if they are not UTF-8. A timestamp is ISO 8601, null for a record without one, and
    milliseconds outside the years 1 to 9999. CSV holds only text: a key or value that is not UTF-8 is an error.
    `odradek produce` reads JSON, CSV and Parquet back.
    """
    from odradek.cli.consume.consume import run_consume

    raise typer.Exit(run_consume(line))
