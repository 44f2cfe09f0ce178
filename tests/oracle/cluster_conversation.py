"""Conversations with one controller and three brokers: requests to each node, faults of nodes, and the replies.

A scenario is a function of one ``ClusterRun``. The same scenario runs against processes of Apache Kafka
(``record_clusters``) and against nodes of Odradek in a simulated world (``support.simulated_conversation``).

Clients are named after the node that they are connected to: ``1``, ``2``, ``3``, ``controller``, and with a label
behind a slash, ``1/member``.

Values that differ between runs are symbols as in ``recording``. In addition, the port of a node
is ``<port of 1>``, a broker epoch is ``<epoch of 1>``, and the controller that a broker names is ``<a broker>``: it
is any broker, by chance.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import recording
from controller_conversation import listener, registration
from recording import Run, Step
from support.brokers import Wire

from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_key

BROKERS = (1, 2, 3)
CONTROLLER, CONTROLLER_ID = "controller", 100
RACKS = {1: "a", 2: "b", 3: "c"}
SESSION_MS = 6000
SETTINGS = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "500",
    "num.partitions": "3",
    "default.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""The settings of all nodes."""
SETTLING_MS = 1000
"""After this time, all brokers have applied what was committed."""
FAR = 1 << 60
_METADATA = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}
UNORDERED = ("brokers", "topics", "results", "responses", "entries", "groups", "coordinators", "endpoints")


class Nodes(Protocol):
    """The nodes of a cluster: brokers by their numbers, and ``controller``."""

    cluster_id: str
    topics_of_a_sample: int
    """How many topics a scenario creates to see what chance does."""

    def connect(self, node: str, client_id: str) -> Wire: ...

    def ports(self) -> Mapping[str, int]: ...

    def pass_ms(self, ms: int) -> None: ...

    def kill(self, node: str) -> None: ...

    def stop(self, node: str) -> None: ...

    def start(self, node: str) -> None:
        """Starts a node, and returns when it serves requests."""

    def pause(self, node: str) -> None: ...

    def resume(self, node: str) -> None: ...

    def elapsed_ms(self) -> int: ...

    def make_loads_slow(self, broker: str, group: str) -> None:
        """The next load of the group's partition of the offsets topic takes seconds. ``broker`` coordinates it."""

    def make_transaction_loads_slow(self, broker: str, partition: int) -> None:
        """The next load of a partition of the transaction log takes seconds. ``broker`` leads it."""


