"""Where a table has its notes: names of files, of actions in Delta's log, of properties of Iceberg. Pure.

The formats write them, and the audit reads them.
"""

from __future__ import annotations

import re

from odradek.core.ids import TopicPartition
from odradek.text.json_depth import parse_json

STATE = "_odradek"
"""The folder of the notes in a table's folder. The next four names are in it."""
TABLE_FILE = "table.json"
BATCHES = "batches"
"""The folder with the entries of a log in files."""
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
"""The table's file says with which level it was begun. A file ``read_uncommitted`` says that a later run did not read
with ``read_committed``."""
ISOLATION = "isolation"
STATE_PROPERTY, RUN_PROPERTY = "odradek.state", "odradek.run"
"""A property of an Iceberg table, which is in the summaries of its snapshots, too; and one of these summaries."""
OFFSET_ACTION = "odradek-at"
_ENTRY = re.compile(r"log-(\d+)\.json")


def entry_name(number: int) -> str:
    """Returns the name of the file of an entry."""
    return f"log-{number:020d}.json"


def entry_number(name: str) -> int | None:
    """Returns the number of the entry in a file; None if the file has none."""
    found = _ENTRY.fullmatch(name)
    return None if found is None else int(found[1])


def is_begun_committed(text: str) -> bool:
    """Returns whether a table was begun with ``read_committed``, by the text of its file. Raises ValueError."""
    return bool(parse_json(text).get(ISOLATION) == READ_COMMITTED)


def offset_action(tp: TopicPartition, topic: str | None) -> str:
    """Returns the name of the action with a table's offset. ``topic``: the digest of its id; None if it is unknown."""
    return f"{OFFSET_ACTION}/{tp.topic}/{tp.partition}" + ("" if topic is None else f"/{topic}")


def start_action(tp: TopicPartition) -> str:
    """Returns the name of the action with the offset at which a table began to read a partition."""
    return f"odradek-start/{tp.topic}/{tp.partition}"
