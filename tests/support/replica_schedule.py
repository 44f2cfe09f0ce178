"""A schedule of whole brokers with replicated partitions: brokers are killed, lose power and are cut off while clients
produce, read and delete. All of it follows from a seed.

A ledger has what was acknowledged and what was read. Checked after each step: the logs of all live replicas are equal
below the least of their high watermarks; no two readers see different records at one offset; leader epochs and
partition epochs rise. Then the faults end: every record that was acknowledged with acks=all, or read, has to be at its
offset on each replica, once if its producer is idempotent, and a new record has to be accepted and read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.broker.partitions.partition import Partition
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE
from odradek.wire import frames
from odradek.wire.api_keys import DELETE_RECORDS, FETCH, PRODUCE
from support.logs import T0
from support.node_faults import NodeFaults
from support.replicated_nodes import ReplicatedNodes, fetch_message
from support.simulated_node import Wire
from support.world import SimulationFailure

STEPS = 60
TOPIC = "t"
ALL, LEADER = -1, 1
_NONE = ErrorCode.none
_TRIED_AGAIN = (
    ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out, ErrorCode.unknown_topic_or_partition,
)  # fmt: skip


@dataclass
class Produced:
    """A batch. ``offset``: its base offset when it was acknowledged."""

    tag: str
    index: int
    acks: int
    count: int
    data: bytes
    is_idempotent: bool
    offset: int | None = None
    is_over: bool = True
    failures: list[ErrorCode] = field(default_factory=list)


class IdempotentProducer:
    """A producer with a producer id: one batch of a partition in flight, sent again until it has a result."""

    def __init__(self, producer_id: int, index: int) -> None:
        self.producer_id, self.index = producer_id, index
        self.sequence = 0
        self.current: Produced | None = None


class ReplicaSchedule:
    """``run`` runs it. Raises SimulationFailure."""

    def __init__(self, seed: int, *, partitions: int = 2) -> None:
        self.nodes = ReplicatedNodes(seed=seed)
        self.world = self.nodes.world
        self.rng = self.world.rng
        self.nodes.network.most_travel_ms = 20
        self.partitions = partitions
        orders = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
        self.nodes.create(TOPIC, *orders[:partitions], min_insync_replicas="2")
        self.produced: list[Produced] = []
        self.read: list[dict[int, str]] = [{} for _ in range(partitions)]
        self.starts = [0] * partitions
        """The highest log start that a deletion has had."""
        self._epochs = [(-1, -1)] * partitions
        self._idempotent = [IdempotentProducer(100 + at, at) for at in range(partitions)]
        self._faults = NodeFaults(self.nodes, lambda: all(map(self._is_in_sync, range(partitions))))
        self._tags = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self.world.advance(self.rng.choice((1, 5, 20, 100, 400, 1500)))
            self._check()
        self._heal()
        self._check_end()

    # --- steps --------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        rng, nodes, faults = self.rng, self.nodes, self._faults
        index = rng.randrange(self.partitions)
        kind = rng.choices(
            ("all", "one", "idempotent", "read", "kill", "power", "start", "cut", "join", "delete", "stop"),
            (14, 4, 10, 8, 2, 1, 6, 2, 5, 1, 1),
        )[0]
        up = faults.up
        if kind in ("all", "one"):
            self._produce(index, ALL if kind == "all" else LEADER)
        elif kind == "idempotent":
            self._produce_idempotent(self._idempotent[index])
        elif kind == "read":
            self._read(index)
        elif kind == "kill" and up and faults.may_kill():
            faults.kill(rng.choice(up))
        elif kind == "power" and up and faults.may_cut_power():
            faults.cut_power(rng.choice(up))
        elif kind == "stop" and len(up) == 3 and faults.may_kill():
            faults.stop(rng.choice(up))
        elif kind == "start" and faults.down:
            faults.start_one()
        elif kind == "cut":
            nodes.network.cut_off.add(rng.choice((1, 2, 3)))
        elif kind == "join":
            nodes.network.cut_off.clear()
        elif kind == "delete":
            self._delete(index)

    def _is_in_sync(self, index: int) -> bool:
        return set(self.nodes.registration(TOPIC, index).isr) == {1, 2, 3}

    def _leader(self, index: int) -> int:
        """The broker that a client believes to lead: mostly the right one."""
        if self.rng.random() < 0.1:
            return self.rng.choice((1, 2, 3))
        leader = self.nodes.leader(TOPIC, index)
        return self.rng.choice((1, 2, 3)) if leader == NO_NODE else leader

    # --- clients ------------------------------------------------------------------------------------------------

    def _records(self, count: int) -> tuple[str, list[SimpleRecord]]:
        self._tags += 1
        tag = f"r{self._tags}"
        size = self.rng.choice((0, 10, 500))
        return tag, [SimpleRecord(f"{tag}.{at}".encode(), self.rng.randbytes(size), T0) for at in range(count)]

    def _produce(self, index: int, acks: int) -> None:
        count = self.rng.choice((1, 2, 5))
        tag, records = self._records(count)
        one = Produced(tag, index, acks, count, encode_batch(records, now_ms=T0), is_idempotent=False)
        self.produced.append(one)
        self._send(one)

    def _produce_idempotent(self, producer: IdempotentProducer) -> None:
        one = producer.current
        if one is None or (one.is_over and one.offset is not None):
            count = self.rng.choice((1, 3))
            tag, records = self._records(count)
            data = encode_batch(
                records, now_ms=T0, producer_id=producer.producer_id, producer_epoch=0, base_sequence=producer.sequence
            )
            producer.sequence += count
            one = producer.current = Produced(tag, producer.index, ALL, count, data, is_idempotent=True)
            self.produced.append(one)
        if one.is_over:
            self._send(one)

    def _send(self, one: Produced) -> None:
        broker = self.nodes.brokers[self._leader(one.index)]
        one.is_over = not self._faults.serves(broker.broker_id)
        if one.is_over:
            return

        def answer(frame: bytes) -> None:
            _, reply = frames.decode_reply(PRODUCE, 9, frame)
            part = reply.responses[0].partition_responses[0]
            if part.error_code is _NONE:
                one.offset = part.base_offset
            else:
                one.failures.append(part.error_code)
                # A leader that is deposed, and does not know it, may lack the producer's last batch, as in Kafka.
                is_deposed = self.nodes.leader(TOPIC, one.index) != broker.broker_id
                if part.error_code not in _TRIED_AGAIN and not (
                    is_deposed and part.error_code is ErrorCode.out_of_order_sequence_number
                ):
                    raise SimulationFailure(f"{one.tag} got {part.error_code.name}")
            one.is_over = True

        def end() -> None:
            one.is_over = True

        row = {"name": TOPIC, "partition_data": [{"index": one.index, "records": one.data}]}
        timeout = self.rng.choice((50, 3_000))
        message = {"transactional_id": None, "acks": one.acks, "timeout": timeout, "topic_data": [row]}
        wire: Wire = broker.node.connect(answer, end)
        wire.send(frames.encode_request(PRODUCE, 9, 1, "client", message))

    def _read(self, index: int) -> None:
        broker = self.nodes.brokers[self._leader(index)]
        if not self._faults.serves(broker.broker_id):
            return
        message = fetch_message(TOPIC, index, self.starts[index], 1 << 24)

        def answer(frame: bytes) -> None:
            _, reply = frames.decode_reply(FETCH, 12, frame)
            row = reply.responses[0].partitions[0]
            if row.error_code is _NONE:
                self._note_read(index, bytes(row.records or b""), row.high_watermark)

        broker.node.connect(answer).send(frames.encode_request(FETCH, 12, 1, "client", message))

    def _note_read(self, index: int, data: bytes, high_watermark: int) -> None:
        for offset, tag in tags_of(data):
            if offset >= high_watermark:
                raise SimulationFailure(f"a reader of {TOPIC}-{index} has offset {offset}, above {high_watermark}")
            if self.read[index].setdefault(offset, tag) != tag:
                raise SimulationFailure(f"readers of {TOPIC}-{index} see two records at {offset}")

    def _delete(self, index: int) -> None:
        broker = self.nodes.brokers[self._leader(index)]
        if not self._faults.serves(broker.broker_id):
            return
        partition = broker.broker.partition(TOPIC, index)
        if partition is None:
            return
        offset = self.rng.randrange(partition.high_watermark + 1)
        self.starts[index] = max(self.starts[index], offset)  # the leader may delete, and its reply may be lost
        message = {
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": index, "offset": offset}]}], "timeout": 500
        }  # fmt: skip
        broker.node.connect(lambda _: None).send(frames.encode_request(DELETE_RECORDS, 2, 1, "client", message))

    # --- checks -------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        for index in range(self.partitions):
            registration = self.nodes.registration(TOPIC, index)
            epochs = registration.leader_epoch, registration.partition_epoch
            if epochs < self._epochs[index]:
                raise SimulationFailure(f"the epochs of {TOPIC}-{index} went back")
            self._epochs[index] = epochs
            self._check_equal(index)

    def _check_equal(self, index: int) -> None:
        """Logs are equal below the least high watermark."""
        down = self._faults.down
        ones = [
            partition
            for number, broker in self.nodes.brokers.items()
            if number not in down and (partition := broker.broker.partitions.get((TOPIC, index))) is not None
            and not partition.failure
        ]  # fmt: skip
        if len(ones) < 2:
            return
        end = min(one.high_watermark for one in ones)
        start = max(one.log_start_offset for one in ones)
        contents = {bytes_between(one, start, end) for one in ones} if start < end else set()
        if len(contents) > 1:
            raise SimulationFailure(f"the replicas of {TOPIC}-{index} differ below {end}")

    def _heal(self) -> None:
        nodes = self.nodes
        self._faults.end()
        for index in range(self.partitions):
            nodes.run_until(partial(self._is_in_sync, index), 60_000)
        for producer in self._idempotent:
            for _ in range(40):
                one = producer.current
                if one is None or one.offset is not None:
                    break
                if one.is_over:
                    self._send(one)
                self.world.advance(500)
        for index in range(self.partitions):
            for _ in range(10):  # the session of a leader that was cut off may end only now
                leader = nodes.run_until_led(TOPIC, index)
                code, offset = nodes.produce(leader, 1, index=index)
                if code not in _TRIED_AGAIN:
                    break
            if code is not _NONE:
                raise SimulationFailure(f"after the faults, {TOPIC}-{index} answers {code.name}")
            nodes.run_until_equal(TOPIC, index)
            if nodes.fetch(leader, offset, index=index).high_watermark <= offset:
                raise SimulationFailure(f"after the faults, {TOPIC}-{index} cannot be read")

    def _check_end(self) -> None:
        for index in range(self.partitions):
            ones = [self.nodes.partition(number, TOPIC, index) for number in (1, 2, 3)]
            ends = {one.log_end_offset for one in ones}
            if len(ends) > 1:
                raise SimulationFailure(f"the replicas of {TOPIC}-{index} end at {sorted(ends)}")
            (end,) = ends
            start = max(one.log_start_offset for one in ones)
            if len({bytes_between(one, start, end) for one in ones}) > 1:
                raise SimulationFailure(f"the replicas of {TOPIC}-{index} differ at the end")
            first = max(one.log.epochs.entries[0].start_offset for one in ones if one.log.epochs.entries)
            epochs = {
                tuple(entry for entry in one.log.epochs.entries if first < entry.start_offset < end) for one in ones
            }
            if len(epochs) > 1:
                raise SimulationFailure(f"the replicas of {TOPIC}-{index} have the epochs {epochs}")
            found = dict(tags_of(bytes_between(ones[0], start, end)))
            self._check_ledger(index, start, found)

    def _check_ledger(self, index: int, start: int, found: dict[int, str]) -> None:
        for offset, tag in self.read[index].items():
            if offset >= start and found.get(offset) != tag:
                raise SimulationFailure(
                    f"{tag} was read at {offset} of {TOPIC}-{index}: now there is {found.get(offset)}"
                )
        times = Counter(found.values())
        for one in self.produced:
            if one.index != index:
                continue
            if one.acks == ALL and one.offset is not None:
                for at in range(one.count):
                    offset = one.offset + at
                    if offset >= start and found.get(offset) != f"{one.tag}.{at}":
                        raise SimulationFailure(
                            f"{one.tag}.{at} was acknowledged at {offset} of {TOPIC}-{index}: now there is "
                            f"{found.get(offset)}"
                        )
            if one.is_idempotent and any(times[f"{one.tag}.{at}"] > 1 for at in range(one.count)):
                raise SimulationFailure(f"{one.tag} of an idempotent producer is there twice")


def bytes_between(partition: Partition, start: int, end: int) -> bytes:
    """The log's bytes from the batch with ``start`` up to ``end``."""
    return partition.log.read(start, 1 << 30, max_offset=end).bytes() if start < end else b""


def tags_of(data: bytes) -> Iterator[tuple[int, str]]:
    for record in iter_records(data):
        row: Any = record
        yield row.offset, (row.key or b"").decode()
