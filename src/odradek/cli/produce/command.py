"""The command line of ``odradek produce``."""

from __future__ import annotations

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT
from odradek.cli.produce.options import ProduceLine

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek produce events --file events.parquet -b 127.0.0.1:9092\n"
    "  odradek produce events --format json -b 127.0.0.1:9092 < events.jsonl\n"
    "  odradek produce flights --file flights.csv --key flight_number -b 127.0.0.1:9092\n"
    "  odradek produce orders --schema-registry http://[::1]:8081 -b [::1]:9092\n"
    "  odradek produce --topic events --bootstrap-server 127.0.0.1:9092"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="produce", epilog=EPILOG, context_settings=CONTEXT)
@of_fields()
def produce(line: ProduceLine) -> None:
    """Send records and wait for the acknowledgements.

    The broker creates a topic that does not exist if its auto.create.topics.enable is true.

    Columns of CSV and Parquet, and fields of JSON: value, and optionally key, headers, partition, timestamp. JSON, CSV
    and Parquet written by `odradek consume` can be sent unchanged. Cells of CSV are text, an empty cell is null, and
    headers in CSV are JSON.

    A CSV or Parquet table without a column value is an ordinary table: each row is sent as a JSON object. --key COLUMN
    names the column whose text is the record's key. The header shows whether commas, semicolons, tabs or | separate
    the cells of CSV, unless --delimiter does.

    A timestamp is milliseconds or ISO 8601. A record without a timestamp gets the time of sending. Times before 1970,
    and times finer than a millisecond, cannot be sent.

    Keys, values and header values in JSON: a text, null, {"base64": "…"} for bytes that are not UTF-8, or any other
    JSON, which is sent as JSON text. An object with base64 as its only key is always bytes, or refused. To send such
    an object as JSON, give it as a text.
    """
    from odradek.cli.produce.produce import run_produce

    raise typer.Exit(run_produce(line))
