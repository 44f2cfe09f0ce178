"""``--schema-registry`` of ``consume`` and ``produce``: values with the ids of their schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.batches.row_sets import RowBatch
from odradek.cli.command_config import read_properties
from odradek.cli.records.record_csv import NotText
from odradek.cli.records.record_lines import Batch
from odradek.cli.terminal import EXIT_FAILED, CommandError

if TYPE_CHECKING:
    from odradek.registry.client import RegistryClient
    from odradek.registry.values import RegistryDecoder

REGISTRY_OPTION = "--schema-registry"
SchemaRegistryOption = Annotated[
    str | None,
    typer.Option(
        REGISTRY_OPTION,
        metavar="URL",
        help="Values are Avro, JSON or Protobuf with a schema of this registry, as http://HOST:8081. Its login and TLS:"
        " schema.registry.basic.auth.user.info and so on in the file of --command-config.",
    ),
]
REGISTRY_PREFIX = "schema.registry."


class Undecoded(NotText):
    """A value cannot be decoded. ``row``: the number of records before it in its batch. ``is_decodable_later``: the
    registry did not answer."""

    def __init__(self, reason: str, batch: Batch, row: int, *, is_decodable_later: bool = False) -> None:
        self.is_decodable_later = is_decodable_later
        if isinstance(batch, RowBatch):
            (self.topic, self.partition), self.offset = batch.partition, batch.rows[row].offset
        else:
            self.topic, self.partition, self.offset = (
                batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")
            )
        self.row = row
        place = f"offset {self.offset} of {self.topic}-{self.partition}"
        CommandError.__init__(self, f"the value at {place} cannot be decoded: {reason}", EXIT_FAILED)


def shown_url(url: str) -> str:
    """Returns the address without a user and a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def registry_client(url: str, command_config: Path | None) -> RegistryClient:
    """Returns a client with the settings of the properties file. Raises ConfigError, CommandError."""
    from odradek.registry.client import SETTINGS, RegistryClient

    given = {} if command_config is None else read_properties(command_config)
    named = {
        name.removeprefix(REGISTRY_PREFIX): value for name, value in given.items() if name.startswith(REGISTRY_PREFIX)
    }
    return RegistryClient(url, {name: value for name, value in named.items() if name in SETTINGS})


def decoded(batch: Batch, decoder: RegistryDecoder) -> Batch:
    """Returns a batch with JSON texts as values. Raises Undecoded."""
    values = [row.value for row in batch.rows] if isinstance(batch, RowBatch) else batch.column("value").to_pylist()
    texts = [None if value is None else _text(value, decoder, batch, row) for row, value in enumerate(values)]
    if isinstance(batch, RowBatch):
        rows = [row._replace(value=text) for row, text in zip(batch.rows, texts, strict=True)]
        return RowBatch(rows, batch.partition, batch.timestamp_type, batch.columns)
    import pyarrow as pa

    column = batch.schema.get_field_index("value")
    field = batch.schema.field(column)
    return batch.set_column(column, field, pa.array(texts, field.type))


def _text(value: bytes, decoder: RegistryDecoder, batch: Batch, row: int) -> bytes:
    from odradek.registry.client import RegistryRefusal, RegistryUnavailable
    from odradek.registry.values import Undecodable

    try:
        return json.dumps(decoder.decode(value), ensure_ascii=False).encode()
    except (Undecodable, RegistryUnavailable, RegistryRefusal) as error:
        away = isinstance(error, RegistryUnavailable)
        raise Undecoded(str(error), batch, row, is_decodable_later=away) from error
