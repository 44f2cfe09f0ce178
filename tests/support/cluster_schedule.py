"""A schedule of whole nodes: one controller and three brokers, whose nodes stop, crash and are cut off while clients
change the catalogue at every broker. All of it follows from a seed.

Checked after each step: a broker that is fenced leads nothing; a broker epoch has one incarnation; no producer id is
given twice. After every fourth step: a node's image is that of the controller's log at its offset. Then the faults end,
and every acknowledged change has to be on every node, and a new change at each broker has to reach all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from odradek.batches.rows import iter_records
from odradek.broker.loop.scheduler import Steps
from odradek.catalog.records import PARTITION, MetadataRecord, encode, kind_of
from odradek.core.errors import ErrorCode
from odradek.storage.disk import checkpoints
from odradek.wire import frames
from odradek.wire.api_keys import CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS, INIT_PRODUCER_ID
from support.cluster_nodes import SESSION_MS, Nodes, described, logs_of
from support.combined_nodes import SimulatedCombined
from support.controlled_cluster import new_catalog
from support.simulated_brokers import SimulatedBroker
from support.simulated_controller import CONTROLLER
from support.simulated_node import HOME
from support.world import SimulationFailure

STEPS, IMAGE_STEPS = 60, 4
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "1500", "metadata.max.retention.bytes": "2500"}
"""With these settings, a broker that was away for some time gets a snapshot."""
WAIT_MS = 9_000
"""A client whose reply comes within this time sees its change at the broker that it has asked."""
_NONE = ErrorCode.none


@dataclass
class AskedValue:
    """A value of a setting: when a client has asked for it, and when it got the reply."""

    text: str
    asked_ms: int
    answered_ms: int | None = None


class ClusterSchedule:
    """``run`` runs it. Raises SimulationFailure. ``combined``: the controller is a broker, too, with clients."""

    def __init__(self, seed: int, *, combined: bool = False) -> None:
        self.nodes = Nodes(SNAPSHOTS if seed % 2 else None, seed=seed, combined=combined)
        self.world = self.nodes.world
        self.rng = self.world.rng
        late = self.nodes.new_broker(3)
        late.run_until_joined()
        self.nodes.brokers[3] = late
        self.nodes.network.most_travel_ms = 20
        self.up = {1, 2, 3}
        self.is_controller_up = True
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.asked_deletion: set[str] = set()
        self.values: dict[str, list[AskedValue]] = {}
        """Topic → the values of its setting that were asked for."""
        self.producer_ids: list[int] = []
        self._asked_brokers: dict[str, int] = {}
        self.nodes.settle()
        controller = self.nodes.controller.broker
        self._base = described(controller.catalog.state)
        self._rows: list[tuple[int, bytes]] = []
        """The records that are committed later, with their offsets."""
        self._rows_end = controller.metadata_log.synced_end
        self._incarnations: dict[tuple[int, int], UUID] = {}
        self._names = self._values = 0
        self._watch()

    def run(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (8, self._create), (3, self._delete), (4, self._alter), (3, self._take_id), (2, self._end_broker),
            (3, self._start_broker), (1, self._end_controller), (3, self._start_controller), (2, self._cut_off),
            (3, self._connect),
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        for step in range(STEPS):
            ((_, action),) = self.rng.choices(actions, weights)
            action()
            self.world.advance(self.rng.choice((0, 3, 40, 300, SESSION_MS // 2)))
            self.check(images=not step % IMAGE_STEPS)
        self.heal()

    # --- clients ------------------------------------------------------------------------------------------------

    def _send(self, api_key: int, version: int, message: dict[str, Any], on_reply: Callable[[Any], None]) -> None:
        """Sends a request to a random broker. ``on_reply`` is called if a reply comes."""
        alive = [number for number in sorted(self.up) if self.nodes.brokers[number].is_joined]
        own = self.nodes.controller
        if isinstance(own, SimulatedCombined) and self.is_controller_up and own.is_joined:
            alive.append(CONTROLLER)
        if not alive:
            return
        number = self.rng.choice(alive)
        asked = self._node(number)
        if api_key == CREATE_TOPICS:
            self._asked_brokers[message["topics"][0]["name"]] = number
        self.world.note(f"client of {number}", "{} {}", api_key, message)

        def on_frame(frame: bytes) -> None:
            on_reply(frames.decode_reply(api_key, version, frame)[1])

        wire = asked.node.connect(on_frame)
        wire.send(frames.encode_request(api_key, version, 1, "client", message))

    def _node(self, number: int) -> SimulatedBroker | SimulatedCombined:
        own = self.nodes.controller
        return own if number == CONTROLLER and isinstance(own, SimulatedCombined) else self.nodes.brokers[number]

    def _create(self) -> None:
        self._names += 1
        name = f"t{self._names}"
        row = {"name": name, "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}

        asked_ms = self.world.now_ms

        def on_reply(reply: Any) -> None:
            if reply.topics[0].error_code not in (_NONE, ErrorCode.topic_already_exists):
                return
            self.world.note("client", "{} is created", name)
            self.created.add(name)
            number = self._asked_brokers[name]
            # A broker that stops waits no longer: it replies to what the controller has done.
            runs = self.is_controller_up if number == CONTROLLER else number in self.up
            is_seen = self._node(number).broker.catalog.topic(name) is not None
            if runs and self.world.now_ms - asked_ms < WAIT_MS and not is_seen:
                raise SimulationFailure(f"the client of {name} has the reply before its broker has the topic", name)

        self._send(CREATE_TOPICS, 7, {"topics": [row], "timeout": 10_000, "validate_only": False}, on_reply)

    def _delete(self) -> None:
        names = sorted(self.created - self.asked_deletion)
        if not names:
            return
        name = self.rng.choice(names)
        self.asked_deletion.add(name)

        def on_reply(reply: Any) -> None:
            if reply.responses[0].error_code in (_NONE, ErrorCode.unknown_topic_or_partition):
                self.deleted.add(name)

        message = {"topics": [{"name": name, "topic_id": None}], "timeout": 10_000}
        self._send(DELETE_TOPICS, 6, message, on_reply)

    def _alter(self) -> None:
        names = sorted(self.created - self.asked_deletion)
        if not names:
            return
        name = self.rng.choice(names)
        self._values += 1
        asked = AskedValue(str(1_000 + self._values), self.world.now_ms)
        self.values.setdefault(name, []).append(asked)

        def on_reply(reply: Any) -> None:
            if reply.responses[0].error_code is _NONE:
                asked.answered_ms = self.world.now_ms

        change = {"name": "retention.ms", "config_operation": 0, "value": asked.text}
        resources = [{"resource_type": 2, "resource_name": name, "configs": [change]}]
        self._send(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False}, on_reply)

    def _take_id(self) -> None:
        def on_reply(reply: Any) -> None:
            if reply.error_code is _NONE:
                self.producer_ids.append(int(reply.producer_id))

        message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        self._send(INIT_PRODUCER_ID, 4, message, on_reply)

    # --- faults -------------------------------------------------------------------------------------------------

    def _end_broker(self) -> None:
        if not self.up:
            return
        number = self.rng.choice(sorted(self.up))
        broker = self.nodes.brokers[number]
        how = self.rng.choice(("kill", "power", "stop"))
        self.world.note(f"broker {number}", how)
        self.up.discard(number)
        if how == "stop" and broker.is_joined:
            broker.stop(within_ms=60_000)
            return
        broker.kill()
        if how == "power":
            broker.files.power_cut()

    def _start_broker(self) -> None:
        down = sorted(self.nodes.brokers.keys() - self.up)
        if down:
            number = self.rng.choice(down)
            self.world.note(f"broker {number}", "start")
            self.up.add(number)
            self.nodes.brokers[number].begin()

    def _end_controller(self) -> None:
        if self.is_controller_up:
            self.is_controller_up = False
            self.world.note("controller", "kill")
            self.nodes.controller.node.kill()
            if self.rng.random() < 0.5:
                self.nodes.controller.files.power_cut()

    def _start_controller(self) -> None:
        if not self.is_controller_up:
            self.is_controller_up = True
            self.world.note("controller", "start")
            self.nodes.controller.begin()
            self._watch()

    def _cut_off(self) -> None:
        number = self.rng.choice(sorted(self.nodes.brokers))
        self.world.note(f"broker {number}", "is cut off")
        self.nodes.network.cut_off.add(number)

    def _connect(self) -> None:
        cut_off = self.nodes.network.cut_off
        if cut_off:
            number = self.rng.choice(sorted(cut_off))
            self.world.note(f"broker {number}", "is connected")
            cut_off.discard(number)

    # --- checks -------------------------------------------------------------------------------------------------

    def check(self, *, images: bool = True) -> None:
        if len(set(self.producer_ids)) < len(self.producer_ids):
            raise SimulationFailure("a producer id was given twice")
        if not self.is_controller_up:
            return
        state: Any = self.nodes.controller.broker.catalog.state
        for one in state.nodes.brokers.values():
            known = self._incarnations.setdefault((one.broker_id, one.epoch), one.incarnation_id)
            if known != one.incarnation_id:
                raise SimulationFailure(f"broker {one.broker_id} has two incarnations in the epoch {one.epoch}")
        for topic in state.topics.values():
            for part in topic.partitions:
                if part.leader >= 0 and state.nodes.brokers[part.leader].is_fenced:
                    raise SimulationFailure(f"{topic.name}-{part.partition_id}: the leader {part.leader} is fenced")
        if images:
            self._check_images()

    def _check_images(self) -> None:
        """Compares the image of each idle broker with the controller's log up to the same offset."""
        wanted: dict[int, list[int]] = {}
        for number in self.up:
            node, role = self.nodes.brokers[number].broker, self.nodes.brokers[number].role
            if role.joined.resolved and not node.controller.waiting and not node.scheduler.busy:
                wanted.setdefault(role.copy.applied.end_offset, []).append(number)
        if not wanted:
            return
        state = new_catalog()
        for value in sorted(self._base, key=lambda one: kind_of(one) == PARTITION):  # topics come first
            state.replay(-1, value)
        last = max(wanted)
        for offset, value in [*self._rows, (last, b"")]:
            for end in [one for one in wanted if one <= offset]:
                expected = described(state)
                for number in wanted.pop(end):
                    if described(self.nodes.brokers[number].broker.catalog.state) != expected:
                        raise SimulationFailure(f"the image of broker {number} at offset {end} is another one")
            if not wanted:
                return
            state.replay(offset, value)

    def _watch(self) -> None:
        """Keeps all records that the controller commits: a snapshot may replace them later."""
        controller = self.nodes.controller.broker
        start = max(self._rows_end, controller.metadata_log.start_offset)
        for row in iter_records(controller.metadata_log.read_committed(start, 1 << 30)):
            if row.offset >= self._rows_end and not row.is_control:
                self._rows.append((row.offset, row.value or b""))
        self._rows_end = controller.metadata_log.synced_end
        loader = controller.loader
        commit = loader.commit

        def keep(offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
            self._rows += [(offset + step, encode(record)) for step, record in enumerate(changes)]
            self._rows_end = offset + len(changes)
            return commit(offset, changes)

        loader.commit = keep

    # --- the end ------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.nodes.network.cut_off.clear()
        self._start_controller()
        while len(self.up) < len(self.nodes.brokers):
            self._start_broker()
        each: dict[int, SimulatedBroker | SimulatedCombined] = dict(self.nodes.brokers)
        if isinstance(self.nodes.controller, SimulatedCombined):
            each[CONTROLLER] = self.nodes.controller
        for broker in each.values():
            broker.run_until_joined(90_000)
        self.world.advance(35_000)  # the end of all requests under way
        for number in sorted(each):
            self._create_at(number, f"last{number}")
        self.nodes.check_images()
        self.check()
        self._check_acknowledged()
        for number, broker in each.items():
            self._check_logs(number, broker)

    def _create_at(self, number: int, name: str) -> None:
        row = {"name": name, "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
        message = {"topics": [row], "timeout": 10_000, "validate_only": False}
        reply = self._node(number).call(CREATE_TOPICS, 7, message, answer_ms=40_000)
        # A broker forwards a request again if the reply of the controller was lost, as Kafka's does.
        if reply.topics[0].error_code not in {_NONE, ErrorCode.topic_already_exists}:
            raise SimulationFailure(f"after all faults, broker {number} answers {reply.topics[0]}")

    def _check_acknowledged(self) -> None:
        catalog = self.nodes.controller.broker.catalog
        for name in self.created - self.asked_deletion:
            if catalog.topic(name) is None:
                raise SimulationFailure(f"the acknowledged topic {name} is lost", name)
        for name in self.deleted:
            if catalog.topic(name) is not None:
                raise SimulationFailure(f"the deleted topic {name} is there", name)
        for name, values in self.values.items():
            if catalog.topic(name) is None:
                continue
            found = catalog.topic_configs(name).get("retention.ms")
            # A value may not be there any more if another one was asked for after its reply, and acknowledged.
            answered = [one for one in values if one.answered_ms is not None]
            newest_ms = max((one.asked_ms for one in answered), default=0)
            allowed = {one.text for one in values if one.answered_ms is None or one.answered_ms >= newest_ms}
            if answered and found not in allowed:
                raise SimulationFailure(f"the acknowledged setting of {name} is lost: {found}", name)

    def _check_logs(self, number: int, broker: SimulatedBroker | SimulatedCombined) -> None:
        wanted = set()
        for topic in broker.broker.catalog.topics():
            for part in topic.partitions:
                if part.leader != part.replicas[0]:
                    raise SimulationFailure(f"{topic.name}-{part.partition_id} has no leader")
                if part.replicas[0] == number:
                    wanted.add(f"{topic.name}-{part.partition_id}")
        for name in broker.files.list(HOME):
            topic_id = checkpoints.read_partition_metadata(HOME / name, broker.files) if "-stray" in name else None
            if topic_id is not None and broker.broker.catalog.topic_by_id(topic_id) is not None:
                raise SimulationFailure(f"broker {number} has set {name} aside, and its topic is there")
        if logs_of(broker) != wanted or {f"{name}-{at}" for name, at in broker.broker.directory.led} != wanted:
            led = {f"{name}-{at}" for name, at in broker.broker.directory.led}
            raise SimulationFailure(
                f"broker {number}: logs {sorted(logs_of(broker) ^ wanted)}, led {sorted(led ^ wanted)} are wrong"
            )
