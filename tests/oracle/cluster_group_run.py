"""Conversations about groups whose partition of the offsets topic has three replicas, so that coordinators move."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster_conversation import BROKERS, ClusterRun, Nodes
from cluster_conversation import SETTINGS as OF_CLUSTERS
from group_requests import FIND, GroupRequests, _name
from recording import Pending, Step

from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, partition_for_key
from odradek.wire.api_keys import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    ELECT_LEADERS,
    LIST_GROUPS,
    METADATA,
    OFFSET_DELETE,
)

COMMIT_TIMEOUT_MS = 1_500
SETTINGS = OF_CLUSTERS | {
    "offsets.topic.replication.factor": "3",
    "offsets.commit.timeout.ms": str(COMMIT_TIMEOUT_MS),
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "30000",
    "group.min.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
"""The settings of all nodes. A follower that is halted stays in the ISR until its session ends."""
ORDERS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
"""The replicas of the partitions of the offsets topic. The first one leads at the begin and at the end."""
_METADATA = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
Scenario = Callable[["GroupClusterRun"], None]


class GroupClusterRun(ClusterRun):
    """A scenario with one cluster. The offsets topic has three replicas, and at least two have to be in sync."""

    def coordinators(self) -> None:
        asked = {"topics": None, "include_cluster_authorized_operations": False} | _METADATA
        if OFFSETS_TOPIC not in {topic.name for topic in self.quietly(METADATA, 12, asked).topics}:
            rows = [{"partition_index": at, "broker_ids": list(order)} for at, order in enumerate(ORDERS)]
            own = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
            topic = {
                "name": OFFSETS_TOPIC, "num_partitions": -1, "replication_factor": -1, "assignments": rows,
                "configs": [{"name": name, "value": value} for name, value in own.items()],
            }  # fmt: skip
            found = self.quietly(19, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False}).topics[0]
            assert found.error_code in (ErrorCode.none, ErrorCode.topic_already_exists), found
        self.balance()

    def balance(self) -> None:
        """Waits until each replica is in sync, and the first one of each partition leads it everywhere."""
        for index in range(len(ORDERS)):
            self.await_replicas(index, BROKERS)
        self.elect()
        for at in BROKERS:
            for index, order in enumerate(ORDERS):
                self.await_leader(index, order[0], at=at)
        self.settle()

    def elect(self, *indexes: int) -> None:
        """Elects the first replica of these partitions of the offsets topic, or of all."""
        row = {"topic": OFFSETS_TOPIC, "partitions": list(indexes or range(len(ORDERS)))}
        self.quietly(ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": [row], "timeout": 10_000})

    def await_replicas(self, index: int, wanted: Sequence[int], *, at: int = 1) -> None:
        """Waits until these replicas of a partition of the offsets topic are in sync."""
        self._await(lambda row: set(row.isr_nodes) == set(wanted), index, at)

    def await_leader(self, index: int, leader: int, *, at: int) -> None:
        """Waits until a broker knows this leader of a partition of the offsets topic."""
        self._await(lambda row: row.leader_id == leader, index, at)
        self.settle()

    def _await(self, wanted: Callable[[Any], bool], index: int, at: int) -> None:
        def ready(reply: Any) -> bool:
            rows = {row.partition_index: row for row in reply.topics[0].partitions}
            return index in rows and wanted(rows[index])

        asked = {"topics": [{"topic_id": None, "name": OFFSETS_TOPIC}]} | _METADATA
        self.until(METADATA, 13, asked, ready, client=f"{at}/offsets")

    def move(self, broker: int) -> int:
        """Kills a broker, and starts it again: its partition of the offsets topic has another leader then, which this
        returns. ``elect`` moves it back."""
        index, successor = broker - 1, ORDERS[broker - 1][1]
        self.kill(broker)
        self.await_fence(broker, at=successor)
        self.start(broker)
        self.await_replicas(index, BROKERS, at=successor)
        return successor

    def close(self) -> None:
        self.balance()
        super().close()


class MovingGroup(GroupRequests):
    """A group whose coordinator is ``broker`` at first. ``at``: the broker that the requests go to."""

    def __init__(self, run: GroupClusterRun, broker: int, label: str = "g") -> None:
        self.run, self.at, self.index = run, broker, broker - 1
        self.group = run.key_at(broker, label)
        self._facts = {}
        self.serve()

    @property
    def cluster(self) -> GroupClusterRun:
        assert isinstance(self.run, GroupClusterRun)
        return self.run

    @property
    def client(self) -> str:
        return f"{self.at}/{self.group[:2]}"

    def move_to(self, broker: int) -> None:
        """The next requests go to this broker, which leads the partition of the group. Waits until it has loaded."""
        self.at = broker
        self.serve()

    def serve(self) -> None:
        self.cluster.await_leader(self.index, self.at, at=self.at)
        self.cluster.until(
            DESCRIBE_GROUPS, 4, self._asked(), lambda reply: reply.groups[0].error_code in (0, 69),
            client=f"{self.at}/load",
        )  # fmt: skip
        self._pass_watermark()

    def _pass_watermark(self) -> None:
        """Commits an offset of another group with the same coordinator.

        A coordinator of Apache Kafka that has just loaded ignores a high watermark that rises during the load: until
        the next one, its reads show what was committed before.
        """
        probe = next(
            name for name in (f"probe{number}" for number in range(1000)) if partition_for_key(name, 3) == self.index
        )
        part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        message = {
            "group_id": probe, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": OFFSETS_TOPIC, "partitions": [part]}],
        }  # fmt: skip

        def is_done(reply: Any) -> bool:
            return reply.topics[0].partitions[0].error_code is ErrorCode.none

        self.cluster.until(8, 9, message, is_done, client=f"{self.at}/load")

    def await_load(self) -> None:
        """Waits until the broker of the next requests loads the group's partition. Fails if it has loaded it."""

        def is_loading(reply: Any) -> bool:
            code = reply.groups[0].error_code
            assert code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress), code
            return code is ErrorCode.coordinator_load_in_progress

        self.cluster.until(DESCRIBE_GROUPS, 4, self._asked(), is_loading, client=f"{self.at}/load")

    def wait_for_processing(self) -> None:
        for _ in range(4):
            self.run.quietly(DESCRIBE_GROUPS, 4, self._asked(), client=f"{self.at}/load")
        self.cluster.nodes.pass_ms(50)

    def found_at(self, *brokers: int) -> None:
        """Adds the coordinator as these brokers show it."""
        self.cluster.at_each(FIND, 4, {"key_type": 0, "coordinator_keys": [self.group]}, *brokers)

    # --- requests -----------------------------------------------------------------------------------------------

    def commits(self, topic: str, offset: int, index: int = 0, **options: Any) -> Any:
        return self.commit((topic, index, offset), client=self.client, **options)

    def send_commit(self, topic: str, offset: int, *, member: str = "", generation: int = -1) -> Pending:
        """Commits, and does not wait for the reply."""
        part = {
            "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""
        }  # fmt: skip
        message = {
            "group_id": self.group, "generation_id_or_member_epoch": generation, "member_id": member,
            "group_instance_id": None, "retention_time": -1, "topics": [{_name(topic): topic, "partitions": [part]}],
        }  # fmt: skip
        return self.run.send(8, 9, message, client=f"{self.client}-waits")

    def fetches(self, topic: str, *indexes: int, **options: Any) -> Any:
        return self.fetch({topic: list(indexes or (0,))}, client=self.client, **options)

    def described(self) -> Any:
        message = {"groups": [self.group], "include_authorized_operations": False}
        return self.run.call(DESCRIBE_GROUPS, 6, message, client=self.client, unordered=("members",))

    def inspected(self) -> Any:
        message = {"group_ids": [self.group], "include_authorized_operations": False}
        unordered = ("partitions", "topic_partitions", "subscribed_topic_names", "members", "groups")
        return self.run.call(CONSUMER_GROUP_DESCRIBE, 1, message, client=self.client, unordered=unordered)

    def listed_at(self, *brokers: int) -> None:
        for broker in brokers or BROKERS:
            reply = self.run.quietly(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []}, client=f"{broker}/list")
            found = [row for row in reply.groups if row.group_id == self.group]
            self.run.note("list_groups", {"at": broker}, [reply.error_code, found])

    def deleted(self) -> Any:
        return self.run.call(DELETE_GROUPS, 2, {"groups_names": [self.group]}, client=self.client)

    def offsets_deleted(self, topic: str, *indexes: int) -> Any:
        rows = [{"name": topic, "partitions": [{"partition_index": index} for index in indexes or (0,)]}]
        return self.run.call(OFFSET_DELETE, 0, {"group_id": self.group, "topics": rows}, client=self.client)

    # --- members ------------------------------------------------------------------------------------------------

    def joins(self, name: str, member: str = "", **options: Any) -> Pending:
        """Sends a JoinGroup of version 3, in which a new member gets its id at once."""
        return self.join(f"{self.at}/{name}", member, version=options.pop("version", 3), **options)

    def named(self, name: str, joined: Any) -> str:
        """Gives the id of a member its name in the trace, and returns it."""
        self.run.name_value(joined.member_id, f"member {name}")
        member: str = joined.member_id
        return member

    def syncs(self, name: str, member: str, generation: int, shares: Mapping[str, bytes] | None = None,
              **options: Any) -> Pending:  # fmt: skip
        return self.sync(f"{self.at}/{name}", member, generation, shares, **options)

    def beats(self, member: str, generation: int, **options: Any) -> Any:
        return self.beat(self.client, member, generation, **options)

    def consumer_beats(self, member: str, epoch: int, **said: Any) -> Any:
        return self.heartbeat(member, epoch, client=self.client, **said)

    def lone_member(self, name: str = "a", **options: Any) -> tuple[str, int]:
        """Makes the group stable with one classic member. Returns the member's id and its generation."""
        joined = self.joins(name, **options).receive()
        member, generation = self.named(name, joined), int(joined.generation_id)
        own = {"instance": options["instance"]} if "instance" in options else {}
        self.syncs(name, member, generation, {member: name.encode()}, **own).receive()
        return member, generation


def run_group_conversation(nodes: Nodes, scenario: Scenario, base: int) -> list[Step]:
    """Runs a scenario with a cluster, and returns its trace."""
    run = GroupClusterRun(nodes, base)
    run.coordinators()
    try:
        scenario(run)
        found: list[Step] = json.loads(json.dumps(run.trace()))
    finally:
        run.close()
    return found
