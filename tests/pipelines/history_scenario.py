"""A history of groups with known findings, made on any Kafka broker. Each group does one thing, and some groups cause
no finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import Consumer
from support.brokers import Wire, eventually
from support.publish import FIND_COORDINATOR, OFFSET_COMMIT, create_topic, numbers, publish, read

from odradek.client.admin import Admin
from odradek.core.errors import ErrorCode
from odradek.core.ids import OffsetAndMetadata, TopicPartition

JOIN, SYNC, LEAVE = 11, 14, 13
RECORDS = 5_000
SESSION_MS = 1_800_000


class ExpectedFinding(NamedTuple):
    """A finding that the scenario must have. ``group`` is the name without the scenario's prefix."""

    kind: str
    group: str
    from_offset: int | None
    to_offset: int | None
    certainty: str = "certain"


TRUTH = {
    ExpectedFinding("rewind", "reset", 50, 200),
    ExpectedFinding("rewind", "reset-848", 20, 50),
    ExpectedFinding("rewind", "query", 50, 200),
    ExpectedFinding("rewind", "two-queries", 60, 200),
    ExpectedFinding("rewind", "redone", 150, 400),
    ExpectedFinding("rewind", "seek-back", 40, 90),
    ExpectedFinding("jump", "skip", 100, 700),
    ExpectedFinding("jump", "seek-on", 100, 4_500, "likely"),
    ExpectedFinding("stall", "stall", 300, RECORDS),
    ExpectedFinding("commit_gap", "gap", 100, RECORDS),
    ExpectedFinding("rebalance_storm", "storm", None, None),
    ExpectedFinding("never_commits", "silent", None, None),
}
"""All findings except expiry, which depends on the broker's clock."""


class Member:
    """The only member of a classic group. It sends its requests without a client library."""

    def __init__(self, wire: Wire, group: str, topic: str) -> None:
        self.wire, self.group, self.topic = wire, group, topic

        def found() -> bool:
            asked = {"key_type": 0, "coordinator_keys": [group]}
            return wire.call(FIND_COORDINATOR, 4, asked).coordinators[0].error_code == ErrorCode.none

        eventually(found, every_s=0.1, what=f"the coordinator of {group}")
        name = len(topic).to_bytes(2, "big") + topic.encode()
        self._join(b"\0\1\0\0\0\1" + name + b"\xff\xff\xff\xff\0\0\0\0")
        plan = b"\0\1\0\0\0\1" + name + b"\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
        synced = wire.call(
            SYNC, 3,
            self._me | {"assignments": [{"member_id": self._me["member_id"], "assignment": plan}]},
        )  # fmt: skip
        assert synced.error_code is ErrorCode.none

    def _join(self, subscription: bytes) -> None:
        def joined() -> Any:
            reply = self.wire.call(
                JOIN, 3,
                {
                    "group_id": self.group, "session_timeout": SESSION_MS, "rebalance_timeout": SESSION_MS,
                    "member_id": "", "protocol_type": "consumer",
                    "protocols": [{"name": "range", "metadata": subscription}],
                },
            )  # fmt: skip
            return reply if reply.error_code is ErrorCode.none else None

        reply = eventually(joined, every_s=0.1, what=f"joining {self.group}")
        self._me = {
            "group_id": self.group, "generation_id": reply.generation_id, "member_id": reply.member_id,
            "group_instance_id": None,
        }  # fmt: skip

    def commit(self, offset: int) -> None:
        row = {
            "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": 0, "committed_metadata": "",
        }  # fmt: skip
        reply = self.wire.call(
            OFFSET_COMMIT, 8,
            {
                "group_id": self.group, "generation_id_or_member_epoch": self._me["generation_id"],
                "member_id": self._me["member_id"], "group_instance_id": None,
                "topics": [{"name": self.topic, "partitions": [row]}],
            },
        )  # fmt: skip
        assert reply.topics[0].partitions[0].error_code is ErrorCode.none

    def leave(self) -> None:
        reply = self.wire.call(
            LEAVE, 3,
            {"group_id": self.group, "members": [{"member_id": self._me["member_id"], "group_instance_id": None}]},
        )  # fmt: skip
        assert reply.error_code is ErrorCode.none


