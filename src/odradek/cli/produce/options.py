"""The options of ``odradek produce``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.options import Bootstrap, CommandConfig, only_topic
from odradek.cli.records import formats
from odradek.cli.records.schema_values import SchemaRegistryOption


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
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            metavar="CHAR",
            help="The character between cells of CSV, or tab. Default: the comma; in a header without a comma, its"
            " semicolon, tab or |.",
        ),
    ] = None
    schema_registry: SchemaRegistryOption = None
    value_schema: Annotated[
        Path | None,
        typer.Option(
            "--value-schema",
            metavar="FILE",
            help="With --schema-registry: register this schema (.avsc, .json or .proto), and encode values with it."
            " Default: the newest schema of the subject.",
        ),
    ] = None
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="NAME", help="The subject of the values' schema. Default: TOPIC-value."),
    ] = None
    no_create: Annotated[bool, typer.Option("--no-create", help="Refuse a topic that does not exist.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the number of sent records as JSON.")] = False
    command_config: CommandConfig = None

    @property
    def topic(self) -> str:
        """The topic. Raises CommandError."""
        return only_topic(self.topic_name, self.topic_option)
