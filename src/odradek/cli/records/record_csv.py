"""Records as rows of CSV, one RecordBatch at a time; ``odradek produce --format csv`` reads them back.

An empty cell is null, a quoted empty cell an empty text. Times and headers are written as in JSON lines. CSV holds only
text: a key or value that is not UTF-8 is an error with the record's position. The key of a header has U+FFFD for such
bytes, as in JSON lines and in Kafka's own client.
"""

from __future__ import annotations

from odradek.cli.records.record_lines import JSON_COLUMNS, Batch, json_fields
from odradek.cli.terminal import EXIT_FAILED, CommandError

HEADER = ",".join(JSON_COLUMNS).encode() + b"\n"
_SPECIAL = frozenset('",\r\n')


class NotText(CommandError):
    """A key or value is not UTF-8. ``row``: the number of records before it in its batch, which CSV can hold."""

    def __init__(self, what: str, topic: str, partition: int, offset: int, row: int) -> None:
        super().__init__(
            f"the {what} at offset {offset} of {topic}-{partition} is not UTF-8, and CSV holds only text: use --format "
            "json or parquet",
            EXIT_FAILED,
        )
        self.topic, self.partition, self.offset, self.row = topic, partition, offset, row


def csv_lines(batch: Batch) -> bytes:
    """Returns one row for each record, with the columns of ``JSON_COLUMNS``. ``batch`` has only one partition.

    Raises NotText.
    """
    if not batch.num_rows:
        return b""
    (topic, partition), rows = json_fields(batch)
    lines = []
    for row, (key, value, offset, time, headers) in enumerate(rows):
        cells = []
        for name, data in (("key", key), ("value", value)):
            try:
                cells.append("" if data is None else _cell(data.decode()))
            except UnicodeDecodeError:
                raise NotText(name, topic, partition, offset, row) from None
        shown = "" if headers == "null" else _cell(headers)
        moment = "" if time == "null" else time.strip('"')
        lines.append(f"{cells[0]},{cells[1]},{_cell(topic)},{partition},{offset},{moment},{shown}\n")
    return "".join(lines).encode()


def _cell(text: str) -> str:
    if text and not _SPECIAL.intersection(text):
        return text
    return '"' + text.replace('"', '""') + '"'
