"""Dead letters: the tasks that write a table send the records whose values cannot be read to a topic, too.

A task waits for the acknowledgements before it reports its files. So the topic has the letters of a micro-batch before
the table has the micro-batch. A task or a micro-batch that runs again sends its letters again: at least once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from odradek.core.errors import OdradekError, StorageError
from odradek.pipelines.values.reader import ERROR
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from odradek.client.config import ClientConfig
    from odradek.spark.writes.write_options import WriteOptions

TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER = "odradek-topic", "odradek-partition", "odradek-offset"
ERROR_HEADER = "odradek-error"
_HEADERS = (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER, ERROR_HEADER)
"""The headers of a letter, behind those of the record: why the value cannot be read, and where the record is."""
_AT_ONCE_BYTES = 16 << 20
_HEADERS_COLUMN = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def letter_options(client: ClientConfig, topic: str) -> WriteOptions:
    """Returns how letters are sent: to the cluster that is read, with acknowledgements of all replicas in sync. The
    topic is not created: a mistyped name is an error."""
    from odradek.client.producer import ProducerConfig
    from odradek.spark.writes.write_options import WriteOptions  # only for letters: a producer is much to load

    return WriteOptions(replace(client, allow_auto_create_topics=False), ProducerConfig(), topic)


class DeadLetters:
    """The letters of one task. ``options``: None if nothing is sent."""

    def __init__(self, options: WriteOptions | None) -> None:
        self._options = options
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def look_at(self, rows: pa.RecordBatch, records: pa.RecordBatch) -> None:
        """Takes the records whose rows have an error. Raises StorageError if letters cannot be sent."""
        if self._options is None:
            return
        errors = rows.column(ERROR)
        if errors.null_count == len(errors):
            return
        letters = _letters(records, errors)
        self._waiting.append(letters)
        self._waiting_bytes += letters.nbytes
        if self._waiting_bytes > _AT_ONCE_BYTES:
            self.send()

    def send(self) -> None:
        """Sends the letters, and waits until the topic has them. Raises StorageError."""
        from odradek.spark.writes.write_task import write_task

        if self._options is None or not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        try:
            write_task(self._options, iter(waiting))
        except OdradekError as error:
            raise StorageError(
                f"the dead letters cannot be sent to topic {self._options.topic}: {one_line(error)}. Nothing was added "
                "to the table: remove the cause and run the command again, or leave the letters out with --on-bad keep"
            ) from error


def _letters(records: pa.RecordBatch, errors: pa.Array) -> pa.RecordBatch:
    """Returns the records with an error, as the sink takes them."""
    is_bad = errors.is_valid()
    bad, reasons = records.filter(is_bad), errors.filter(is_bad).to_pylist()
    places = zip(*(bad.column(name).to_pylist() for name in ("topic", "partition", "offset")), reasons, strict=True)
    given = bad.column("headers").to_pylist() if "headers" in bad.schema.names else [None] * bad.num_rows
    headers = [
        [*(own or ()), *(_header(name, text) for name, text in zip(_HEADERS, at, strict=True))]
        for own, at in zip(given, places, strict=True)
    ]
    columns = [bad.column("key"), bad.column("value"), pa.array(headers, _HEADERS_COLUMN)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value", "headers"])


def _header(name: str, value: object) -> dict[str, object]:
    return {"key": name, "value": str(value).encode(errors="backslashreplace")}
