"""``odradek.Cluster``: some brokers and a controller for a ``with`` block, each in a process that a test may end."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Self

from odradek.broker.repair.cluster_layout import CONTROLLER_ID, MOST_BROKERS, ClusterNode, lay_out, prepare
from odradek.broker.settings.roles import CONTROLLER
from odradek.client.context_managers import Startable
from odradek.client.other_names import OtherNames
from odradek.core.errors import ConfigError
from odradek.core.operating_system import require_posix
from odradek.testing.broker import DEFAULTS, BrokerFailed, Faults, config_text
from odradek.testing.cluster_clock import ClusterClock
from odradek.testing.cluster_network import ClusterNetwork
from odradek.testing.ports import PortReservation, reserve_ports
from odradek.testing.process import BrokerProcess
from odradek.text.log_lines import LEVELS

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.client.model import TopicDescription

__all__ = ["Cluster"]

_POLL_S = 0.05
_COORDINATOR_MS = 10_000
SHORT_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "300"}
"""A killed broker can register again only after its session, as in Kafka."""
Node = int | str
"""The number of a broker, from 1 on, or ``"controller"``."""


class Cluster(OtherNames, Startable):
    """Brokers 1, 2, … and one controller on this machine, each in a process of its own::

        with odradek.Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
            Producer({"bootstrap.servers": cluster.bootstrap_servers})
            cluster.kill(2)

    ``racks``: one for each broker. ``config`` maps Kafka's names of settings to values, for all nodes. The session of
    a broker at the controller is 3 s unless ``config`` has ``broker.session.timeout.ms``. ``data_dir``:
    the folder of the nodes' directories ``1``, ``2``, … and ``controller``; None creates a temporary one, which
    ``close`` removes. ``log_level``: as for ``odradek.Broker``.

    ``kill``, ``stop``, ``start``, ``pause`` and ``resume`` take the number of a broker, or ``"controller"``; without
    one, ``stop`` and ``start`` take all nodes. ``leader``, ``coordinator`` and ``controller`` say which node to take.
    ``faults`` lets the next requests at one node fail, and ``clock`` is the clock of all nodes. ``isolate``,
    ``partition`` and ``cut`` cut the network between nodes, ``hold_back`` lets a follower fetch no more, and ``heal``
    ends all that. Clients reach all nodes. The nodes always
    end with this process. Raises ConfigError for settings that cannot work, StorageError for directories that are those
    of another cluster.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        racks: Sequence[str] | None = None,
        config: Mapping[str, object] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        log_level: str = "WARNING",
    ) -> None:
        require_posix("the broker")
        if not 1 <= brokers <= MOST_BROKERS:
            raise ConfigError(f"brokers must be 1 to {MOST_BROKERS}, not {brokers}")
        if log_level not in LEVELS:
            raise ConfigError(f"log_level must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, not {log_level!r}")
        texts = DEFAULTS | SHORT_SESSIONS | {name: config_text(name, value) for name, value in (config or {}).items()}
        is_temporary = data_dir is None
        reservations = reserve_ports(brokers + 1)
        folder = Path(tempfile.mkdtemp(prefix="odradek-")) if data_dir is None else Path(data_dir).absolute()
        self.data_dir = folder
        self._nodes: dict[int, BrokerProcess] = {}
        self._end = weakref.finalize(self, _end, self._nodes, reservations, folder, os.getpid(), is_temporary)
        try:
            nodes = lay_out(folder, "127.0.0.1", [one.port for one in reservations], racks or (), texts)
            self.cluster_id = prepare(nodes)
        except BaseException:
            self.close()
            raise
        for node in nodes:
            self._nodes[node.node_id] = _process(node, log_level, is_temporary=is_temporary)
        self._network = ClusterNetwork(self._nodes)
        self.clock = ClusterClock(self._nodes, self._network.paused)
        self._faulty: set[Node] = set()
        """The nodes that have had faults since the last ``clear_faults``."""

    # --- addresses ----------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> tuple[int, ...]:
        """The numbers of the brokers, which are their node ids."""
        return tuple(number for number in self._nodes if number != CONTROLLER_ID)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The brokers and ``"controller"``."""
        return (*self.brokers, CONTROLLER)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port,…`` of all brokers, for any Kafka client."""
        return ",".join(self._nodes[number].bootstrap_servers for number in self.brokers)

    bootstrap = bootstrap_servers

    @property
    def bootstrap_controllers(self) -> str:
        """``host:port`` of the controller, for tools that ask it directly."""
        return self._nodes[CONTROLLER_ID].bootstrap_servers

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings that a client needs."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def address(self, node: Node) -> str:
        """Returns ``host:port`` of a node."""
        return self._find(node).bootstrap_servers

    # --- state --------------------------------------------------------------------------------------------------

    def running(self, node: Node | None = None) -> bool:
        """Returns whether a node runs; without one, whether all do. A paused node runs."""
        return all(one.running for one in self._some(node))

    def failed(self) -> list[Node]:
        """Returns the nodes that ended without ``stop`` or ``kill``; ``log_tail`` says why."""
        return [_name(number) for number, one in self._nodes.items() if one.failed]

    def pid(self, node: Node) -> int | None:
        """Returns the process id of a node; None while it does not run."""
        return self._find(node).pid

    def log_tail(self, node: Node, start: int = 0) -> str:
        """Returns the last lines of a node's log. ``start``: only what follows this many bytes."""
        return self._find(node).log_tail(start)

    def log_sizes(self) -> dict[Node, int]:
        """Returns the bytes of each node's log."""
        return {_name(number): one.log_size() for number, one in self._nodes.items()}

    def faults(self, node: Node) -> Faults:
        """Returns the faults of a node, as ``odradek.Broker.faults``: ``cluster.faults(2).error("Produce", code)``."""
        found = Faults(self._find(node))
        self._faulty.add(node)
        return found

    def clear_faults(self) -> None:
        """Removes the faults of all nodes."""
        for node in self._faulty:
            if self._find(node).running:
                Faults(self._find(node)).clear()
        self._faulty.clear()

    # --- replicas -----------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Returns the broker that leads a partition; None while it has no leader.

        Raises UnknownTopic; ValueError for a partition that the topic does not have."""
        if type(partition) is not int:
            raise TypeError(f"the partition is a whole number, not {partition!r}")
        with self._admins() as admins:
            topics = [view[topic] for view in _views(admins, [topic]) if topic in view]
        found = [one for described in topics for one in described.partitions if one.partition == partition]
        if not found:
            most = max(len(described.partitions) for described in topics)
            raise ValueError(f"{topic} has no partition {partition}: it has {most}")
        leader = max(found, key=lambda one: one.leader_epoch).leader
        return leader if leader in self._nodes else None

    def coordinator(self, group: str | None = None, *, transactional_id: str | None = None) -> int | None:
        """Returns the broker that coordinates a group or a transactional id; None if none does for ten seconds.

        A dead coordinator is replaced when its session is over. Raises BrokerUnreachable if no broker runs."""
        from odradek.client.admin.admin import Admin
        from odradek.client.errors import RequestTimedOut

        with Admin(",".join(self._informed()), default_api_timeout_ms=_COORDINATOR_MS) as admin:
            try:
                return admin.coordinator(group, transactional_id=transactional_id).node_id
            except RequestTimedOut:
                return None

    @property
    def controller(self) -> Node | None:
        """The node that is the controller; None while it does not run, or is paused."""
        is_at_work = self._nodes[CONTROLLER_ID].running and CONTROLLER_ID not in self._network.paused
        return CONTROLLER if is_at_work else None

    def wait_until_in_sync(self, topics: Sequence[str] | None = None, *, within_s: float = 60.0) -> None:
        """Waits until each replica of these topics is in sync with its leader; of all topics without any.

        A broker that is down, or does not fetch, is in sync with nothing. Raises BrokerFailed after ``within_s``
        seconds, with the replicas that are behind; UnknownTopic."""
        end_s, pause = time.monotonic() + within_s, threading.Event()
        with self._admins() as admins:
            while True:
                views = _views(admins, topics)
                names = {name for view in views for name in view}
                behind = {
                    f"{name}-{one.partition}": sorted(set(one.replicas) - set(one.isr))
                    for view in views
                    for name, topic in view.items()
                    for one in topic.partitions
                    if one.leader not in self._nodes or set(one.isr) != set(one.replicas)
                }
                if not behind and all(view.keys() == names for view in views):
                    return
                if time.monotonic() >= end_s:
                    some = ", ".join(f"{name} lacks {brokers}" for name, brokers in list(behind.items())[:5])
                    raise BrokerFailed(f"after {within_s:g} s, {len(behind)} partitions are not in sync: {some}")
                pause.wait(_POLL_S)

    @contextmanager
    def _admins(self) -> Iterator[list[Admin]]:
        """An Admin at each broker that is informed."""
        from odradek.client.admin.admin import Admin  # here, because few tests ask

        with ExitStack() as stack:
            yield [stack.enter_context(Admin(address)) for address in self._informed()]

    def _informed(self) -> list[str]:
        """The addresses of the brokers that run and are not cut off from the controller: others may describe a former
        state. Without any, those of all brokers."""
        informed = [
            self._nodes[number].bootstrap_servers
            for number in self.brokers
            if self._nodes[number].running and self._network.connects(number, CONTROLLER_ID)
        ]
        return informed or [self._nodes[number].bootstrap_servers for number in self.brokers]

    # --- processes ----------------------------------------------------------------------------------------------

    def start(self, node: Node | None = None) -> Self:
        """Starts a node with its former data and address, or all that do not run. Returns when it serves requests.

        A broker serves after the controller has lifted its fence, so the controller has to run. Raises BrokerFailed."""
        if not self._end.alive:
            raise BrokerFailed("the cluster was closed")
        if node is not None:
            process = self._find(node)
            if node != CONTROLLER and not self._nodes[CONTROLLER_ID].running:
                raise BrokerFailed(f'broker {node} cannot start without the controller: start("{CONTROLLER}") first')
            process.start()
            return self
        _start_together([one for one in self._some(None) if not one.running], self._nodes[CONTROLLER_ID])
        return self

    def stop(self, node: Node | None = None) -> None:
        """Stops a node cleanly, or all: the brokers first. Raises BrokerFailed if a node ends with an error code."""
        if node is not None:
            self.resume(node)
            _stop(self._find(node))
            return
        for each in self.nodes:
            self.resume(each)
        controller = self._nodes[CONTROLLER_ID]
        _together(_stop, [one for one in self._some(None) if one is not controller])
        _stop(controller)

    def kill(self, node: Node) -> None:
        """Ends a node with kill -9. The controller fences a broker when its session is over."""
        self._find(node).kill()
        self._network.paused.discard(_number(node))

    def pause(self, node: Node) -> None:
        """Halts the process of a node (SIGSTOP): its connections stay open, and nothing replies."""
        one = self._find(node)
        if not one.running or one.pid is None:
            raise BrokerFailed(f"{_label(node)} does not run")
        self._network.paused.add(_number(node))
        os.kill(one.pid, signal.SIGSTOP)
        _wait_until_halted(one.pid)

    def resume(self, node: Node) -> None:
        """Lets a paused node go on. Does nothing if it is not paused."""
        _resume(self._find(node))
        self._network.paused.discard(_number(node))

    # --- the network --------------------------------------------------------------------------------------------

    def isolate(self, node: Node) -> None:
        """Cuts a node off from all other nodes, in both directions. Clients reach it."""
        own = self._numbers([node])
        self._network.cut(_both_ways(own, set(self._nodes) - own))

    def partition(self, *groups: Collection[Node]) -> None:
        """Cuts the network between groups of nodes, ``partition({1}, {2, 3})``: nodes of different groups do not reach
        each other. A node in no group, for example the controller, reaches all of them.

        Raises ValueError for a node in two groups, and for fewer than two groups."""
        wrong = next((group for group in groups if isinstance(group, int | str)), None)
        if wrong is not None or len(groups) < 2:
            what = "one group" if wrong is None else repr(wrong)
            raise ValueError(f"partition() takes two groups of nodes or more, such as {{1}} and {{2, 3}}, not {what}")
        sets = [self._numbers(group) for group in groups]
        for first, second in combinations(sets, 2):
            if first & second:
                both = ", ".join(str(_name(number)) for number in sorted(first & second))
                raise ValueError(f"a node can be in one group of partition() only, and these are in two: {both}")
            self._network.cut(_both_ways(first, second))

    def cut(self, source: Node, target: Node) -> None:
        """Cuts the network in one direction: nothing that ``source`` sends reaches ``target``.

        What ``target`` sends arrives. No new connection between the two can be opened, in either direction."""
        self._numbers([source, target])
        if source == target:
            raise ValueError(f"cut() takes two nodes, not {source!r} twice")
        self._network.cut({(_number(source), _number(target))})

    def hold_back(self, broker: int) -> None:
        """Lets the replicas of a broker fetch nothing from their leaders until ``heal``. The broker stays a member."""
        (number,) = self._numbers([broker])
        if number == CONTROLLER_ID:
            raise ValueError("the controller has no replicas that fetch: give the number of a broker")
        self._network.hold_back(number)

    def heal(self) -> None:
        """Ends all cuts, and lets all brokers fetch."""
        self._network.heal()

    def close(self) -> None:
        """Stops all nodes; if ``data_dir`` was None, kills them and removes their data. Further calls do nothing."""
        self._end()

    def __repr__(self) -> str:
        return f"<odradek.Cluster of {len(self._nodes) - 1} brokers at {self.bootstrap_servers}>"

    def _find(self, node: Node) -> BrokerProcess:
        found = next((one for number, one in self._nodes.items() if _name(number) == node), None)
        if found is None or type(node) not in {int, str}:  # True and 1.0 are equal to 1
            raise ValueError(
                f"there is no node {node!r}: the nodes are {', '.join(map(str, self.brokers))} and {CONTROLLER!r}"
            )
        return found

    def _numbers(self, nodes: Collection[Node]) -> set[int]:
        for node in nodes:
            self._find(node)
        return {_number(node) for node in nodes}

    def _some(self, node: Node | None) -> list[BrokerProcess]:
        return list(self._nodes.values()) if node is None else [self._find(node)]


def _process(node: ClusterNode, log_level: str, *, is_temporary: bool) -> BrokerProcess:
    host, _, port = node.address.rpartition(":")
    return BrokerProcess(
        node.data_dir.with_name(f"{node.data_dir.name}-log") if not is_temporary else node.data_dir,
        config=node.settings,
        host=host,
        port=int(port),
        data_dir=node.data_dir,
        temporary=is_temporary,
        log_level=log_level,
    )


def _both_ways(ones: set[int], others: set[int]) -> set[tuple[int, int]]:
    return {*product(ones, others), *product(others, ones)}


def _number(node: Node) -> int:
    return CONTROLLER_ID if node == CONTROLLER else int(node)


def _name(number: int) -> Node:
    return CONTROLLER if number == CONTROLLER_ID else number


def _label(node: Node) -> str:
    return "the controller" if node == CONTROLLER else f"broker {node}"


def _stop(process: BrokerProcess) -> None:
    tail = process.log_tail() if process.failed else ""
    code = process.stop()
    if code:
        raise BrokerFailed(
            f"the node at {process.bootstrap_servers} ended with code {code}\n{tail or process.log_tail()}"
        )


def _views(admins: Sequence[Admin], topics: Sequence[str] | None) -> list[dict[str, TopicDescription]]:
    """Returns the topics as each broker describes them. Raises UnknownTopic if no broker knows one of them.

    Brokers are not asked twice: one that does not know a topic yet is behind another that does."""
    from odradek.client.errors import UnknownTopic

    views = [admin.describe_topics(topics, missing_ok=True) for admin in admins]
    unknown = tuple(name for name in topics or () if not any(name in view for view in views))
    if unknown:
        names = sorted(one for one in admins[0].topics() if not one.startswith("__"))
        known = f"the topics are {', '.join(names)}" if names else "there is no topic"
        raise UnknownTopic(f"unknown topic {', '.join(unknown)}: {known}", unknown)
    return views


def _resume(process: BrokerProcess) -> None:
    if process.running and process.pid is not None:
        os.kill(process.pid, signal.SIGCONT)


def _wait_until_halted(pid: int) -> None:
    """Waits until a process is halted, at most ten seconds. Systems without ``/proc`` do not say it.

    If this process dies, the system wakes a halted node, which ends then; it does not wake one that is halted later."""
    deadline, pause = time.monotonic() + 10, threading.Event()
    with suppress(OSError):
        while time.monotonic() < deadline:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZX":
                return
            pause.wait(0.001)


def _start_together(nodes: Sequence[BrokerProcess], controller: BrokerProcess) -> None:
    """Starts nodes at once: brokers wait for the controller themselves. If it fails, they do not start either."""
    others = [one for one in nodes if one is not controller]
    with ThreadPoolExecutor(len(nodes) or 1) as pool:
        started = [pool.submit(one.start) for one in others]
        try:
            if controller in nodes:
                controller.start()
        except BaseException:
            while wait(started, _POLL_S).not_done:  # a thread may not have started its process yet
                for process in [one.process for one in others]:
                    if process is not None:
                        process.kill()  # its thread sees the end
            raise
    for done in started:
        done.result()


def _together(work: Callable[[BrokerProcess], object], processes: Sequence[BrokerProcess]) -> None:
    """Does something with several nodes at the same time. Raises the first exception after all have ended."""
    if not processes:
        return
    with ThreadPoolExecutor(len(processes)) as pool:
        for done in [pool.submit(work, one) for one in processes]:
            done.result()


def _end(
    nodes: Mapping[int, BrokerProcess],
    reservations: Sequence[PortReservation],
    folder: Path,
    owner: int,
    is_temporary: bool,
) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that owns the nodes
    try:
        for node in nodes.values():
            _resume(node)
        if is_temporary:
            for node in nodes.values():
                node.kill()  # its data is removed anyway
        else:
            brokers = [node for number, node in nodes.items() if number != CONTROLLER_ID]
            with suppress(BrokerFailed):
                _together(BrokerProcess.stop, brokers)
            for node in nodes.values():
                with suppress(BrokerFailed):
                    node.stop()
    finally:
        for reservation in reservations:
            reservation.close()
        if is_temporary:
            shutil.rmtree(folder, ignore_errors=True)
