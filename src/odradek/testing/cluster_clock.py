"""The clock of all nodes of ``odradek.Cluster``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from odradek.testing.broker import BrokerClock
from odradek.testing.process import BrokerFailed, BrokerProcess


class ClusterClock(BrokerClock):
    """The clock of a cluster: the system's time plus all calls of ``advance``, the same at each node.

    ``advance`` moves retention, expiry of offsets and the sessions of members of groups, as for ``odradek.Broker``. The
    sessions between the nodes have another clock, which nothing moves: no broker loses its session. A paused node
    follows when it goes on, and a node that does not run when it starts.
    """

    def __init__(self, nodes: Mapping[int, BrokerProcess], paused: Collection[int]) -> None:
        """``paused``: the nodes that cannot reply now."""
        self._nodes, self._paused = nodes, paused

    def now_ms(self) -> int:
        """Returns the cluster's time in milliseconds since 1970. Raises BrokerFailed if no node can reply."""
        for process in self._replying():
            return int(process.command("now_ms"))
        raise BrokerFailed("no node of the cluster can reply: start() starts those that do not run")

    def _move(self, by_ms: int) -> None:
        replying = self._replying()
        for node_id, process in self._nodes.items():
            process.clock_ahead_ms += by_ms
            if node_id in self._paused:
                process.post("advance", by_ms=by_ms)
        if replying:
            with ThreadPoolExecutor(len(replying)) as pool:
                moves = [pool.submit(_moved(process, by_ms)) for process in replying]
            for one in moves:
                one.result()

    def _replying(self) -> list[BrokerProcess]:
        return [one for number, one in self._nodes.items() if one.running and number not in self._paused]


def _moved(process: BrokerProcess, by_ms: int) -> Callable[[], None]:
    def move() -> None:
        try:
            process.command("advance", by_ms=by_ms)
        except BrokerFailed:
            if process.running:  # otherwise its next start has the time
                raise

    return move
