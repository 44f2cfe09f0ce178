"""A schedule of whole brokers with transactions: producers with transactional ids write to partitions of different
brokers and commit offsets of groups, while coordinators and leaders are killed, lose power, stop, are cut off and move.
All of it follows from a seed.

At the end of the faults each transaction has to end, and a ledger is compared with what a reader of committed records
sees: an acknowledged commit is visible in all of its partitions, an acknowledged abort in none, and any other
transaction in all or none. The committed offset of each group is that of its last visible transaction. What was read as
committed before is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.batches.rows import iter_records
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE, OFFSETS_TOPIC, TRANSACTION_TOPIC, PartitionKey, partition_for_key
from odradek.wire import frames
from odradek.wire.api_keys import END_TXN, FETCH, INIT_PRODUCER_ID, LIST_TRANSACTIONS, PRODUCE, TXN_OFFSET_COMMIT
from support.group_nodes import PARTITIONS, TOPIC, GroupNodes
from support.moving_schedule import MovingSchedule
from support.replicated_nodes import fetch_message
from support.world import SimulationFailure

STEPS = 90
RECORDS = "records"
"""The topic of the transactions' records: two partitions, which two brokers lead."""
MOST_PAUSE_MS = 45_000
"""A client that waits for a request of its own to a broker that is cut off loses 20 s; the rest is for sessions."""
LONG_REQUEST_MS = 60_000
"""``request.timeout.ms`` of four brokers: what waits for it misses ``MOST_PAUSE_MS``."""
TIMEOUT_MS, ANSWER_MS = 15_000, 20_000
SETTINGS = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
_ORDERS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
_E = ErrorCode
_RETRIED = frozenset({
    _E.not_leader_or_follower, _E.not_enough_replicas, _E.not_enough_replicas_after_append, _E.request_timed_out,
    _E.unknown_topic_or_partition, _E.concurrent_transactions, _E.not_coordinator, _E.coordinator_not_available,
    _E.coordinator_load_in_progress,
})  # fmt: skip
_ENDED = frozenset({
    _E.invalid_producer_epoch, _E.producer_fenced, _E.invalid_txn_state, _E.transaction_abortable,
    _E.invalid_producer_id_mapping, _E.out_of_order_sequence_number,
})  # fmt: skip
"""The producer has to begin again: its transaction has timed out, or another producer has its id."""
OPEN, COMMITTED, ABORTED, UNKNOWN, GIVEN_UP = "open", "committed", "aborted", "unknown", "given up"


@dataclass
class Batch:
    """A batch of one record, sent again until it is in its log. ``is_unanswered``: a request with it got no reply, so
    it may be in the log."""

    index: int
    sequence: int
    tag: str
    is_written: bool = False
    is_unanswered: bool = False


class ProduceRequest:
    """Batches for one partition in one request each. ``broker``: the asked one. ``failed``: the codes so far."""

    def __init__(self, nodes: TransactionNodes, index: int) -> None:
        self._nodes = nodes
        self._index = index
        self._epoch = nodes.registration(RECORDS, index).leader_epoch
        self.leader = nodes.leader(RECORDS, index)
        self.broker = NO_NODE
        self.failed: list[ErrorCode] = []

    @property
    def was_at_leader(self) -> bool:
        """Whether the asked broker has led the partition all the time, as the controller has it."""
        return self.broker == self.leader and self._epoch == self._nodes.registration(RECORDS, self._index).leader_epoch


@dataclass
class LedgerEntry:
    """A transaction. ``outcome``: as its producer knows it; UNKNOWN after an EndTxn without a good reply, GIVEN_UP if
    its producer has sent no EndTxn."""

    name: str
    number: int
    batches: list[Batch]
    has_offset: bool
    commits: bool
    outcome: str = OPEN
    is_offset_written: bool = False
    end_sent: bool = False


