"""``odradek zookeeper`` with times beyond the calendar, and with names that have an invisible character."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from zookeeper.conftest import Tool

from odradek import Producer
from odradek.client import Admin, NewTopic
from odradek.zookeeper.store import OffsetStore

NANOSECONDS = 1_790_000_000_000_000_000
"""A time of the year 2026 in nanoseconds; as milliseconds, it is in the year 56,724,000."""
ZERO_WIDTH = "\u200b"


def put(kazoo: KazooClient, group: str, topic: str, offset: int) -> None:
    path = f"/consumers/{group}/offsets/{topic}/0"
    kazoo.ensure_path(path)
    kazoo.set(path, str(offset).encode())


def test_describe_and_reset_with_record_times_in_nanoseconds(
    tool: Tool, kazoo: KazooClient, admin: Admin, bootstrap: str, topic: str, group: str
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, {"message.timestamp.after.max.ms": str((1 << 63) - 1)})])
    with Producer(bootstrap) as producer:
        for timestamp in (1_700_000_000_000, NANOSECONDS, NANOSECONDS + 1):
            producer.send(topic, b"v", timestamp=timestamp)
    put(kazoo, group, topic, 1)
    (found,) = tool.json("describe", "--group", group)
    assert (tool.code, found["invalid"]) == (0, [])
    assert [(row["offset"], row["log_end_offset"], row["lag"]) for row in found["partitions"]] == [(1, 3, 2)]
    reset = ["reset", "--group", group, "--topic", topic, "--execute"]
    assert tool(*reset, "--to-datetime", "2024-01-01T00:00:00") == 0
    (found,) = tool.json("describe", "--group", group)
    assert found["partitions"][0]["offset"] == 1
    assert tool(*reset, "--to-datetime", "9999-12-31T23:59:59") == 0
    (found,) = tool.json("describe", "--group", group)
    assert found["partitions"][0]["offset"] == 1, "the records in nanoseconds are later than any date"


@pytest.mark.parametrize("milliseconds", [NANOSECONDS, (1 << 63) - 1, -(1 << 63)])
def test_describe_shows_a_time_beyond_the_calendar_as_a_number(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, monkeypatch: pytest.MonkeyPatch, milliseconds: int
) -> None:
    """A node's clock may be wrong by any amount; clients cannot set the time of a znode."""
    put(kazoo, group, filled, 4)
    read = OffsetStore.read

    def read_with_wrong_clock(store: OffsetStore, *arguments: Any) -> Any:
        found = read(store, *arguments)
        return found._replace(offsets={tp: one._replace(modified_ms=milliseconds) for tp, one in found.offsets.items()})

    monkeypatch.setattr(OffsetStore, "read", read_with_wrong_clock)
    assert tool("describe", "--group", group) == 0
    assert f" {milliseconds} ms" in tool.out
    (found,) = tool.json("describe", "--group", group)
    assert found["partitions"][0]["modified_ms"] == milliseconds


def test_a_reset_creates_no_group_with_an_invisible_character(
    tool: Tool, kazoo: KazooClient, filled: str, group: str
) -> None:
    reset = ["reset", "--topic", filled, "--to-earliest", "--execute"]
    assert tool(*reset, "--group", group + ZERO_WIDTH) == 2
    assert "an invisible character U+200B (ZERO WIDTH SPACE)" in tool.err
    assert kazoo.exists("/consumers") is None or kazoo.get_children("/consumers") == []
    put(kazoo, group, filled, 4)
    assert tool("reset", "--group", group, "--topic", filled + ZERO_WIDTH, "--to-earliest", "--execute") == 2
    assert ascii(ZERO_WIDTH)[1:-1] in tool.err
    assert ZERO_WIDTH not in tool.err
    assert kazoo.get_children(f"/consumers/{group}/offsets") == [filled]


def test_a_group_that_others_made_with_such_a_name_can_be_reset_and_is_shown(
    tool: Tool, kazoo: KazooClient, filled: str, group: str
) -> None:
    put(kazoo, group + ZERO_WIDTH, filled, 4)
    assert tool("reset", "--group", group + ZERO_WIDTH, "--topic", filled, "--to-earliest", "--execute") == 0
    assert kazoo.get(f"/consumers/{group}{ZERO_WIDTH}/offsets/{filled}/0")[0] == b"0"
    shown = tool.out + tool.err
    assert ZERO_WIDTH not in shown
    assert ascii(ZERO_WIDTH)[1:-1] in shown
