"""The command line of ``odradek consume``."""

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
    "  odradek consume events -b 127.0.0.1:9092\n"
    "  odradek consume events --tail 10 -b 127.0.0.1:9092\n"
    "  odradek consume events:0,1 --from 2026-01-31T12:00:00 --json -b 127.0.0.1:9092\n"
    "  odradek consume events --from -5 --follow -b 127.0.0.1:9092\n"
    "  odradek consume events --key order-17 --grep 'error|refused' -b 127.0.0.1:9092\n"
    "  odradek consume events --from 1000 --output events.parquet -b 127.0.0.1:9092\n"
    "  odradek consume events --format csv --output /dev/stdout -b 127.0.0.1:9092 | head\n"
    "  odradek consume events --group billing --follow -b 127.0.0.1:9092\n"
    "  odradek consume events --isolation read_committed -b 127.0.0.1:9092\n"
    "  odradek consume --topic events --from-beginning --max-messages 5 --bootstrap-server 127.0.0.1:9092"
)


@dataclass(frozen=True, kw_only=True)
class ConsumeLine:
    """The options of the command."""

    topic_name: Annotated[
        str | None, typer.Argument(metavar="TOPIC[:0,1]", help="The topic, or some of its partitions.")
    ] = None
    bootstrap: Bootstrap
    topic_option: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC[:0,1]", help="The topic, as in Kafka's tools.")
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--offset",
            metavar="earliest|latest|OFFSET|-N|TIME",
            help="Where to begin; -N is N records before the end of each partition. Default: earliest. With --group:"
            " where to begin in partitions without a commit.",
        ),
    ] = None
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin at the earliest record, which is the default.")
    ] = False
    tail: Annotated[
        int | None,
        typer.Option("--tail", min=1, metavar="N", help="Only the N newest records, by their timestamps."),
    ] = None
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only records with this key.")] = None
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="PATTERN", help="Only records whose value contains this regular expression."),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="GROUP", help="Read as a member of this group, and commit the written records."
        ),
    ] = None
    follow: Annotated[bool, typer.Option("--follow", help="Wait for further records, until interrupted.")] = False
    most: Annotated[
        int | None,
        typer.Option("--max-records", "--max", "--max-messages", min=1, metavar="N", help="Stop after N records."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write to this file, in the format of its extension (none: Parquet)."
        ),
    ] = None
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar=formats.METAVAR,
            help="Format of the output. Default: that of the extension of --output, else lines.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: --format json.")] = False
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            "--isolation-level",
            metavar="read_committed|read_uncommitted",
            help="read_committed leaves out records of open and aborted transactions. Default: read_uncommitted.",
        ),
    ] = None
    command_config: CommandConfig = None

    @property
    def topic(self) -> str:
        """The topic with its partitions. Raises CommandError."""
        return only_topic(self.topic_name, self.topic_option, "TOPIC[:0,1]")


app = typer.Typer(rich_markup_mode=None)


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
    from odradek.cli.consume import run_consume

    raise typer.Exit(run_consume(line))
