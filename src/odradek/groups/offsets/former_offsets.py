"""The committed offsets that unreplicated records have replaced.

A record that only the leader has may be lost. So an OffsetFetch without ``require_stable`` shows what was there before
such records, as in Kafka, which reads the last committed snapshot of its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from odradek.codecs.offsets_topic import StoredOffset
from odradek.core.effects import LogEntry
from odradek.groups.messages import FetchedRows, OffsetFetch, OffsetFetchReply
from odradek.groups.offsets.commit_plan import CommitBlock
from odradek.groups.offsets.committed_offsets import NOTHING, DecodedRecord, Offsets
from odradek.groups.offsets.tombstones import Tombstones

FormerOffsets = dict[str, dict[str, dict[int, StoredOffset | None]]]
"""Group → topic → partition → the offset before a write. None: there was none."""


class FormerState(NamedTuple):
    """The records of a write, and the offsets that they have replaced."""

    entries: Sequence[LogEntry]
    offsets: FormerOffsets


def former_state(entries: Sequence[LogEntry], offsets: Offsets) -> FormerState:
    """Returns what the replay of these records will replace or remove."""
    found: FormerOffsets = {}
    for entry in entries:
        for group_id, topic, partitions in _changed(entry):
            stored = offsets.stored(group_id).get(topic, {})
            rows = found.setdefault(group_id, {}).setdefault(topic, {})
            for partition in partitions:
                rows.setdefault(partition, stored.get(partition))
    return FormerState(entries, found)


def _changed(entry: LogEntry) -> Iterator[tuple[str, str, Sequence[int]]]:
    if isinstance(entry, CommitBlock):
        group_id = entry.plan.request.group_id
        for topic, partitions, _, _ in entry.plan.keys:
            yield group_id, topic, partitions
    elif isinstance(entry, DecodedRecord):
        key = entry.decoded.key
        yield key.group, key.topic, (key.partition,)
    elif isinstance(entry, Tombstones):
        for group, name, some in entry.rows:
            if name is not None:
                yield group, name, some


def _before(former: Iterable[FormerState], group_id: str) -> dict[str, dict[int, StoredOffset | None]]:
    """Returns the replaced offsets of a group as they were before the oldest of some writes. The newest comes first."""
    before: dict[str, dict[int, StoredOffset | None]] = {}
    for write in former:
        for topic, rows in write.offsets.get(group_id, {}).items():
            before.setdefault(topic, {}).update(rows)
    return before


def new_groups(former: Sequence[FormerState], offsets: Offsets) -> set[str]:
    """Returns the groups that had no offsets before these writes, and have some now."""
    return {
        group_id
        for write in former
        for group_id in write.offsets
        if not any(
            value is not None
            for rows in _merged(_before(former, group_id), offsets.stored(group_id)).values()
            for value in rows.values()
        )
    }


def _merged(
    before: Mapping[str, Mapping[int, StoredOffset | None]], now: Mapping[str, Mapping[int, StoredOffset]]
) -> dict[str, dict[int, StoredOffset | None]]:
    return {topic: {**now.get(topic, {}), **before.get(topic, {})} for topic in {**now, **before}}


def committed_fetch(request: OffsetFetch, former: Iterable[FormerState], offsets: Offsets) -> OffsetFetchReply:
    """Returns the reply to a fetch as it was before some writes, of which the newest comes first."""
    before, now = _before(former, request.group_id), offsets.stored(request.group_id)

    def value(topic: str, partition: int) -> StoredOffset | None:
        kept = before.get(topic, {})
        return kept[partition] if partition in kept else now.get(topic, {}).get(partition)

    asked: Iterable[tuple[str, Sequence[int]]]
    if request.topics is None:
        each = _merged(before, now).items()
        known = ((topic, [one for one, stored in rows.items() if stored is not None]) for topic, rows in each)
        asked = [(topic, partitions) for topic, partitions in known if partitions]
    else:
        asked = request.topics
    return OffsetFetchReply(
        topics=[
            (topic, FetchedRows(partitions, [value(topic, one) or NOTHING for one in partitions]))
            for topic, partitions in asked
        ]
    )
