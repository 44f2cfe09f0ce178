"""Conversations about transactions whose partition of ``__transaction_state`` has three replicas."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from cluster_conversation import BROKERS, Nodes
from cluster_group_run import ORDERS, GroupClusterRun
from cluster_group_run import SETTINGS as OF_GROUPS
from recording import Step
from transaction_requests import DESCRIBE, END, INIT, LIST, TRANSACTIONS_TOPIC, Producer, name_producer

from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_key
from odradek.wire.api_keys import CREATE_TOPICS, ELECT_LEADERS, FIND_COORDINATOR, METADATA

SETTINGS = OF_GROUPS | {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
_FIRST_ID = 1_000
_NAMES = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
_PLAIN = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
Scenario = Callable[["TransactionClusterRun"], None]


class TransactionClusterRun(GroupClusterRun):
    """Both internal topics have three replicas, and at least two have to be in sync."""

    def __init__(self, nodes: Nodes, base: int) -> None:
        super().__init__(nodes, base)
        self._down: set[int | str] = set()

    def coordinators(self) -> None:
        asked = {"topics": None, "include_cluster_authorized_operations": False} | _NAMES
        if TRANSACTIONS_TOPIC not in {topic.name for topic in self.quietly(METADATA, 12, asked).topics}:
            rows = [{"partition_index": at, "broker_ids": list(order)} for at, order in enumerate(ORDERS)]
            own = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
            topic = {
                "name": TRANSACTIONS_TOPIC, "num_partitions": -1, "replication_factor": -1, "assignments": rows,
                "configs": [{"name": name, "value": value} for name, value in own.items()],
            }  # fmt: skip
            message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
            found = self.quietly(CREATE_TOPICS, 7, message).topics[0]
            assert found.error_code in (ErrorCode.none, ErrorCode.topic_already_exists), found
        super().coordinators()

    def kill(self, node: int | str) -> None:
        super().kill(node)
        self._down.add(node)

    def stop(self, node: int | str) -> None:
        super().stop(node)
        self._down.add(node)

    def start(self, node: int | str) -> None:
        self._down.discard(node)
        super().start(node)

    def start_alone(self, broker: int, at: int | None = None) -> None:
        """Starts one broker while others may be away. ``at``: the broker that shows whether it is fenced."""
        self._down.discard(broker)
        self.nodes.start(str(broker))
        self._await_fences({broker: False}, at or broker)
        self.settle()

    def close(self) -> None:
        """Starts what the scenario has left ended."""
        for node in self._down:
            self.nodes.start(str(node))
        super().close()

    def balance(self) -> None:
        for index in range(len(ORDERS)):
            self.await_log(index, at=1, replicas=BROKERS)
        self.elect_logs(*range(len(ORDERS)))
        for at in BROKERS:
            for index, order in enumerate(ORDERS):
                self.await_log(index, at=at, leader=order[0])
        super().balance()

    def elect_logs(self, *indexes: int) -> None:
        """Elects the first replica of these partitions of the transaction log."""
        row = {"topic": TRANSACTIONS_TOPIC, "partitions": list(indexes)}
        self.quietly(ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": [row], "timeout": 10_000})

    def await_log(
        self, index: int, *, at: int, leader: int | None = None, replicas: tuple[int, ...] | None = None
    ) -> None:
        """Waits until a broker knows this leader, or these replicas in sync, of a partition of the log."""

        def ready(reply: Any) -> bool:
            rows = {row.partition_index: row for row in reply.topics[0].partitions}
            if index not in rows:
                return False
            is_led = leader is None or rows[index].leader_id == leader
            return is_led and (replicas is None or set(rows[index].isr_nodes) == set(replicas))

        asked = {"topics": [{"topic_id": None, "name": TRANSACTIONS_TOPIC}]} | _NAMES
        self.until(METADATA, 13, asked, ready, client=f"{at}/log")

    def move_log(self, broker: int) -> int:
        """Kills a broker and starts it again. Returns the next leader of its partition of the log."""
        index, successor = broker - 1, ORDERS[broker - 1][1]
        self.kill(broker)
        self.await_fence(broker, at=successor)
        self.start(broker)
        self.await_log(index, at=successor, replicas=BROKERS, leader=successor)
        return successor

    def many_ids(self, broker: int, count: int) -> list[str]:
        """Makes transactional ids whose coordinator is this broker. Returns them."""
        names = (f"many{number}-{self._tag}" for number in itertools.count())
        found = [name for name in itertools.islice(names, 10 * count) if _index_of(name) == broker - 1][:count]
        for name in found:
            self.until(
                INIT, 4, _PLAIN | {"transactional_id": name}, lambda reply: reply.error_code is ErrorCode.none,
                client=f"{broker}/many",
            )  # fmt: skip
        return found

    def states_of(self, names: list[str], broker: int) -> dict[str, int]:
        """Returns how many of these transactional ids have which state at a broker."""
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        reply = self.quietly(LIST, 2, asked | {"transactional_id_pattern": None}, client=f"{broker}/many")
        wanted = set(names)
        found = Counter(row.transaction_state for row in reply.transaction_states if row.transactional_id in wanted)
        return dict(found)


class MovingProducer(Producer):
    """A transactional producer whose coordinator is ``broker`` at first. ``at``: where its requests go to."""

    def __init__(self, run: TransactionClusterRun, broker: int, label: str = "x", *, timeout_ms: int = 60_000) -> None:
        self.run, self.label, self.timeout_ms = run, label, timeout_ms
        self.cluster = run
        self.name = run.key_at(broker, label)
        self.id = self.epoch = -1
        self.stays_prepared = False
        self._sequences = {}
        self.index = broker - 1
        self.move_to(broker)
        run.until(INIT, 4, _PLAIN, lambda reply: reply.producer_id >= 0, client=f"{broker}/ids")
        while run.quietly(INIT, 4, _PLAIN, client=f"{broker}/ids").producer_id < _FIRST_ID:
            pass

    def move_to(self, broker: int) -> None:
        """The next requests go to this broker, which leads the partition of the log. Waits until it has loaded."""
        self.at, self.client = broker, f"{broker}/{self.name[:2]}"
        self.cluster.await_log(self.index, at=broker, leader=broker)
        stranger = {"transactional_id": self.name, "producer_id": -2, "producer_epoch": 0, "committed": False}
        loaded = (ErrorCode.invalid_producer_id_mapping, ErrorCode.producer_fenced)
        self.cluster.until(END, 4, stranger, lambda reply: reply.error_code in loaded, client=f"{broker}/load")

    def await_load(self) -> None:
        """Waits until the broker of the next requests loads the id's partition. Fails if it has loaded it."""

        def is_loading(reply: Any) -> bool:
            code = reply.transaction_states[0].error_code
            assert code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress), code
            return code is ErrorCode.coordinator_load_in_progress

        self.cluster.until(DESCRIBE, 0, {"transactional_ids": [self.name]}, is_loading, client=f"{self.at}/load")

    def ask(self, broker: int) -> None:
        """The next requests go to this broker, whatever it leads."""
        self.at, self.client = broker, f"{broker}/{self.name[:2]}"

    def produce(self, topic: str, leader: int, count: int = 1, **said: Any) -> Any:
        """Produces at a broker, which the coordinator need not be."""
        coordinator, self.client = self.client, f"{leader}/p"
        try:
            return self.send(topic, count, **said)
        finally:
            self.client = coordinator

    def offsets_at(self, broker: int, group: str, *rows: tuple[Any, ...], **said: Any) -> Any:
        coordinator, self.client = self.client, f"{broker}/o"
        try:
            return self.commit_offsets(group, *rows, **said)
        finally:
            self.client = coordinator

    def found_at(self, *brokers: int) -> None:
        self.cluster.at_each(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [self.name]}, *brokers)

    def described(self) -> None:
        """Adds the coordinator's description of a transaction that has begun, without its time."""
        asked = {"transactional_ids": [self.name]}
        reply = self.run.quietly(DESCRIBE, 0, asked, client=self.client)
        names = ("error_code", "transaction_state", "transaction_timeout_ms", "producer_id", "producer_epoch", "topics")
        self.run.note("describe_transactions", asked, [
            {name: getattr(row, name, None) for name in names} for row in reply.transaction_states
        ])  # fmt: skip

    def listed_at(self, *brokers: int) -> None:
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        for broker in brokers or BROKERS:
            reply = self.run.quietly(LIST, 2, asked | {"transactional_id_pattern": None}, client=f"{broker}/list")
            found = [row for row in reply.transaction_states if row.transactional_id == self.name]
            self.run.note("list_transactions", {"at": broker}, [reply.error_code, found])

    def state(self) -> str:
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        reply = self.run.quietly(LIST, 2, asked | {"transactional_id_pattern": None}, client=f"{self.at}/state")
        found = [row.transaction_state for row in reply.transaction_states if row.transactional_id == self.name]
        return str(found[0]) if found else ""

    def wait_for(self, *states: str, within_s: float = 60) -> None:
        passed_ms = 0
        while (found := self.state()) not in states:
            assert passed_ms < within_s * 1000, f"{found}, not {states} within {within_s} s"
            self.cluster.nodes.pass_ms(50)
            passed_ms += 50


def _index_of(name: str) -> int:
    return partition_for_key(name, len(ORDERS))


def named(run: TransactionClusterRun, producer: MovingProducer) -> None:
    name_producer(run, producer.id, producer.label)


def run_transaction_conversation(nodes: Nodes, scenario: Scenario, base: int) -> list[Step]:
    """Runs a scenario with a cluster, and returns its trace."""
    run = TransactionClusterRun(nodes, base)
    run.coordinators()
    try:
        scenario(run)
        found: list[Step] = json.loads(json.dumps(run.trace()))
    finally:
        run.close()
    return found
