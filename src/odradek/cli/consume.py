"""``odradek consume``: records of a topic to the terminal, as JSON lines or into Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.cli.options import connect, parse_partitions
from odradek.cli.terminal import CommandError, note, progress

if TYPE_CHECKING:
    import pyarrow as pa


def run_consume(
    topic: str, start: str, *, output: Path | None, as_json: bool, bootstrap: str, command_config: Path | None
) -> int:
    """Reads from ``start`` (earliest, an offset, or a time in ISO 8601) to what is the end of the log now."""
    from odradek.client.model import EARLIEST, LATEST
    from odradek.client.reader import read_range
    from odradek.core.ids import NO_OFFSET, TopicPartition
    from odradek.lag.reset import datetime_ms

    if output is not None and as_json:
        raise CommandError("--output writes Parquet: leave out --json")
    topics, single = parse_partitions([topic])
    exact = int(start) if start.isascii() and start.isdigit() else None
    moment = EARLIEST if start == "earliest" or exact is not None else datetime_ms(start)
    with connect(bootstrap, 5_000, command_config) as admin:
        chosen = admin.partitions(topics[0]) if topics else [TopicPartition(*one) for one in single]
        starts = admin.list_offsets(dict.fromkeys(chosen, moment))
        ends = admin.list_offsets(dict.fromkeys(chosen, LATEST))
        config = admin.config
    ranges = {
        tp: (ends[tp].offset if starts[tp].offset == NO_OFFSET else max(exact or 0, starts[tp].offset), ends[tp].offset)
        for tp in chosen
    }
    batches = (
        batch for tp, (first, end) in ranges.items() if first < end for batch in read_range(config, tp, first, end)
    )
    total = sum(max(0, end - first) for first, end in ranges.values())
    if output is not None:
        count = _write(output, batches, total)
        note(f"{count:,} records of {topic} written to {output}.")
        return 0
    for batch in batches:
        for row in batch.to_pylist():
            print(json.dumps(_plain(row)) if as_json else _text(row["value"]))
    return 0


def _write(output: Path, batches: Iterator[pa.RecordBatch], total: int) -> int:
    import pyarrow.parquet as pq

    from odradek.batches.arrow import schema

    count = 0
    try:
        with pq.ParquetWriter(output, schema()) as writer, progress("Reading", total, "records") as advance:
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
                advance(batch.num_rows)
    except OSError as error:
        raise CommandError(f"--output {output}: {error.strerror or error}") from error
    return count


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode(errors="replace")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: _text(v) if isinstance(v, bytes) else v for name, v in row.items() if name != "timestampType"}
    shown["timestamp"] = None if row["timestamp"] is None else row["timestamp"].isoformat()
    return shown
