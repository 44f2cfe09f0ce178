"""The group harness with KIP-848 members: heartbeats with topic names, and a member that follows the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from odradek.core.errors import ErrorCode
from odradek.wire.schemas import milliseconds
from support.group_harness import GroupHarness

Assigned = dict[str, list[int]]


@dataclass
class Beat:
    """The reply to a heartbeat. ``assigned`` None: the assignment is unchanged."""

    error: ErrorCode
    epoch: int
    assigned: Assigned | None
    member_id: str | None
    interval_ms: int
    text: str | None


class ConsumerHarness(GroupHarness):
    def topic_name(self, topic_id: UUID) -> str:
        topic = self.catalog.topic_by_id(topic_id)
        return str(topic_id) if topic is None else topic.name

    def beat(
        self,
        group_id: str,
        member: str,
        epoch: int,
        *,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        owned: Mapping[str, Sequence[int]] | None = None,
        instance: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = -1,
        version: int = 1,
    ) -> Beat:
        rows = None
        if owned is not None:
            found = ((self.catalog.topic(name), partitions) for name, partitions in owned.items())
            rows = [
                {"topic_id": topic.id, "partitions": list(partitions)}
                for topic, partitions in found
                if topic is not None
            ]
        reply = self.call(
            68,
            version,
            group_id=group_id,
            member_id=member,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout=rebalance_ms,
            subscribed_topic_names=topics,
            subscribed_topic_regex=pattern,
            server_assignor=assignor,
            topic_partitions=rows,
        )
        assigned = None
        if reply.assignment is not None:
            assigned = {
                self.topic_name(row.topic_id): sorted(row.partitions) for row in reply.assignment.topic_partitions
            }
        return Beat(
            ErrorCode(reply.error_code),
            int(reply.member_epoch),
            assigned,
            reply.member_id,
            milliseconds(reply.heartbeat_interval),
            reply.error_message,
        )

    def enter(self, group_id: str, member: str, *topics: str, **how: Any) -> Beat:
        """A member's first heartbeat."""
        named = None if not topics and "pattern" in how else topics
        return self.beat(group_id, member, 0, topics=named, owned={}, **{"rebalance_ms": 30_000, **how})

    def described(self, group_id: str, version: int = 1) -> Any:
        return self.call(69, version, group_ids=[group_id], include_authorized_operations=False).groups[0]

    def epochs(self, group_id: str) -> tuple[str, int, int]:
        """Returns the group's state, group epoch and assignment epoch."""
        group = self.described(group_id)
        return str(group.group_state), int(group.group_epoch), int(group.assignment_epoch)

    def targets(self, group_id: str) -> dict[str, Assigned]:
        return {
            member.member_id: {
                row.topic_name: sorted(row.partitions) for row in member.target_assignment.topic_partitions
            }
            for member in self.described(group_id).members
        }

    def change_topics(self, *names: str, created: bool = False) -> None:
        """Sends the notification of a catalogue change to the groups."""
        self.group_catalog.version += 1
        self.runtime.on_topics_changed(names, created=created)


@dataclass
class Client:
    """A member that follows the protocol: it gives up revoked partitions at its next heartbeat, and reports its
    partitions."""

    harness: ConsumerHarness
    group_id: str
    member_id: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    instance: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: Assigned = field(default_factory=dict)

    def beat(self) -> Beat:
        joins = self.epoch == 0
        reply = self.harness.beat(
            self.group_id,
            self.member_id,
            self.epoch,
            topics=self.topics if self.pattern is None or self.topics else None,
            pattern=self.pattern,
            owned={} if joins else self.owned,
            instance=self.instance,
            assignor=self.assignor,
            rebalance_ms=30_000,
        )
        if reply.error is ErrorCode.none:
            self.epoch = reply.epoch
            if reply.assigned is not None:
                self.owned = reply.assigned
        elif reply.error in (
            ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found,
        ):  # fmt: skip
            self.epoch, self.owned = 0, {}
        return reply

    def leave(self) -> Beat:
        reply = self.harness.beat(self.group_id, self.member_id, -1, instance=self.instance)
        self.epoch, self.owned = 0, {}
        return reply


def settle(harness: ConsumerHarness, *clients: Client, rounds: int = 12) -> None:
    """All members send heartbeats, round after round, until nothing changes. The assignment interval passes after each
    round."""
    for _ in range(rounds):
        before = [(client.epoch, client.owned) for client in clients]
        for client in clients:
            client.beat()
        harness.advance(1_000)
        if before == [(client.epoch, client.owned) for client in clients] and all(c.epoch for c in clients):
            return
    raise AssertionError("the group does not become stable")


def partitions_of(*clients: Client) -> list[tuple[str, int]]:
    """All partitions that the clients own, in order; a partition with two owners is in the list twice."""
    return sorted(
        (topic, partition) for client in clients for topic, owned in client.owned.items() for partition in owned
    )
