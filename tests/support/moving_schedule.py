"""The faults of a schedule of whole brokers whose coordinators move: brokers are killed, lose power, stop and are cut
off while clients act. All of it follows from a seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from odradek.core.ids import PartitionKey
from odradek.wire import frames
from support.group_nodes import GroupNodes


class MovingSchedule:
    """``run`` runs it. Raises SimulationFailure. ``logs``: the partitions of the coordinators, with three replicas."""

    def __init__(self, nodes: GroupNodes, logs: Sequence[PartitionKey], steps: int) -> None:
        self.nodes = nodes
        self.world = nodes.world
        self.rng = self.world.rng
        nodes.network.most_travel_ms = 20
        self.logs = logs
        self.counts: Counter[str] = Counter()
        self._steps = steps
        self._down: set[int] = set()
        self._without_power: set[int] = set()

    def run(self) -> None:
        for _ in range(self._steps):
            self._step()
            self.act()
            self.world.advance(self.rng.choice((1, 5, 20, 100, 400, 1200)))
        self._heal()
        self.settle()
        self.check_end()

    def act(self) -> None:
        """Each client may send a request."""
        raise NotImplementedError

    def change_clients(self) -> None:
        """Clients come or go."""
        raise NotImplementedError

    def wanted_victim(self) -> int:
        """Returns the broker that a fault mostly concerns."""
        raise NotImplementedError

    def settle(self) -> None:
        """Lets the clients finish: the faults have ended."""
        raise NotImplementedError

    def check_end(self) -> None:
        raise NotImplementedError

    def serves(self, number: int) -> bool:
        broker = self.nodes.brokers[number]
        return broker.node.process.is_alive and number not in self._down and broker.is_joined

    def _step(self) -> None:
        rng, nodes = self.rng, self.nodes
        kind = rng.choices(
            ("nothing", "kill", "power", "start", "cut", "join", "stop", "member", "elect"),
            (40, 3, 1, 9, 3, 8, 2, 4, 4),
        )[0]
        up = [number for number in nodes.alive if number not in self._down]
        if kind == "kill" and up:
            self._kill(self._victim(up))
        elif kind == "power" and up and not self._without_power and self._is_whole():
            number = rng.choice(up)
            self._kill(number)
            nodes.brokers[number].files.power_cut(lambda: rng.choice((0.0, 1.0, rng.random())))
            self._without_power.add(number)
        elif kind == "stop" and len(up) == 3:
            self._stop(self._victim(up))
        elif kind == "start" and self._down:
            number = rng.choice(sorted(self._down))
            self._down.discard(number)
            nodes.brokers[number].begin()
        elif kind == "cut":
            nodes.network.cut_off.add(self._victim([1, 2, 3]))
        elif kind == "join":
            nodes.network.cut_off.clear()
        elif kind == "member":
            self.change_clients()
        elif kind == "elect":
            self._elect()

    def _victim(self, some: list[int]) -> int:
        leader = self.wanted_victim()
        return leader if leader in some and self.rng.random() < 0.6 else self.rng.choice(some)

    def _is_whole(self) -> bool:
        if not all(map(self._is_in_sync, self.logs)) or self._down or self.nodes.network.cut_off:
            return False
        self._without_power.clear()
        return True

    def _is_in_sync(self, log: PartitionKey) -> bool:
        return set(self.nodes.registration(*log).isr) == {1, 2, 3}

    def _kill(self, number: int) -> None:
        self._down.add(number)
        self.nodes.brokers[number].kill()
        self.counts["kills"] += 1

    def _stop(self, number: int) -> None:
        try:
            self.nodes.brokers[number].stop()
        except AssertionError:
            self._kill(number)
        else:
            self._down.add(number)
            self.counts["stops"] += 1

    def _elect(self) -> None:
        """Asks for the preferred leaders: coordinators move while all brokers live."""
        by_topic: dict[str, list[int]] = {}
        for topic, index in self.logs:
            by_topic.setdefault(topic, []).append(index)
        rows = [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
        message = {"election_type": 0, "topic_partitions": rows, "timeout": 1_000}
        wire = self.nodes.controller.node.connect(lambda frame: None)
        wire.send(frames.encode_request(43, 2, 1, "admin", message))
        self.counts["elections"] += 1

    def _heal(self) -> None:
        nodes = self.nodes
        nodes.network.cut_off.clear()
        for number in sorted(self._down):
            nodes.brokers[number].begin()
        self._down.clear()
        nodes.run_until(lambda: all(one.is_joined for one in nodes.brokers.values()), 60_000)
        for log in self.logs:
            nodes.run_until(partial(self._is_in_sync, log), 60_000)
