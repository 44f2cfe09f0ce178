"""``odradek produce --schema-registry``: values that are encoded with a schema of a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.cli.records.schema_values import registry_client
from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.cli.produce.options import ProduceLine
    from odradek.registry.client import RegistryClient
    from odradek.registry.values import RegistryEncoder

_LANGUAGES = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
Rows = list[dict[str, Any]]


class GivenSchema(NamedTuple):
    """The schema of ``produce``: ``text`` of a file, or the newest one of the subject (None)."""

    client: RegistryClient
    subject: str
    text: str | None
    language: str

    def encoder(self) -> RegistryEncoder:
        """Registers the schema, or asks for it. Raises CommandError, RegistryUnavailable."""
        from odradek.registry.client import RegistryRefusal
        from odradek.registry.values import RegistryEncoder

        try:
            if self.text is None:
                return RegistryEncoder(self.client.latest(self.subject))
            return RegistryEncoder(self.client.register(self.subject, self.text, self.language))
        except RegistryRefusal as error:
            remedy = f": add --value-schema FILE, or --subject NAME if it is not {self.subject}"
            raise CommandError(str(error) if self.text is not None else f"{str(error).rstrip('.')}{remedy}") from error


def given_schema(line: ProduceLine) -> GivenSchema | None:
    """Returns the schema of --schema-registry, before any connection. Raises CommandError, ConfigError."""
    file = line.value_schema
    text, language = (None, "") if file is None else _read(file)
    if line.schema_registry is None:
        for option, given in (("--value-schema", file), ("--subject", line.subject)):
            if given is not None:
                raise CommandError(f"{option} {given}: it needs --schema-registry URL")
        return None
    client = registry_client(line.schema_registry, line.command_config)
    return GivenSchema(client, line.subject or f"{line.topic}-value", text, language)


def _read(file: Path) -> tuple[str, str]:
    """Returns the text of a schema and its language. Raises CommandError."""
    language = _LANGUAGES.get(file.suffix.lower())
    if language is None:
        raise CommandError(f"--value-schema {file}: expected a file .avsc (Avro), .json (JSON Schema) or .proto")
    try:
        return file.read_text(), language
    except OSError as error:
        raise CommandError(f"--value-schema {file}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise CommandError(f"--value-schema {file}: it is no text in UTF-8") from None


def encoded_rows(rows: pa.RecordBatch | Rows, encode: RegistryEncoder | None, before: int) -> pa.RecordBatch | Rows:
    """Returns rows with encoded values. Raises ValueError for the first value that does not fit its schema."""
    if encode is None:
        return rows
    if isinstance(rows, list):
        return [
            row | {"value": _encoded(row.get("value"), encode, number)} for number, row in enumerate(rows, before + 1)
        ]
    import pyarrow as pa

    at = rows.schema.get_field_index("value")
    values = [_encoded(value, encode, number) for number, value in enumerate(rows.column(at).to_pylist(), before + 1)]
    return rows.set_column(at, pa.field("value", pa.binary()), pa.array(values, pa.binary()))


def _encoded(value: bytes | str | None, encode: RegistryEncoder, number: int) -> bytes | None:
    """Returns the bytes of a JSON text. ``number``: of the record. Raises ValueError with the number."""
    from odradek.schemas.errors import InvalidValue

    if value is None:
        return None
    try:
        return encode.encode(json.loads(value))
    except ValueError:
        text = value if isinstance(value, str) else value.decode(errors="replace")
        raise ValueError(f"record {number}: {text[:60]!r} is no JSON, which --schema-registry needs") from None
    except InvalidValue as error:
        raise ValueError(f"record {number}: {error}") from None
