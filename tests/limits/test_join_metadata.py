"""The broker keeps a member's metadata for its session, so the size is limited when the member joins."""

from __future__ import annotations

from typing import Any

from support.group_harness import GroupHarness

from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import JOIN_GROUP


def join(harness: GroupHarness, group: str, *sizes: int) -> Any:
    protocols = [{"name": f"p{number}", "metadata": bytes(size)} for number, size in enumerate(sizes)]
    pending = harness.start(
        JOIN_GROUP, 3, group_id=group, session_timeout=30_000, rebalance_timeout=30_000, member_id="",
        protocol_type="consumer", protocols=protocols,
    )  # fmt: skip
    harness.advance(4_000)
    return pending.reply


def kept(harness: GroupHarness) -> int:
    """The bytes of metadata that groups have in memory."""
    shard = harness.runtime.shard(0)
    assert shard is not None
    members = [member for group in shard.groups.values() for member in group.members.values()]
    return sum(len(protocol.metadata) for member in members for protocol in member.protocols)


def test_a_member_with_metadata_too_large_for_a_record_is_refused() -> None:
    harness = GroupHarness(partition_count=1)
    most = harness.runtime.batch_bytes(0)
    for number, sizes in enumerate(((most + 1,), (most // 2, most // 2, 2), (100 << 20,))):
        assert join(harness, f"g{number}", *sizes).error_code is ErrorCode.unknown_server_error
    assert kept(harness) == 0
    assert join(harness, "g", most // 2, most // 2).error_code is ErrorCode.none
    assert 0 < kept(harness) <= most
