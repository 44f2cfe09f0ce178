"""The options of ``odradek consume``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.options import Bootstrap, CommandConfig, only_topic
from odradek.cli.records import formats
from odradek.cli.records.schema_values import SchemaRegistryOption


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
            metavar="earliest|latest|OFFSET|-N|-SPAN|TIME",
            help="Where to begin; -N is N records before the end of each partition, -2h the last two hours. A TIME such"
            " as 2026-01-31T12:00 is in UTC unless +01:00 or Z follows. Default: earliest. With --group: where to begin"
            " in partitions without a commit.",
        ),
    ] = None
    stop: Annotated[
        str | None,
        typer.Option(
            "--to",
            "--until",
            metavar="OFFSET|-N|-SPAN|TIME",
            help="Where to stop: before this offset, or before the first record of this time or a later one.",
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
    schema_registry: SchemaRegistryOption = None
    command_config: CommandConfig = None

    @property
    def topic(self) -> str:
        """The topic with its partitions. Raises CommandError."""
        return only_topic(self.topic_name, self.topic_option, "TOPIC[:0,1]")
