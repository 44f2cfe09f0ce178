"""The network between the nodes of ``odradek.Cluster``: which of them do not reach which, and who fetches nothing.

Each node cuts its own connections (``broker/fault_injection/node_network``): a node that starts gets the cuts on its
command line, a node that runs gets them over its control socket.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from odradek.testing.process import BrokerFailed, BrokerProcess


class ClusterNetwork:
    """``nodes``: the processes by their node id. Each change returns when all nodes that run have taken it; a paused
    one takes it first when it goes on. ``paused``: the nodes that cannot reply now."""

    def __init__(self, nodes: Mapping[int, BrokerProcess]) -> None:
        self._nodes = nodes
        self._cuts: set[tuple[int, int]] = set()
        """Sources and targets between which nothing passes."""
        self._held: set[int] = set()
        self._lock = threading.Lock()
        self.paused: set[int] = set()
        for process in nodes.values():
            process.network_faults = ""

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        with self._lock:
            self._cuts.update(pairs)
            self._pass_on()

    def connects(self, one: int, other: int) -> bool:
        """Returns whether nothing is cut between two nodes, and neither is paused."""
        is_cut = {(one, other), (other, one)} & self._cuts
        return not is_cut and not {one, other} & self.paused

    def hold_back(self, node_id: int) -> None:
        with self._lock:
            self._held.add(node_id)
            self._pass_on()

    def heal(self) -> None:
        with self._lock:
            self._cuts.clear()
            self._held.clear()
            self._pass_on()

    def _pass_on(self) -> None:
        """Gives each node its faults, if they have changed."""
        for node_id, process in self._nodes.items():
            faults = self._faults_of(node_id)
            if faults == process.network_faults:
                continue
            process.network_faults = faults
            if node_id in self.paused:
                process.post("network", faults=faults)
                continue
            try:  # the command waits for a start that has read the former faults
                process.command("network", faults=faults)
            except BrokerFailed:
                if process.running:  # otherwise its next start has the faults
                    raise

    def _faults_of(self, node_id: int) -> str:
        to = sorted(self._nodes[target].port for source, target in self._cuts if source == node_id)
        away = sorted(self._nodes[source].port for source, target in self._cuts if target == node_id)
        held = ["fetches"] if node_id in self._held else []
        return ",".join([*(f"to:{port}" for port in to), *(f"from:{port}" for port in away), *held])
