"""``odradek produce``: lines, JSON lines, CSV or Parquet into a topic of any Kafka."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.cli.options import client_config
from odradek.cli.terminal import CommandError, note

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("lines", "json", "csv", "parquet")
ROWS = 10_000


def run_produce(topic: str, file: Path | None, form: str, bootstrap: str, command_config: Path | None) -> int:
    """Sends a file, or standard input, row by row and waits until all of it is acknowledged."""
    from odradek.client.producer import Producer

    if form not in FORMATS:
        raise CommandError(f"--format {form!r}: one of {', '.join(FORMATS)}")
    if form in {"csv", "parquet"} and file is None:
        raise CommandError(f"--format {form}: give --file, it cannot be read from standard input")
    count = 0
    try:
        with Producer(client_config(bootstrap, 5_000, command_config)) as producer:
            for batch in _batches(file, form):
                producer.send_batch(topic, batch)
                count += batch.num_rows
    except OSError as error:
        raise CommandError(f"--file {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(f"{file or 'standard input'}: {error}") from error
    note(f"{count:,} records sent to {topic}, each acknowledged.")
    return 0


def _batches(file: Path | None, form: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if form == "parquet":
        import pyarrow.parquet as pq

        yield from pq.ParquetFile(file).iter_batches(ROWS)
    elif form == "csv":
        import pyarrow.csv as pc

        yield from pc.open_csv(file)
    else:
        read = _json_row if form == "json" else _line_row
        source = file.open("rb") if file is not None else sys.stdin.buffer
        schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
        with source:
            while chunk := list(islice(source, ROWS)):
                yield pa.RecordBatch.from_pylist([read(line.rstrip(b"\r\n")) for line in chunk], schema)


def _line_row(line: bytes) -> dict[str, Any]:
    return {"value": line}


def _json_row(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or not row.keys() <= {"key", "value"}:
        raise ValueError(f"expected an object with key and value, not {line[:60].decode(errors='replace')}")
    return {name: _bytes(value) for name, value in row.items()}


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return value.encode() if value is not None else None
    return json.dumps(value, separators=(",", ":")).encode()