class Scenario:
    """``pause`` lets enough time pass for a stall or a gap, by the broker's clock."""

    def __init__(self, bootstrap: str, prefix: str, pause: Callable[[], None]) -> None:
        self.bootstrap, self.prefix, self.pause = bootstrap, prefix, pause
        self.topic = f"{prefix}-orders"
        self.tp = TopicPartition(self.topic, 0)
        self.admin = Admin(bootstrap)

    def name(self, group: str) -> str:
        return f"{self.prefix}-{group}"

    def publish(self) -> None:
        create_topic(self.bootstrap, self.topic)
        publish(self.bootstrap, self.topic, numbers(RECORDS))

    def tool(self, group: str, offset: int, metadata: str = "") -> None:
        """Commits an offset without being a member, as tools and standalone consumers do."""
        self.admin.alter_group_offsets(self.name(group), {self.tp: OffsetAndMetadata(offset, metadata=metadata)})

    @contextmanager
    def member(self, group: str) -> Iterator[Member]:
        with Wire(self.bootstrap) as wire:
            member = Member(wire, self.name(group), self.topic)
            yield member
            member.leave()

    def read_by(self, group: str, *offsets: int) -> None:
        with self.member(group) as member:
            for offset in offsets:
                member.commit(offset)

    def play(self) -> None:
        """Makes everything in ``TRUTH``, and similar events that are no findings."""
        self.read_by("healthy", *range(10, 510, 10))
        self.read_by("reset", 100, 200)
        self.tool("reset", 50)
        self.read_by("skip", 50, 100)
        self.tool("skip", 20)  # a mistake that is corrected at once: both commits are one finding
        self.tool("skip", 700)
        self.read_by("skip", 700, 800)
        self.read_by("seek-back", 80, 90, 40, 45)
        self.read_by("seek-on", *range(10, 101, 10), 4_500)
        for offset in (100, 200):
            self.tool("query", offset, f"odradek-spark:1:{offset}")
        self.tool("query", 50)
        self.tool("query", 50, "odradek-spark:1:50:1")
        for offset, query in ((50, "::a"), (100, ":r:a"), (200, "::b"), (60, "::a")):
            self.tool("two-queries", offset, f"odradek-spark:1:{offset}{query}")
        self.tool("redone", 400)
        self.admin.delete_group_offsets(self.name("redone"), [self.tp])
        self.tool("redone", 150)
        self._reset_of_kip_848()
        self._recreate_topic()
        for _ in range(12):
            self.read_by("storm", 500)
        self._with_pauses()

    def _with_pauses(self) -> None:
        with self.member("silent"), self.member("gap") as gap:
            for offset in range(10, 101, 10):
                gap.commit(offset)
            for number in range(3):
                self.tool("stall", 300)
                self.tool("at-rest", RECORDS)
                if number < 2:
                    self.pause()
            gap.commit(200)

    def _reset_of_kip_848(self) -> None:
        source = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": self.name("reset-848"), "group.protocol": "consumer",
                "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip
        source.subscribe([self.topic])
        read(source, 50)
        source.commit(asynchronous=False)
        source.close()
        self.tool("reset-848", 20)

    def _recreate_topic(self) -> None:
        """Deletes and recreates a topic: commits for the old topic have no meaning for the new one."""
        topic = f"{self.prefix}-again"
        for offset in (500, 3):
            create_topic(self.bootstrap, topic)
            found = {TopicPartition(topic, 0): OffsetAndMetadata(offset)}
            self.admin.alter_group_offsets(self.name("recreated"), found)
            if offset == 500:
                self.admin.delete_topics([topic])
                eventually(lambda: topic not in self.admin.topics(), what=f"{topic} gone")
