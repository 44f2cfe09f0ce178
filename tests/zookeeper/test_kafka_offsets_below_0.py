"""A group's offset below 0 in Kafka is no offset for ZooKeeper: it is neither copied nor compared as a number."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from support.publish import commit_raw
from zookeeper.conftest import Tool
from zookeeper.test_zookeeper_commands import stored


@pytest.mark.parametrize("offset", [-2, -1, -(1 << 63)])
def test_it_is_not_copied_and_differs_as_no_offset(
    offset: int, tool: Tool, kazoo: KazooClient, filled: str, group: str
) -> None:
    commit_raw(tool.bootstrap, group, filled, {0: (offset, -1, ""), 1: (4, -1, "")})
    assert tool("migrate", "--to", "zookeeper", "--group", group, "--execute") == 0
    assert stored(kazoo, group, filled) == {"1": "4"}
    assert str(offset) not in (tool.out + tool.err).split()
    assert tool("compare", "--group", group) == 0
    kazoo.ensure_path(f"/consumers/{group}/offsets/{filled}/0")
    kazoo.set(f"/consumers/{group}/offsets/{filled}/0", b"3")
    found = tool.json("compare", "--group", group)
    assert tool.code == 1
    (row,) = [one for one in found["offsets"] if one["partition"] == 0]
    assert (row["kafka"], row["zookeeper"]) == (None, 3)
