"""What a pipeline has seen of topics and group when it committed a micro-batch, for the planner of the next one.

A pipeline's driver commits a micro-batch after the table has it, and Spark plans the next micro-batch at once, in
another process on the same machine. Both need the partitions, the log ends and the group's commits. So the driver
leaves what it has seen in a file, and the planner makes no request of its own if that is young enough. The planner
ignores a file that is of another micro-batch, old, or not there.

A reset that comes between the two is seen one micro-batch later: the driver looks at the group again before it commits
that micro-batch, and never commits over a reset.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from odradek.core.errors import ConfigError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.offsets.source_offset import Offsets, SourceOffset, TopicIds, flat, nested
from odradek.text.json_depth import parse_json

OPTION = "groupLook"
"""The option of ``format("odradek")`` with the path of the file."""
_USABLE_S = 1.0


@dataclass(frozen=True)
class GroupLook:
    """``after``: the micro-batch that is committed. ``ends``: the log ends of all partitions that the query reads.
    ``epochs``: the epochs of the leaders that reported them. ``committed``: the group's commits, with this one."""

    after: SourceOffset
    ends: Offsets
    epochs: Offsets
    ids: TopicIds
    committed: Mapping[TopicPartition, OffsetAndMetadata]

    def write(self, path: str) -> None:
        """Replaces the file. Raises nothing: without a file the planner looks itself."""
        known = {topic: str(topic_id) for topic, topic_id in self.ids.items() if topic_id is not None}
        content = {
            "seen": time.monotonic(),
            "after": self.after.to_json(),
            "ends": nested(self.ends),
            "epochs": nested(self.epochs),
            "ids": {topic: known.get(topic) for topic in self.ids},
            "committed": nested({tp: list(commit) for tp, commit in self.committed.items()}),
        }
        with contextlib.suppress(OSError):
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(f"{path}.new", path)


def group_look(path: str | None, after: Mapping[str, object]) -> GroupLook | None:
    """Returns what the driver has seen when it committed the micro-batch that ends ``after``; None if the file does not
    say that, or is older than a second. Removes the file, so that it is used once."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            content = parse_json(file.read())
        os.unlink(path)
        # All processes of a machine have the same monotonic clock. Where they have not, the difference is no second.
        if content["after"] != after or not 0 <= time.monotonic() - content["seen"] < _USABLE_S:
            return None
        return GroupLook(
            SourceOffset.from_json(after),
            flat(content["ends"], int),
            flat(content["epochs"], int),
            {topic: None if topic_id is None else UUID(topic_id) for topic, topic_id in content["ids"].items()},
            flat(content["committed"], lambda found: OffsetAndMetadata(*found)),
        )
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return None