class TransactionNodes(GroupNodes):
    """Two partitions of each internal topic, and the topic ``records``. Of four brokers, the last one is a replica of
    records alone: so a commit waits for it only by its marker."""

    def __init__(self, seed: int, settings: Mapping[str, str] | None = None, *, count: int = 3) -> None:
        own = {"request.timeout.ms": str(LONG_REQUEST_MS)} if count > 3 else {}
        super().__init__(SETTINGS | own | dict(settings or {}), seed=seed, topic_partitions=1, count=count)
        self.create(RECORDS, *(((4, 1, 2), (2, 3, 1)) if count > 3 else ((1, 2, 3), (2, 3, 1))),
                    min_insync_replicas="2")  # fmt: skip
        self.create(TRANSACTION_TOPIC, (2, 3, 1), (3, 1, 2), cleanup_policy="compact", min_insync_replicas="2")


@dataclass
class TransactionalClient:
    """A producer with a transactional id, one request in flight at most: but two batches of a partition go together."""

    schedule: TransactionSchedule
    name: str
    group: str
    transactions: list[LedgerEntry] = field(default_factory=list)
    producer: tuple[int, int] | None = None
    waits: bool = False
    is_stopping: bool = False
    _asked: int = 0
    _sequences: dict[int, int] = field(default_factory=dict)

    @property
    def current(self) -> LedgerEntry | None:
        last = self.transactions[-1] if self.transactions else None
        return last if last is not None and last.outcome == OPEN else None

    @property
    def ended(self) -> int:
        """How many transactions have ended as the client has asked."""
        return sum(entry.outcome in (COMMITTED, ABORTED) for entry in self.transactions)

    @property
    def is_idle(self) -> bool:
        return not self.waits and self.producer is not None and self.current is None

    def act(self) -> None:
        if self.waits:
            return
        if self.producer is None:
            self._init()
        elif self.current is None:
            if not self.is_stopping:
                self._begin()
        else:
            self._continue(self.current)

    def replace(self) -> None:
        """The producer dies, and another one takes its transactional id."""
        self._asked += 1
        self.waits = False
        self._give_up()

    def _give_up(self) -> None:
        self.producer = None
        if (entry := self.current) is not None:
            entry.outcome = UNKNOWN if entry.end_sent else GIVEN_UP

    # --- requests -----------------------------------------------------------------------------------------------

    def _init(self) -> None:
        message = {
            "transactional_id": self.name, "transaction_timeout": TIMEOUT_MS, "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip

        def take(reply: Any) -> None:
            if reply.error_code is _E.none:
                self.producer = reply.producer_id, reply.producer_epoch
                self._sequences = {}
            elif reply.error_code not in _RETRIED:
                raise SimulationFailure(f"{self.name}: InitProducerId gets {reply.error_code.name}")

        self._ask(self.coordinator, INIT_PRODUCER_ID, 5, [message], [take])

    def _begin(self) -> None:
        rng, number = self.schedule.rng, len(self.transactions) + 1
        batches = []
        for index in rng.sample((0, 1), rng.choice((1, 2, 2))):
            for _ in range(rng.choice((1, 2, 3))):
                sequence = self._sequences.get(index, 0)
                self._sequences[index] = sequence + 1
                batches.append(Batch(index, sequence, f"{self.name}:{number}:{index}:{len(batches)}"))
        entry = LedgerEntry(self.name, number, batches, rng.random() < 0.5, rng.random() < 0.75)
        self.transactions.append(entry)
        self._continue(entry)

    def _continue(self, entry: LedgerEntry) -> None:
        left = [batch for batch in entry.batches if not batch.is_written]
        if left:
            self._produce([batch for batch in left if batch.index == left[0].index][:2])
        elif entry.has_offset and not entry.is_offset_written:
            self._commit_offset(entry)
        else:
            self._end(entry)

    def _produce(self, batches: list[Batch]) -> None:
        """Sends batches of one partition over one connection, without a wait between them."""
        assert self.producer is not None
        request = ProduceRequest(self.schedule.nodes, batches[0].index)
        messages, takes = [], []
        for batch in batches:
            data = encode_batch(
                [SimpleRecord(b"k", batch.tag.encode())], now_ms=self.schedule.world.now_ms,
                producer_id=self.producer[0], producer_epoch=self.producer[1], base_sequence=batch.sequence,
                transactional=True,
            )  # fmt: skip
            row = {"name": RECORDS, "partition_data": [{"index": batch.index, "records": data}]}
            messages.append({"transactional_id": self.name, "acks": -1, "timeout": 5_000, "topic_data": [row]})
            takes.append(lambda reply, batch=batch: self._note_written(reply, batch, request))

        def note_unanswered() -> None:
            for batch in batches:
                batch.is_unanswered = not batch.is_written

        request.broker = self._ask(request.leader, PRODUCE, 12, messages, takes, note_unanswered)

    def _note_written(self, reply: Any, batch: Batch, request: ProduceRequest) -> None:
        code: ErrorCode = reply.responses[0].partition_responses[0].error_code
        failed = request.failed
        if code is _E.none:
            if failed and not batch.is_unanswered:
                raise SimulationFailure(f"{batch.tag} has overtaken a batch that got {failed[0].name}")
            # Both may be in the log since an earlier request. The first one's verification has failed then (the
            # coordinator's broker cannot be reached), and the second one is a duplicate. It is the same in Kafka:
            # ReplicaManager asks the coordinator before UnifiedLog looks for duplicates.
            batch.is_written = True
            return
        if code is _E.out_of_order_sequence_number and failed and failed[0] in _RETRIED:
            return  # the batch before it is sent again, and then this one
        if code is _E.out_of_order_sequence_number and request.was_at_leader:
            raise SimulationFailure(f"{batch.tag} is in order, and gets {code.name}")
        # A former leader that does not know its successor yet has not the batches before this one. In Kafka, too, it
        # looks at the sequences before it waits for its followers, and Java's producer aborts the transaction then
        # (TransactionManager.canRetry: the batch is the next one).
        failed.append(code)
        if code in _ENDED:
            self._give_up()
        elif code not in _RETRIED:
            raise SimulationFailure(f"{batch.tag} gets {code.name}")

    def _commit_offset(self, entry: LedgerEntry) -> None:
        assert self.producer is not None
        part = {
            "partition_index": 0, "committed_offset": entry.number, "committed_leader_epoch": -1,
            "committed_metadata": "",
        }  # fmt: skip
        message = {
            "transactional_id": self.name, "group_id": self.group, "producer_id": self.producer[0],
            "producer_epoch": self.producer[1], "generation_id": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": TOPIC, "partitions": [part]}],
        }  # fmt: skip

        def take(reply: Any) -> None:
            code = reply.topics[0].partitions[0].error_code
            if code is _E.none:
                entry.is_offset_written = True
            elif code in _ENDED:
                self._give_up()
            elif code not in _RETRIED:
                raise SimulationFailure(f"{self.name}: TxnOffsetCommit gets {code.name}")

        self._ask(self.schedule.nodes.coordinator(self.group), TXN_OFFSET_COMMIT, 5, [message], [take])

    def _end(self, entry: LedgerEntry) -> None:
        assert self.producer is not None
        entry.end_sent = True
        message = {
            "transactional_id": self.name, "producer_id": self.producer[0], "producer_epoch": self.producer[1],
            "committed": entry.commits,
        }  # fmt: skip

        def take(reply: Any) -> None:
            if reply.error_code is _E.none:
                entry.outcome = COMMITTED if entry.commits else ABORTED
                self.producer = reply.producer_id, reply.producer_epoch
                self._sequences = {}
                self.schedule.counts[entry.outcome] += 1
            elif reply.error_code in _ENDED:
                self._give_up()
            elif reply.error_code not in _RETRIED:
                raise SimulationFailure(f"{self.name}: EndTxn gets {reply.error_code.name}")

        self._ask(self.coordinator, END_TXN, 5, [message], [take])

    @property
    def coordinator(self) -> int:
        return self.schedule.nodes.leader(TRANSACTION_TOPIC, self.index)

    @property
    def index(self) -> int:
        return partition_for_key(self.name, PARTITIONS)

    def _ask(
        self, number: int, api_key: int, version: int, messages: list[Mapping[str, Any]],
        takes: list[Callable[[Any], None]], on_missing: Callable[[], None] = lambda: None,
    ) -> int:  # fmt: skip
        """Sends requests over one connection of its own. ``takes`` get the replies; after the first missing reply the
        requests are over, and ``on_missing`` is called. Returns the asked broker."""
        schedule = self.schedule
        if number == NO_NODE or schedule.rng.random() < 0.1:
            number = schedule.rng.choice(sorted(schedule.nodes.brokers))
        if not schedule.serves(number):
            return NO_NODE
        self._asked += 1
        this = self._asked
        self.waits = True
        left = list(takes)
        schedule.counts[f"requests {api_key}"] += 1

        def end(frame: bytes | None) -> None:
            if this != self._asked or not self.waits:
                return
            if frame is None:
                self.waits = False
                on_missing()
                return
            take = left.pop(0)
            self.waits = bool(left)
            take(frames.decode_reply(api_key, version, frame)[1])
            if self.producer is None and api_key != INIT_PRODUCER_ID:
                self._asked += 1  # no later reply counts
                self.waits = False

        def arrive(frame: bytes | None) -> None:
            schedule.world.at(schedule.world.now_ms, lambda: end(frame))

        def give_up() -> None:
            if this == self._asked and self.waits:
                wire.hang_up()
                arrive(None)

        wire = schedule.nodes.brokers[number].node.connect(arrive, lambda: arrive(None))
        for at, message in enumerate(messages):
            wire.send(frames.encode_request(api_key, version, at, "client", message))
        schedule.world.after(ANSWER_MS, give_up)
        return number


class TransactionSchedule(MovingSchedule):
    """``run`` runs it. Raises SimulationFailure. Every second seed has four brokers."""

    def __init__(self, seed: int) -> None:
        nodes = TransactionNodes(seed, count=3 + seed % 2)
        logs: list[PartitionKey] = [
            (topic, index) for topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC, RECORDS) for index in range(PARTITIONS)
        ]
        super().__init__(nodes, logs, STEPS)
        names = [f"tx{at}" for at in range(50)]
        chosen = [next(name for name in names if partition_for_key(name, PARTITIONS) == at) for at in range(PARTITIONS)]
        chosen.append(next(name for name in names if name not in chosen))
        self.clients = [
            TransactionalClient(self, name, nodes.group_at(1 + at % 2, f"g{at}-")) for at, name in enumerate(chosen)
        ]
        self.read: list[set[str]] = [set(), set()]
        self._cut: set[int] = set()
        """The broker that is cut off before the other faults."""

    def run(self) -> None:
        if len(self.nodes.brokers) > 3:
            self._cut_one_off()
        super().run()

    def serves(self, number: int) -> bool:
        return number not in self._cut and super().serves(number)

    def act(self) -> None:
        for client in self.rng.sample(self.clients, len(self.clients)):
            client.act()
        if self.rng.random() < 0.3:
            self._read(self.rng.randrange(2))

    def change_clients(self) -> None:
        self.rng.choice(self.clients).replace()

    def wanted_victim(self) -> int:
        """The coordinator of a transactional id, or the leader of a partition."""
        if self.rng.random() < 0.6:
            return self.rng.choice(self.clients).coordinator
        return self.nodes.leader(*self.rng.choice(self.logs))

    def _cut_one_off(self) -> None:
        """Halts a broker or cuts it off for longer than its session, while nothing else fails. Transactions go on
        without it."""
        self._run(lambda: all(client.producer is not None for client in self.clients), "a producer gets no id")
        for _ in range(self.rng.randrange(40)):
            self.act()
            self.world.advance(self.rng.choice((1, 5, 20)))
        number = self.rng.choice((1, 2, 3, 4, 4, 4))
        is_halted = self.rng.random() < 0.5
        if is_halted:
            self._faults.halt(number)
        else:
            self.nodes.network.cut_off.add(number)
        self._cut.add(number)
        before = [client.ended for client in self.clients]

        def go_on() -> bool:  # the one that is open now may be decided already; the next one needs its markers
            return all(client.ended >= count + 2 for client, count in zip(self.clients, before, strict=True))

        self._run(go_on, f"transactions wait for broker {number}, which is cut off", MOST_PAUSE_MS)
        self.counts["cut off"] += 1
        self._cut.clear()
        self._faults.resume()
        self._faults.join()

    # --- readers ------------------------------------------------------------------------------------------------

    def _read(self, index: int) -> None:
        leader = self.nodes.leader(RECORDS, index)
        if leader == NO_NODE or not self.serves(leader):
            return

        def take(frame: bytes) -> None:
            ((row,),) = [topic.partitions for topic in frames.decode_reply(FETCH, 12, frame)[1].responses]
            if row.error_code is _E.none:
                self.read[index] |= set(visible(row))

        wire = self.nodes.brokers[leader].node.connect(
            lambda frame: self.world.at(self.world.now_ms, lambda: take(frame)), lambda: None
        )
        wire.send(frames.encode_request(FETCH, 12, 1, "reader", committed_fetch(index)))

    # --- the end ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for client in self.clients:
            client.is_stopping = True
        self._run(lambda: all(client.is_idle for client in self.clients), "a producer cannot end its transaction")
        self._run(self._all_ended, "a transaction does not end")

    def _run(self, reached: Callable[[], bool], failure: str, within_ms: int = 120_000) -> None:
        end_ms = self.world.now_ms + within_ms
        while not reached():
            if self.world.now_ms > end_ms:
                raise SimulationFailure(f"{failure}: {self.described()}")
            for client in self.clients:
                client.act()
            self.world.advance(100)

    def described(self) -> str:
        return "; ".join(f"{one.name} {one.producer} waits={one.waits} {one.transactions[-1:]}" for one in self.clients)

    def _all_ended(self) -> bool:
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        states = {
            row.transactional_id: row.transaction_state
            for broker in self.nodes.brokers.values()
            for row in broker.call(LIST_TRANSACTIONS, 1, asked).transaction_states
        }
        return len(states) == len(self.clients) and {*states.values()} <= {"Empty", "CompleteCommit", "CompleteAbort"}

    def check_end(self) -> None:
        nodes = self.nodes
        seen: list[list[str]] = []
        for index in range(2):
            leader = nodes.run_until_led(RECORDS, index)
            nodes.run_until_equal(RECORDS, index)
            row = nodes.brokers[leader].call(FETCH, 12, committed_fetch(index)).responses[0].partitions[0]
            if row.last_stable_offset != row.high_watermark:
                raise SimulationFailure(f"a transaction is open in {RECORDS}-{index}")
            seen.append(visible(row))
            if lost := self.read[index] - set(seen[index]):
                raise SimulationFailure(f"{sorted(lost)[0]} was read as committed, and is not there")
        for client in self.clients:
            self._check_client(client, seen)

    def _check_client(self, client: TransactionalClient, seen: list[list[str]]) -> None:
        least = last = 0
        for entry in client.transactions:
            tags = [batch.tag for batch in entry.batches]
            found = [tag for index in range(2) for tag in seen[index] if tag in tags]
            wanted = {
                COMMITTED: [tags], ABORTED: [[]], GIVEN_UP: [[]], UNKNOWN: [tags, []] if entry.commits else [[]],
            }[entry.outcome]  # fmt: skip
            by_index = sorted(tags, key=lambda tag: tag.split(":")[2])
            if found != by_index and found:
                raise SimulationFailure(f"{entry} is half visible, or out of order: {found}")
            if found not in [sorted(each, key=lambda tag: tag.split(":")[2]) for each in wanted]:
                raise SimulationFailure(f"{entry} is {'visible' if found else 'not visible'}")
            if found and entry.has_offset:
                least = last = entry.number
        broker = self.nodes.run_until_coordinated(client.group)
        offset = self.nodes.committed(broker, client.group, stable=True)
        if isinstance(offset, ErrorCode) or max(offset, 0) != last:
            raise SimulationFailure(f"{client.group} is at {offset}, and the last visible transaction has {least}")


def committed_fetch(index: int) -> dict[str, Any]:
    return fetch_message(RECORDS, index, 0, 1 << 24) | {"isolation_level": 1}


def visible(row: Any) -> list[str]:
    """Returns the records that a reader of committed records sees, as a client filters them."""
    data = bytes(row.records or b"")
    aborted = sorted((one.first_offset, one.producer_id) for one in row.aborted_transactions or ())
    active: set[int] = set()
    found: list[str] = []
    for at, header in scan(data):
        while aborted and aborted[0][0] <= header.last_offset:
            active.add(aborted.pop(0)[1])
        if header.is_control:
            active.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in active):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            found += [(record.value or b"").decode() for record in iter_records(data[at:end])]
    return found
