"""The newest commits of a group in ``__consumer_offsets``."""

from __future__ import annotations

from odradek.client.admin import Admin, offsets_topic
from odradek.client.admin.offsets_topic import Entry
from odradek.codecs.offsets_topic import OffsetCommitRecord, OffsetKey, decode


def newest_commits(admin: Admin, group: str) -> list[Entry]:
    """Returns a group's newest commit record or tombstone for each partition, sorted by topic and partition."""
    newest: dict[OffsetKey, Entry] = {}
    for entry in offsets_topic.entries(admin, group):
        record = decode(entry.key, entry.value)
        if isinstance(record, OffsetCommitRecord):
            newest[record.key] = entry
    return [newest[key] for key in sorted(newest)]
