"""A group's newest commits, as they stand in ``__consumer_offsets``."""

from __future__ import annotations

from odradek.client import offsets_topic
from odradek.client.admin import Admin
from odradek.client.offsets_topic import Entry
from odradek.core.records import OffsetCommitRecord, OffsetKey, decode


def newest_commits(admin: Admin, group: str) -> list[Entry]:
    """The newest record for each partition the group ever committed, tombstones too, by topic and partition."""
    newest: dict[OffsetKey, Entry] = {}
    for entry in offsets_topic.entries(admin, group):
        record = decode(entry.key, entry.value)
        if isinstance(record, OffsetCommitRecord):
            newest[record.key] = entry
    return [newest[key] for key in sorted(newest)]
