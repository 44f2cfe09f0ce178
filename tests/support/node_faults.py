"""The faults of a schedule of whole brokers: brokers are killed, lose power, stop, are halted and are cut off, one way
or both, and the controller is killed. What happens, and to which broker, is the schedule's choice.
"""

from __future__ import annotations

from collections.abc import Callable

from support.replicated_nodes import ReplicatedNodes


class NodeFaults:
    """``down``: the brokers that do not run. ``halted``: those that have got SIGSTOP. ``are_in_sync``: whether all
    replicas are.

    One broker loses power at a time, when all are in sync, and no other one is killed before all are again: fewer
    brokers than the minimum are lost at a time, and what one disk has lost, others have.
    """

    def __init__(self, nodes: ReplicatedNodes, are_in_sync: Callable[[], bool]) -> None:
        self._nodes = nodes
        self._rng = nodes.world.rng
        self._are_in_sync = are_in_sync
        self._has_lost_power = False
        self.down: set[int] = set()
        self.halted: set[int] = set()

    @property
    def up(self) -> list[int]:
        return [number for number in self._nodes.alive if number not in self.down]

    def serves(self, number: int) -> bool:
        broker = self._nodes.brokers[number]
        runs = broker.node.process.is_alive and number not in self.down | self.halted
        return runs and broker.is_joined

    def kill(self, number: int) -> None:
        self.halted.discard(number)
        self.down.add(number)
        self._nodes.brokers[number].kill()

    def cut_power(self, number: int) -> None:
        """Kills a broker, whose disk keeps a part of what was not synced."""
        self.kill(number)
        self._nodes.brokers[number].files.power_cut(lambda: self._rng.choice((0.0, 1.0, self._rng.random())))
        self._has_lost_power = True

    def stop(self, number: int) -> bool:
        """Stops a broker. Returns False if it did not stop and was killed."""
        try:
            self._nodes.brokers[number].stop()
        except AssertionError:
            self.kill(number)
            return False
        self.down.add(number)
        return True

    def halt(self, number: int) -> None:
        self.halted.add(number)
        self._nodes.brokers[number].node.process.halt()

    def resume(self) -> None:
        """All that the halted brokers have got meanwhile arrives now."""
        for number in sorted(self.halted):
            self._nodes.brokers[number].node.process.resume()
        self.halted.clear()

    def join(self) -> None:
        """All nodes reach each other again."""
        self._nodes.network.cut_off.clear()
        self._nodes.network.deaf.clear()

    @property
    def has_controller(self) -> bool:
        return self._nodes.controller.node.process.is_alive

    def start_one(self) -> None:
        """Starts one of the brokers that do not run."""
        number = self._rng.choice(sorted(self.down))
        self.down.discard(number)
        self._nodes.brokers[number].begin()

    def end(self) -> None:
        """Ends all faults, and waits until all brokers have joined."""
        nodes = self._nodes
        self.join()
        self.resume()
        if not self.has_controller:
            nodes.controller.begin()
        for number in sorted(self.down):
            nodes.brokers[number].begin()
        self.down.clear()
        nodes.run_until(lambda: all(one.is_joined for one in nodes.brokers.values()), 60_000)

    def may_cut_power(self) -> bool:
        return not self._has_lost_power and self._are_over()

    def may_kill(self) -> bool:
        if self._has_lost_power and self._are_over():
            self._has_lost_power = False
        return not self._has_lost_power

    def _are_over(self) -> bool:
        """A broker that has begun again counts when it has joined: until then the ISR is that of its former process."""
        nodes = self._nodes
        has_all = not self.down and not self.halted and all(one.is_joined for one in nodes.brokers.values())
        return has_all and not nodes.network.cut_off and not nodes.network.deaf and self._are_in_sync()
