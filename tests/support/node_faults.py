"""The faults of a schedule of whole brokers: brokers are killed, lose power, stop and are cut off. What happens, and to
which broker, is the schedule's choice.
"""

from __future__ import annotations

from support.replicated_nodes import ReplicatedNodes


class NodeFaults:
    """``down``: the brokers that do not run. ``without_power``: the broker that has lost power, until all replicas are
    in sync again: what one disk has lost, others have."""

    def __init__(self, nodes: ReplicatedNodes) -> None:
        self._nodes = nodes
        self._rng = nodes.world.rng
        self.down: set[int] = set()
        self.without_power: set[int] = set()

    @property
    def up(self) -> list[int]:
        return [number for number in self._nodes.alive if number not in self.down]

    def serves(self, number: int) -> bool:
        broker = self._nodes.brokers[number]
        return broker.node.process.is_alive and number not in self.down and broker.is_joined

    def kill(self, number: int) -> None:
        self.down.add(number)
        self._nodes.brokers[number].kill()

    def cut_power(self, number: int) -> None:
        """Kills a broker, whose disk keeps a part of what was not synced."""
        self.kill(number)
        self._nodes.brokers[number].files.power_cut(lambda: self._rng.choice((0.0, 1.0, self._rng.random())))
        self.without_power.add(number)

    def stop(self, number: int) -> bool:
        """Stops a broker. Returns False if it did not stop and was killed."""
        try:
            self._nodes.brokers[number].stop()
        except AssertionError:
            self.kill(number)
            return False
        self.down.add(number)
        return True

    def start_one(self) -> None:
        """Starts one of the brokers that do not run."""
        number = self._rng.choice(sorted(self.down))
        self.down.discard(number)
        self._nodes.brokers[number].begin()

    def end(self) -> None:
        """Ends all faults, and waits until all brokers have joined."""
        nodes = self._nodes
        nodes.network.cut_off.clear()
        for number in sorted(self.down):
            nodes.brokers[number].begin()
        self.down.clear()
        nodes.run_until(lambda: all(one.is_joined for one in nodes.brokers.values()), 60_000)

    def are_over(self) -> bool:
        """Whether all brokers run and reach each other."""
        return not self.down and not self._nodes.network.cut_off