class ClusterRun(Run):
    """One scenario with one cluster. ``base``: all broker ids that the scenario makes up are above it."""

    def __init__(self, nodes: Nodes, base: int) -> None:
        super().__init__("", nodes.pass_ms)
        self.nodes = nodes
        self.cluster_id = nodes.cluster_id
        self._base = base
        self._epochs: dict[int, str] = {}
        self._made_up: list[int] = []
        self.name_value(nodes.cluster_id, "cluster")

    # --- connections --------------------------------------------------------------------------------------------

    def _wire(self, client: str) -> Wire:
        if client not in self._wires:
            node = "1" if client == "quiet" else client.partition("/")[0]
            self._wires[client] = self.nodes.connect(node, client)
        return self._wires[client]

    def _disconnect_from(self, node: str) -> None:
        for client in tuple(self._wires):
            if client.partition("/")[0] == node or (client == "quiet" and node == "1"):
                self.disconnect(client)

    def at_each(
        self, api_key: int, version: int, message: Mapping[str, Any], *brokers: int, **options: Any
    ) -> list[Any]:
        """Sends a request to each broker, or to these."""
        asked = brokers or BROKERS
        return [self.call(api_key, version, message, client=str(broker), **options) for broker in asked]

    def until(
        self,
        api_key: int,
        version: int,
        message: Mapping[str, Any],
        ready: Callable[[Any], bool],
        within_s: float = 60,
        client: str = "quiet",
    ) -> Any:
        passed_ms = 0
        while True:
            reply: Any = None
            try:
                reply = self.quietly(api_key, version, message, client=client)
                if ready(reply):
                    return reply
            except ConnectionError:
                self.disconnect(client)
            assert passed_ms < within_s * 1000, f"not within {within_s} s: API {api_key} {reply}"
            self.nodes.pass_ms(50)
            passed_ms += 50

    def settle(self) -> None:
        """Waits until all brokers have what is committed."""
        self.nodes.pass_ms(SETTLING_MS)

    def fresh(self, kind: str, label: str = "a") -> str:
        name = f"{kind}{label.replace(' ', '-')}-{self._tag}"
        self._symbols[name] = f"<{kind} {label}>"
        return name

    # --- topics -------------------------------------------------------------------------------------------------

    def place(self, label: str, *leaders: int, **configs: str) -> str:
        """Creates a topic whose partitions are on these brokers, not in the trace. Returns its name."""
        name = self.topic(label)
        self.place_as(name, *leaders, **configs)
        return name

    def place_as(self, name: str, *leaders: int, **configs: str) -> uuid.UUID:
        rows = [{"partition_index": at, "broker_ids": [leader]} for at, leader in enumerate(leaders)]
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows, "configs": settings}
        message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
        found = self.quietly(19, 7, message).topics[0]
        assert found.error_code is ErrorCode.none, found
        self.name_value(found.topic_id, f"id of {self._symbols.get(name, name).strip('<>')}")
        self.settle()
        topic_id: uuid.UUID = found.topic_id
        return topic_id

    def coordinators(self) -> None:
        """Makes the internal topics, each with one partition on each broker, unless there are some."""
        asked = {"topics": None} | _METADATA
        present = {topic.name for topic in self.quietly(3, 12, asked).topics}
        for name in {"__consumer_offsets", "__transaction_state"} - present:
            self.place_as(name, *BROKERS, cleanup_policy="compact")

    def key_at(self, broker: int, prefix: str = "g") -> str:
        """Returns the id of a group or a transaction whose coordinator is this broker."""
        for number in range(1000):
            key = f"{prefix}{broker}x{number}-{self._tag}"
            if partition_for_key(key, len(BROKERS)) == broker - 1:
                self.name_value(key, f"{prefix} at {broker}")
                return key
        raise AssertionError("no such key")

    # --- nodes --------------------------------------------------------------------------------------------------

    def kill(self, node: int | str) -> None:
        self._disconnect_from(str(node))
        self.nodes.kill(str(node))

    def stop(self, node: int | str) -> None:
        self._disconnect_from(str(node))
        self.nodes.stop(str(node))

    def start(self, node: int | str) -> None:
        self.nodes.start(str(node))
        if node != CONTROLLER:
            self._await_fences(dict.fromkeys(BROKERS, False))
        self.settle()

    def start_alone(self, broker: int) -> None:
        """Starts one broker while others may be away."""
        self.nodes.start(str(broker))
        self._await_fences({broker: False})
        self.settle()

    def pause(self, node: int | str) -> None:
        """Halts a node: its connections stay open, and nothing replies."""
        self.nodes.pause(str(node))

    def resume(self, node: int | str) -> None:
        self.nodes.resume(str(node))
        self._await_fences(dict.fromkeys(BROKERS, False))
        self.settle()

    def await_fence(self, node: int, at: int = 1) -> None:
        """Waits until the session of a broker has ended."""
        self._await_fences({node: True}, at)
        self.settle()

    def _await_fences(self, wanted: Mapping[int, bool], at: int = 1) -> None:
        asked = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}

        def ready(reply: Any) -> bool:
            found = {one.broker_id: one.is_fenced for one in reply.brokers}
            return all(found.get(broker) is fenced for broker, fenced in wanted.items())

        self.until(60, 2, asked, ready, client=f"{at}/fences")

    def timed(self, api_key: int, version: int, message: Mapping[str, Any], *, client: str) -> None:
        """Sends a request whose reply takes long. The trace has the reply, and its time in seconds, rounded to ten."""
        before = self.nodes.elapsed_ms()
        self.call(api_key, version, message, client=client)
        self.note("seconds", {}, round((self.nodes.elapsed_ms() - before) / 10_000) * 10)

    def sample(self, what: str, counts: Mapping[str, int]) -> None:
        """Adds how often chance has decided for what. Two samples are alike if the same chance may have made both."""
        self.note("sample", {"of": what}, dict(sorted(counts.items())))

    # --- registrations ------------------------------------------------------------------------------------------

    def made_up(self, number: int) -> int:
        """The id of a broker that does not exist."""
        found = self._base + number
        if found not in self._made_up:
            self._made_up.append(found)
            self.name_number(found, f"broker {number}")
        return found

    def register(self, broker: int, *, version: int = 4, incarnation: int = 1, **changes: Any) -> int:
        """Registers a broker id at the controller. Returns the broker epoch, or −1."""
        given = {
            "broker_id": broker,
            "cluster_id": self.cluster_id,
            "incarnation_id": self.incarnation(broker, incarnation),
            "listeners": [listener("PLAINTEXT", "127.0.0.1", 9)],
            "log_dirs": [self.directory(broker)],
        }
        reply = self.call(62, version, registration(version, given | changes), client=CONTROLLER)
        return int(reply.broker_epoch)

    def incarnation(self, broker: int, number: int) -> uuid.UUID:
        found = uuid.UUID(int=(broker << 96) + (number << 32) + 1)
        self.name_value(found, f"incarnation {number} of {self.symbol_of_number(broker) or broker}")
        return found

    def directory(self, broker: int) -> uuid.UUID:
        found = uuid.UUID(int=(broker << 96) + 1000)
        self.name_value(found, f"directory of {self.symbol_of_number(broker) or broker}")
        return found

    def name_epoch(self, epoch: int, symbol: str) -> int:
        if epoch >= 0:
            self._epochs.setdefault(epoch, f"<{symbol}>")
        return epoch

    def beat(self, broker: int, epoch: int, *, fence: bool = False, stop: bool = False, quiet: bool = False) -> Any:
        message = {
            "broker_id": broker, "broker_epoch": epoch, "current_metadata_offset": FAR, "want_fence": fence,
            "want_shut_down": stop, "offline_log_dirs": [],
        }  # fmt: skip
        if quiet:
            return self.quietly(63, 1, message, client=CONTROLLER)
        return self.call(63, 1, message, client=CONTROLLER)

    def epoch_symbol(self, epoch: int) -> str | None:
        return self._epochs.get(epoch)

    # --- the trace ----------------------------------------------------------------------------------------------

    def cluster_at(self, *brokers: int) -> None:
        """Adds the brokers, fenced ones, too, as these or all brokers show them."""
        asked = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}
        self.at_each(60, 2, asked, *brokers, unordered=("brokers",))

    def topics_at(self, names: Sequence[str], *brokers: int) -> None:
        """Adds the metadata of topics, as these or all brokers show them."""
        rows = [{"topic_id": None, "name": name} for name in names]
        self.at_each(
            3, 13, {"topics": rows} | _topic_metadata(), *brokers, unordered=("brokers", "topics", "partitions")
        )

    def _normaliser(self, symbol_of: Callable[[uuid.UUID], str | None]) -> recording._Normaliser:
        made = super()._normaliser(symbol_of)
        return _ClusterNormaliser(made, self)

    def close(self) -> None:
        for broker in self._made_up:
            self.quietly(64, 0, {"broker_id": broker}, client=CONTROLLER)
        super().close()
        self.settle()


