"""A controller and three brokers in a simulated world, for ``tests/oracle/cluster_conversation``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from odradek.coordinator_runtime.runtime import Runtime
from support.simulated_brokers import SimulatedBroker, SimulatedNetwork
from support.simulated_controller import CONTROLLER as CONTROLLER_ID
from support.simulated_controller import BlockingWire, SimulatedController

CONTROLLER = "controller"
ANSWER_MS = 120_000
LOAD_MS = 5_000
_PORTS = {"1": 19001, "2": 19002, "3": 19003, CONTROLLER: 19000}
_RACKS = {1: "a", 2: "b", 3: "c"}


class SimulatedNodes:
    """``cluster_conversation.Nodes``. ``settings``: of all nodes. Time passes only in calls."""

    topics_of_a_sample = 20

    def __init__(self, settings: Mapping[str, str], seed: int = 1) -> None:
        listener = f"CONTROLLER://127.0.0.1:{_PORTS[CONTROLLER]}"
        own = {
            "process.roles": "controller",
            "controller.quorum.voters": f"{CONTROLLER_ID}@127.0.0.1:{_PORTS[CONTROLLER]}",
            "controller.listener.names": "CONTROLLER", "listeners": listener, "advertised.listeners": listener,
        }  # fmt: skip
        self.controller = SimulatedController(dict(settings) | own, seed=seed)
        self.world = self.controller.world
        self.network = SimulatedNetwork(self.controller)
        self.network.ports = {_PORTS[str(number)]: f"b{number}" for number in _RACKS}
        self.cluster_id: str = self.controller.broker.cluster_id
        self.brokers = {str(number): self._broker(number, settings) for number in (1, 2, 3)}
        for one in self.brokers.values():
            one.run_until_joined()
        self._paused: set[str] = set()

    def _broker(self, number: int, settings: Mapping[str, str]) -> SimulatedBroker:
        listener = f"PLAINTEXT://127.0.0.1:{_PORTS[str(number)]}"
        own = {"broker.rack": _RACKS[number], "listeners": listener, "advertised.listeners": listener}
        return SimulatedBroker(self.network, number, dict(settings) | own)

    def _node(self, node: str) -> Any:
        return self.controller if node == CONTROLLER else self.brokers[node]

    def connect(self, node: str, client_id: str) -> Any:
        if not self._node(node).node.process.is_alive:
            raise ConnectionError("the node does not run")
        return BlockingWire(self._node(node), client_id, answer_ms=ANSWER_MS)

    def ports(self) -> Mapping[str, int]:
        return _PORTS

    def pass_ms(self, ms: int) -> None:
        self.world.advance(ms)

    def elapsed_ms(self) -> int:
        return self.world.now_ms

    def kill(self, node: str) -> None:
        self._node(node).node.kill()

    def stop(self, node: str) -> None:
        self.brokers[node].stop()

    def start(self, node: str) -> None:
        self._node(node).begin()
        if node != CONTROLLER:
            self.brokers[node].run_until_joined()

    def pause(self, node: str) -> None:
        """Halts a process: what is due in it waits. Bytes that are sent to it wait, too."""
        self._node(node).node.process.halt()

    def resume(self, node: str) -> None:
        self._node(node).node.process.resume()

    def make_loads_slow(self, broker: str, group: str) -> None:
        """A simulated load takes no time: the test of such a scenario delays all loads."""

    def make_transaction_loads_slow(self, broker: str, partition: int) -> None:
        """See ``make_loads_slow``."""


def delay_loads(patch: pytest.MonkeyPatch) -> None:
    """Each load of a coordinator begins some seconds late, in simulated time."""
    drive = Runtime.drive

    def later(self: Runtime[Any, Any], load: Any) -> None:
        self.timers._call_at(self.steady() + LOAD_MS, lambda: drive(self, load))

    patch.setattr(Runtime, "drive", later)


__all__ = ["ANSWER_MS", "SimulatedNodes", "delay_loads"]
