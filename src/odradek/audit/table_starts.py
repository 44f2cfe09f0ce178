"""The offsets at which a table of ``odradek pipeline`` began to read its partitions, from its own notes.

A Parquet table has them in the newest entry of its log, a Delta table in actions of its log
(docs/notes/table-commits.md). Without them it is not known whether records before the first row are missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from odradek.core.ids import TopicPartition
from odradek.text.json_depth import parse_json

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow import fs

_ENTRIES = "_odradek/batches"
_ENTRY = re.compile(r"log-\d+\.json")
_ACTION = "odradek-start"


def parquet_starts(system: fs.FileSystem, path: str) -> dict[TopicPartition, int]:
    """Returns the starts of a Parquet table; empty if it has none, or if its notes cannot be read."""
    from pyarrow import fs

    try:
        names = [one.base_name for one in system.get_file_info(fs.FileSelector(f"{path}/{_ENTRIES}"))]
        entries = [name for name in names if _ENTRY.fullmatch(name)]
        if not entries:
            return {}
        with system.open_input_stream(f"{path}/{_ENTRIES}/{max(entries)}") as file:
            starts = parse_json(file.read().decode())["state"]["starts"]
        return {TopicPartition(str(topic), int(n)): int(at) for topic, one in starts.items() for n, at in one.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def delta_starts(log: DeltaTable, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the starts of these partitions of a Delta table, as far as its log has them."""
    starts = {tp: log.transaction_version(f"{_ACTION}/{tp.topic}/{tp.partition}") for tp in partitions}
    return {tp: at for tp, at in starts.items() if at is not None and at >= 0}
