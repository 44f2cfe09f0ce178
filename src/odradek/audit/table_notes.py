"""Which offsets a table of ``odradek pipeline`` has read of its partitions, from its own notes.

A Parquet table has them in the newest entry of its log, a Delta table in actions of its log, an Iceberg table in a
property (docs/notes/table-commits.md). Without them it is not known whether records before the first row, or behind the
last one, are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.notes import (
    BATCHES,
    READ_UNCOMMITTED,
    STATE,
    TABLE_FILE,
    entry_number,
    is_begun_committed,
    offset_action,
    start_action,
)
from odradek.pipelines.commit.state import of_json, topic_of
from odradek.text.json_depth import parse_json

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow import fs


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

    folder = f"{path}/{STATE}/{BATCHES}"
    try:
        names = [one.base_name for one in system.get_file_info(fs.FileSelector(folder))]
        entries = [name for name in names if entry_number(name) is not None]
        if not entries:
            return {}
        with system.open_input_stream(f"{folder}/{max(entries)}") as file:
            return noted_ranges(file.read().decode())
    except (OSError, UnicodeDecodeError):
        return {}


def noted_ranges(text: str) -> dict[TopicPartition, NotedRange]:
    """Returns the ranges in the text of a note; empty if it cannot be read. An Iceberg table has it in a property."""
    try:
        state = of_json(parse_json(text)["state"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    newest = state.newest_query
    ends = {} if newest is None else newest.offsets or {}
    return {tp: NotedRange(state.starts.get(tp), ends.get(tp)) for tp in sorted({*state.starts, *ends})}


def reads_committed(text_of: Callable[[str], str | None]) -> bool:
    """Returns whether all runs of a pipeline have read the records of this table with ``read_committed``, by its own
    notes; False if that is not known. ``text_of``: returns the text of a file in the table; None if there is none."""
    try:
        text = None if text_of(f"{STATE}/{READ_UNCOMMITTED}") is not None else text_of(f"{STATE}/{TABLE_FILE}")
        return text is not None and is_begun_committed(text)
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


def delta_notes(
    log: DeltaTable, partitions: Collection[TopicPartition], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, NotedRange]:
    """Returns the ranges of these partitions of a Delta table, as far as its log has them."""
    ranges = {
        tp: NotedRange(_number(log, start_action(tp)), _end(log, tp, topic_ids.get(tp.topic))) for tp in partitions
    }
    return {tp: noted for tp, noted in ranges.items() if noted != NotedRange()}


def _end(log: DeltaTable, tp: TopicPartition, topic_id: str | None) -> int | None:
    """Returns the offset of the topic with this id, else the one that was noted without an id."""
    at = None if topic_id is None else _number(log, offset_action(tp, topic_of(topic_id)))
    return _number(log, offset_action(tp, None)) if at is None else at


def _number(log: DeltaTable, action: str) -> int | None:
    number = log.transaction_version(action)
    return None if number is None or number < 0 else number
