"""The lag table: values and layout of kafka-consumer-groups --describe (its output copied from version 4.3)."""

from __future__ import annotations

import pytest

from odradek.client.model import GroupDescription, GroupListing, ListedOffset, MemberDescription, Node
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag.describe import LagRow, lag_rows
from odradek.lag.table import format_groups, format_table, notice

LIVE = """\
GROUP           TOPIC                             PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID                                       HOST            CLIENT-ID
client-lag-live client-lag-a                      0          7               10              3               me-cf0a6311-4e51-471a-87c9-daab5956d2e5           /127.0.0.1      me
client-lag-live client-lag-a                      1          -               10              -               me-cf0a6311-4e51-471a-87c9-daab5956d2e5           /127.0.0.1      me
client-lag-live client-lag-a                      2          -               0               -               me-cf0a6311-4e51-471a-87c9-daab5956d2e5           /127.0.0.1      me
client-lag-live client-lag-longer-topic-name-here 0          -               10              -               other-client-5e67094b-912a-4c37-b415-a556c5a5b69b /127.0.0.1      other-client"""  # noqa: E501

SIMPLE = """\
GROUP             TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     HOST            CLIENT-ID
client-lag-simple client-lag-a    0          5               10              5               -               -               -
client-lag-simple client-lag-a    1          20              10              -10             -               -               -
client-lag-simple client-lag-gone 0          3               0               -3              -               -               -"""  # noqa: E501

NODE = Node(1, "127.0.0.1", 9092)


def a(partition: int) -> TopicPartition:
    return TopicPartition("client-lag-a", partition)


def ends(**offsets: int) -> dict[TopicPartition, ListedOffset]:
    return {
        TopicPartition(name.rsplit("_", 1)[0].replace("_", "-"), int(name.rsplit("_", 1)[1])): ListedOffset(offset)
        for name, offset in offsets.items()
    }


def group(name: str, *members: MemberDescription) -> GroupDescription:
    return GroupDescription(name, "Stable" if members else "Empty", "consumer", "range", "Classic", NODE, members)


@pytest.mark.claim(19, part="b")
@pytest.mark.claim(99, part=True)
def test_a_live_group_is_printed_as_by_kafkas_tool() -> None:
    other = MemberDescription(
        "other-client-5e67094b-912a-4c37-b415-a556c5a5b69b", "other-client", "/127.0.0.1",
        assignment=(TopicPartition("client-lag-longer-topic-name-here", 0),),
    )  # fmt: skip
    me = MemberDescription("me-cf0a6311-4e51-471a-87c9-daab5956d2e5", "me", "/127.0.0.1", assignment=(a(2), a(0), a(1)))
    log_ends = ends(client_lag_a_0=10, client_lag_a_1=10, client_lag_a_2=0, client_lag_longer_topic_name_here_0=10)
    rows = lag_rows(group("client-lag-live", other, me), {a(0): OffsetAndMetadata(7)}, log_ends)
    assert format_table(rows) == LIVE


@pytest.mark.claim(19, part="a")
def test_a_group_without_members_is_printed_as_by_kafkas_tool() -> None:  # a lag may be below zero
    committed = {
        TopicPartition("client-lag-gone", 0): OffsetAndMetadata(3),
        a(1): OffsetAndMetadata(20),
        a(0): OffsetAndMetadata(5),
    }
    rows = lag_rows(
        group("client-lag-simple"), committed, ends(client_lag_a_0=10, client_lag_a_1=10, client_lag_gone_0=0)
    )
    assert format_table(rows) == SIMPLE


def test_rows_of_unassigned_partitions_follow_the_members_rows() -> None:
    member = MemberDescription("m", "c", "/h", assignment=(a(1),))
    rows = lag_rows(
        group("g", member),
        {a(0): OffsetAndMetadata(1), a(1): OffsetAndMetadata(2)},
        ends(client_lag_a_0=3, client_lag_a_1=3),
    )
    assert rows == [
        LagRow("g", "client-lag-a", 1, 2, 3, 1, "m", "/h", "c"),
        LagRow("g", "client-lag-a", 0, 1, 3, 2),
    ]


def test_a_partition_without_a_log_end_shows_no_lag() -> None:
    (row,) = lag_rows(group("g"), {a(0): OffsetAndMetadata(1)}, {})
    assert (row.current_offset, row.log_end_offset, row.lag) == (1, None, None)
    assert format_table([row]).splitlines()[1].split() == ["g", "client-lag-a", "0", "1", "-", "-", "-", "-", "-"]


def test_a_member_without_partitions_has_no_row() -> None:
    assert lag_rows(group("g", MemberDescription("m", "c", "/h")), {}, {}) == []
    assert format_table([]) == ""


def test_notices_name_the_group_and_its_state() -> None:
    assert notice("g", "Empty") == "Consumer group 'g' has no active members."
    for state in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"):
        assert notice("g", state) == "Warning: Consumer group 'g' is rebalancing."
    assert notice("g", "Stable") is None


def test_groups_are_listed_as_by_kafkas_tool() -> None:
    table = format_groups([GroupListing("short", "consumer", "Stable", "classic"), GroupListing("g" * 20, "", "", "")])
    head, first, second = table.splitlines()
    assert head == "GROUP" + " " * 26 + "TYPE" + " " * 17 + "STATE"
    assert first == "short" + " " * 26 + "Classic" + " " * 14 + "Stable"
    assert second.split() == ["g" * 20, "-", "-"]
