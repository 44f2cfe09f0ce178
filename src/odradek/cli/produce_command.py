"""The command line of ``odradek produce``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli import formats
from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT, Bootstrap, CommandConfig
from odradek.cli.topic_argument import only_topic

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek produce events --file events.parquet -b 127.0.0.1:9092\n"
    "  odradek produce events --format json -b 127.0.0.1:9092 < events.jsonl\n"
    "  odradek produce flights --file flights.csv --key flight_number -b 127.0.0.1:9092\n"
    "  odradek produce --topic events --bootstrap-server 127.0.0.1:9092"
)


@dataclass(frozen=True, kw_only=True)
class ProduceLine:
    """The options of the command."""

    topic_name: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic to send to.")] = None
    bootstrap: Bootstrap
    topic_option: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="The topic, as in Kafka's tools.")
    ] = None
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="The file to send. Default: standard input.")
    ] = None
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar=formats.METAVAR,
            help="Format of the input; json is one object a line. Default: that of the extension of --file, else"
            " lines.",
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="COLUMN", help="Send each row of a CSV or Parquet table as JSON, with this column as key."
        ),
    ] = None
    no_create: Annotated[bool, typer.Option("--no-create", help="Refuse a topic that does not exist.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the number of sent records as JSON.")] = False
    command_config: CommandConfig = None

    @property
    def topic(self) -> str:
        """The topic. Raises CommandError."""
        return only_topic(self.topic_name, self.topic_option)


app = typer.Typer(rich_markup_mode=None)


@app.command(name="produce", epilog=EPILOG, context_settings=CONTEXT)
@of_fields()
def produce(line: ProduceLine) -> None:
    """Send records and wait for the acknowledgements.

    The broker creates a topic that does not exist if its auto.create.topics.enable is true.

    Columns of CSV and Parquet, and fields of JSON: value, and optionally key, headers, partition, timestamp. JSON, CSV
    and Parquet written by `odradek consume` can be sent unchanged. Cells of CSV are text, an empty cell is null, and
    headers in CSV are JSON.

    A CSV or Parquet table without a column value is an ordinary table: each row is sent as a JSON object. --key COLUMN
    names the column whose text is the record's key.

    A timestamp is milliseconds or ISO 8601. A record without a timestamp gets the time of sending. Times before 1970
    cannot be sent.

    Keys, values and header values in JSON: a text, null, {"base64": "…"} for bytes that are not UTF-8, or any other
    JSON, which is sent as JSON text. An object with base64 as its only key is always bytes, or refused. To send such
    an object as JSON, give it as a text.
    """
    from odradek.cli.produce import run_produce

    raise typer.Exit(run_produce(line))
