"""The faults of a schedule of whole brokers whose coordinators move: brokers are killed, lose power, stop, are
halted and are cut off, one way or both, and the controller is killed, while clients act. All of it follows from a seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import partial

from odradek.core.ids import PartitionKey
from odradek.wire import frames
from support.group_nodes import GroupNodes
from support.node_faults import NodeFaults
from support.simulated_controller import CONTROLLER


class MovingSchedule(ABC):
    """``run`` runs it. Raises SimulationFailure. ``logs``: the partitions of the coordinators, with three replicas."""

    def __init__(self, nodes: GroupNodes, logs: Sequence[PartitionKey], steps: int) -> None:
        self.nodes = nodes
        self.world = nodes.world
        self.rng = self.world.rng
        nodes.network.most_travel_ms = 20
        self.logs = logs
        self.counts: Counter[str] = Counter()
        self._steps = steps
        self._faults = NodeFaults(nodes, lambda: all(map(self._is_in_sync, logs)))

    def run(self) -> None:
        for _ in range(self._steps):
            self._step()
            self.act()
            self.world.advance(self.rng.choice((1, 5, 20, 100, 400, 1200)))
        self._heal()
        self.settle()
        self.check_end()

    @abstractmethod
    def act(self) -> None:
        """Each client may send a request."""

    @abstractmethod
    def change_clients(self) -> None:
        """Clients come or go."""

    @abstractmethod
    def wanted_victim(self) -> int:
        """Returns the broker that a fault mostly concerns."""

    @abstractmethod
    def settle(self) -> None:
        """Lets the clients finish: the faults have ended."""

    @abstractmethod
    def check_end(self) -> None: ...

    def serves(self, number: int) -> bool:
        return self._faults.serves(number)

    def _step(self) -> None:
        rng, nodes, faults = self.rng, self.nodes, self._faults
        kind = rng.choices(
            (
                "nothing",
                "kill",
                "power",
                "start",
                "cut",
                "join",
                "stop",
                "member",
                "elect",
                "halt",
                "resume",
                "deafen",
                "controller",
            ),
            (40, 3, 1, 9, 3, 8, 2, 4, 4, 3, 7, 3, 1),
        )[0]
        up = faults.up
        if kind == "kill" and up and faults.may_kill():
            faults.kill(self._victim(up))
            self.counts["kills"] += 1
        elif kind == "power" and up and faults.may_cut_power():
            faults.cut_power(rng.choice(up))
            self.counts["kills"] += 1
        elif kind == "stop" and len(up) == len(nodes.brokers) and faults.may_kill() and faults.has_controller:
            self.counts["stops" if faults.stop(self._victim(up)) else "kills"] += 1
        elif kind == "start" and not faults.has_controller:
            nodes.controller.begin()
        elif kind == "start" and faults.down:
            faults.start_one()
        elif kind == "cut":
            nodes.network.cut_off.add(self._victim(sorted(nodes.brokers)))
        elif kind == "deafen":
            self._deafen()
        elif kind == "join":
            faults.join()
        elif kind == "halt" and up:
            faults.halt(self._victim(up))
            self.counts["halts"] += 1
        elif kind == "resume":
            faults.resume()
        elif kind == "controller" and faults.has_controller:
            nodes.controller.kill()
            self.counts["controllers"] += 1
        elif kind == "member":
            self.change_clients()
        elif kind == "elect":
            self._elect()

    def _deafen(self) -> None:
        """What one node sends does not reach another one any more."""
        victim = self._victim(sorted(self.nodes.brokers))
        other = self.rng.choice([one for one in (*sorted(self.nodes.brokers), CONTROLLER) if one != victim])
        self.nodes.network.deaf.add((victim, other) if self.rng.random() < 0.5 else (other, victim))
        self.counts["one-way cuts"] += 1

    def _victim(self, some: list[int]) -> int:
        leader = self.wanted_victim()
        return leader if leader in some and self.rng.random() < 0.6 else self.rng.choice(some)

    def _is_in_sync(self, log: PartitionKey) -> bool:
        registration = self.nodes.registration(*log)
        return set(registration.isr) == set(registration.replicas)

    def _elect(self) -> None:
        """Asks for the preferred leaders: coordinators move while all brokers live."""
        if not self._faults.has_controller:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, index in self.logs:
            by_topic.setdefault(topic, []).append(index)
        rows = [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
        message = {"election_type": 0, "topic_partitions": rows, "timeout": 1_000}
        wire = self.nodes.controller.node.connect(lambda frame: None)
        wire.send(frames.encode_request(43, 2, 1, "admin", message))
        self.counts["elections"] += 1

    def _heal(self) -> None:
        self._faults.end()
        for log in self.logs:
            self.nodes.run_until(partial(self._is_in_sync, log), 60_000)