class _ClusterNormaliser(recording._Normaliser):
    def __init__(self, made: recording._Normaliser, run: ClusterRun) -> None:
        self.__dict__.update(made.__dict__)
        self._run = run
        self._ports = {port: f"<port of {node}>" for node, port in run.nodes.ports().items()}

    def value(self, value: Any, name: str) -> Any:
        if name == "port" and value in self._ports:
            return self._ports[value]
        if name == "controller_id" and value > 0 and value != CONTROLLER_ID:
            return "<a broker>"
        if name in ("broker_epoch", "previous_broker_epoch") and value >= 0:
            return self._run.epoch_symbol(value) or "<another epoch>"
        return super().value(value, name)


def _topic_metadata() -> dict[str, Any]:
    return {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


def are_alike(counts: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Returns whether two samples may come from the same chance: a χ² test that errs once in some thousand samples."""
    sizes = sum(counts.values()), sum(others.values())
    ratio = (sizes[1] / sizes[0]) ** 0.5
    cells = counts.keys() | others.keys()
    pairs = [(counts.get(cell, 0), others.get(cell, 0)) for cell in cells]
    distance = sum((one * ratio - other / ratio) ** 2 / (one + other) for one, other in pairs if one + other)
    return distance <= 3 * len(cells) + 9


def run_conversation(nodes: Nodes, scenario: Callable[[ClusterRun], None], base: int) -> list[Step]:
    """Runs a scenario with a cluster, and returns its trace."""
    run = ClusterRun(nodes, base)
    run.coordinators()
    try:
        scenario(run)
        found: list[Step] = json.loads(json.dumps(run.trace()))
    finally:
        run.close()
    return found


__all__ = ["BROKERS", "CONTROLLER", "ClusterRun", "Nodes", "run_conversation"]
