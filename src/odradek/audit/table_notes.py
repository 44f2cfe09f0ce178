"""Which offsets a table of ``odradek pipeline`` has read of its partitions, from its own notes.

A Parquet table has them in the newest entry of its log, a Delta table in actions of its log, an Iceberg table in a
property (docs/notes/table-commits.md). Without them it is not known whether records before the first row, or behind the
last one, are missing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.core.ids import TopicPartition
from odradek.text.json_depth import parse_json

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow import fs

_ENTRIES = "_odradek/batches"
STATE_PROPERTY = "odradek.state"
"""The property of an Iceberg table with its notes."""
_TABLE = "_odradek/table.json"
_UNCOMMITTED = "_odradek/read_uncommitted"
_ENTRY = re.compile(r"log-\d+\.json")
_START_ACTION, _END_ACTION = "odradek-start", "odradek-at"
_KEY_OF_REPLAYS = "replay-"
"""The start of the keys of replays: their offsets are those of the ranges that were asked for."""


class NotedRange(NamedTuple):
    """The offsets that a table has read of a partition. None: not known."""

    start: int | None = None
    end: int | None = None
    """The offset at which the table goes on."""


Notes = Callable[[Collection[TopicPartition], Mapping[str, str]], Mapping[TopicPartition, NotedRange]]
"""Returns the ranges of these partitions, as far as the table has them, and of others that it names. The other argument
has the ids of topics, as far as they are known."""


def parquet_notes(system: fs.FileSystem, path: str) -> dict[TopicPartition, NotedRange]:
    """Returns the ranges of a Parquet table; empty if it has none, or if its notes cannot be read."""
    from pyarrow import fs

    try:
        names = [one.base_name for one in system.get_file_info(fs.FileSelector(f"{path}/{_ENTRIES}"))]
        entries = [name for name in names if _ENTRY.fullmatch(name)]
        if not entries:
            return {}
        with system.open_input_stream(f"{path}/{_ENTRIES}/{max(entries)}") as file:
            state = parse_json(file.read().decode())["state"]
        return _ranges_of(state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def iceberg_notes(text: str | None) -> dict[TopicPartition, NotedRange]:
    """Returns the ranges of an Iceberg table; empty if it has none, or if its notes cannot be read. ``text``: its
    property ``STATE_PROPERTY``."""
    try:
        return {} if text is None else _ranges_of(parse_json(text)["state"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _ranges_of(state: Mapping[str, Any]) -> dict[TopicPartition, NotedRange]:
    """Returns the ranges in the state of a table."""
    starts = _by_partition(state.get("starts") or {})
    ends: dict[TopicPartition, int] = {}
    for name, query in state.get("queries", {}).items():  # the last one is the newest
        if not name.startswith(_KEY_OF_REPLAYS):
            ends = _by_partition(query.get("offsets") or {})
    return {tp: NotedRange(starts.get(tp), ends.get(tp)) for tp in sorted(starts | ends)}


def reads_committed(text_of: Callable[[str], str | None]) -> bool:
    """Returns whether all runs of a pipeline have read the records of this table with ``read_committed``, by its own
    notes; False if that is not known. ``text_of``: returns the text of a file in the table; None if there is none."""
    try:
        text = None if text_of(_UNCOMMITTED) is not None else text_of(_TABLE)
        return text is not None and bool(parse_json(text).get("isolation") == "read_committed")
    except (OSError, ValueError, AttributeError):
        return False


def texts_in(system: fs.FileSystem, path: str) -> Callable[[str], str | None]:
    """Returns what reads the files of a table, for ``reads_committed``."""
    from pyarrow import fs

    def text_of(name: str) -> str | None:
        if system.get_file_info(f"{path}/{name}").type == fs.FileType.NotFound:
            return None
        with system.open_input_stream(f"{path}/{name}") as file:
            text: str = file.read().decode()
        return text

    return text_of


def _by_partition(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, int(number)): int(at) for topic, one in offsets.items() for number, at in one.items()}


def delta_notes(
    log: DeltaTable, partitions: Collection[TopicPartition], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, NotedRange]:
    """Returns the ranges of these partitions of a Delta table, as far as its log has them."""
    ranges = {
        tp: NotedRange(_number(log, _START_ACTION, tp), _end(log, tp, topic_ids.get(tp.topic))) for tp in partitions
    }
    return {tp: noted for tp, noted in ranges.items() if noted != NotedRange()}


def _end(log: DeltaTable, tp: TopicPartition, topic_id: str | None) -> int | None:
    """Returns the offset of the topic with this id, else the one that was noted without an id."""
    if topic_id is not None:
        digest = int(hashlib.sha256(topic_id.encode()).hexdigest()[:16], 16) & ((1 << 63) - 1)
        at = _number(log, _END_ACTION, tp, f"/{digest:016x}")
        if at is not None:
            return at
    return _number(log, _END_ACTION, tp)


def _number(log: DeltaTable, kind: str, tp: TopicPartition, topic_id: str = "") -> int | None:
    number = log.transaction_version(f"{kind}/{tp.topic}/{tp.partition}{topic_id}")
    return None if number is None or number < 0 else number
