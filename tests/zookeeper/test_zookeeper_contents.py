"""The fields of a commit that each store keeps."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from zookeeper.conftest import Tool

from odradek import OffsetAndMetadata
from odradek.client import Admin
from odradek.client.admin import offsets_topic
from odradek.codecs import offsets_topic as records
from odradek.core.ids import TopicPartition as Tp


@pytest.mark.claim(117)
def test_zookeeper_keeps_only_the_offset_and_the_offsets_topic_keeps_more(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str
) -> None:
    admin.alter_group_offsets(group, {Tp(filled, 0): OffsetAndMetadata(3, 0, "why")})
    assert tool("migrate", "--to", "zookeeper", "--group", group, "--execute") == 0
    path = f"/consumers/{group}/offsets/{filled}/0"
    assert kazoo.get(path)[0] == b"3"
    assert kazoo.get_children(path) == []
    found = [records.decode(entry.key, entry.value) for entry in offsets_topic.entries(admin, group)]
    (commit,) = [one for one in found if isinstance(one, records.OffsetCommitRecord)]
    assert commit.value is not None
    assert (commit.value.offset, commit.value.metadata, commit.value.leader_epoch) == (3, "why", 0)
    assert commit.value.commit_timestamp_ms > 1_700_000_000_000
