"""Faults of the log of transactional ids, as a cluster has them, and what must hold meanwhile.

Appends are refused or fail, records are replicated late, the partition gets other leaders, and repeated news of earlier
terms arrives. A crash may lose the records that are not replicated. Then:

* A reply of success shows only replicated records, and no request waits longer than its transactional id's timeout.
  EndTxn may wait longer for its markers.
* A marker is written only after its decision is replicated, and only in the term of its coordinator.
* News of earlier terms changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from support.transaction_worker import TOPIC
from support.world import SimulationFailure

from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
from odradek.codecs.transaction_state import Transaction, TransactionState, UnreadableTransaction, decode
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TRANSACTION_TOPIC, EndTransactionMarker
from odradek.transactions.messages import AddPartitions, EndTransaction, InitProducerId
from odradek.transactions.transitions import PREPARED

if TYPE_CHECKING:
    from sim_transactions import CrashLog, SimBroker

KINDS = ("refuse", "fail", "lag", "stop", "hand over", "terms", "markers")
OUTAGES_MS = (300, 3_000, 15_000, 30_000)
"""The last of them is longer than the timeout of the transactional ids."""


class WatchedRuntime(TransactionRuntime):
    """The real runtime, which shows requests and replies to the faults."""

    faults: CoordinatorFaults

    def ask(self, transactional_id: str, request: Any) -> Any:
        number = self.faults.on_request(transactional_id, request)
        answer = super().ask(transactional_id, request)
        answer.then(lambda reply: self.faults.on_reply(number, transactional_id, request, reply))
        return answer


class CoordinatorFaults:
    """The faults of one seed. ``terms`` has the leader epoch of each partition."""

    def __init__(self, broker: SimBroker, timeout_ms: int, *, is_on: bool) -> None:
        self.broker = broker
        self.world = world = broker.world
        self.kinds = {kind for kind in KINDS if world.chance(0.6)} if is_on else set()
        self.count = 0
        self._timeout_ms = timeout_ms
        self._stuck: set[int] = set()
        self._away: set[int] = set()
        self._open: dict[int, tuple[str, Any, int]] = {}
        self._asked = 0
        self._pending: dict[int, list[tuple[int, str, Transaction | None]]] = {}
        self.replicated: dict[int, dict[str, Transaction]] = {}
        """The transactional ids of each partition, as the replicated part of its log has them."""
        self._decided: dict[tuple[int, int], tuple[int, int, bool]] = {}

    @property
    def logs(self) -> dict[int, CrashLog]:
        return {index: log for (topic, index), log in self.broker.logs.items() if topic == TRANSACTION_TOPIC}

    # --- the plan ---------------------------------------------------------------------------------------------

    def plan(self) -> None:
        if "lag" in self.kinds or "stop" in self.kinds:
            for log in self.logs.values():
                log.held_back = log.log_end_offset
        for kind, act in (
            ("refuse", self._refuse), ("fail", self._fail), ("stop", self._stop), ("hand over", self._hand_over),
            ("terms", self._repeat_news), ("markers", self._refuse_markers),
        ):  # fmt: skip
            if kind in self.kinds:
                self._again(act)

    def _again(self, act: Callable[[int], None]) -> None:
        def run() -> None:
            if self.kinds:
                if self.broker.is_up:
                    self.count += 1
                    act(self.world.rng.choice(list(self.logs)))
                self._again(act)

        self.world.after(self.world.between(500, 9_000), run)

    def end(self) -> None:
        """No more faults: all records are replicated, and the broker leads all partitions."""
        self.kinds = set()
        self._stuck.clear()
        for log in self.broker.logs.values():
            log.refuses_with = None
        for index, log in self.logs.items():
            log.refuses_with = log.fail_with = None
            log.held_back = None
            if self.broker.is_up:
                self.broker.transactions.on_high_watermark(index)
            self._take_back(index)

    def _refuse(self, index: int) -> None:
        log = self.logs[index]
        self.world.note("log", "{} refuses appends", index)
        log.refuses_with = KafkaError(ErrorCode.not_enough_replicas, "a fault of the simulation")

        def accept() -> None:
            log.refuses_with = None

        self.world.after(self.world.rng.choice(OUTAGES_MS), accept)

    def _refuse_markers(self, index: int) -> None:
        """A partition of a topic has too few replicas. Markers follow later, perhaps in another term."""
        log = self.world.rng.choice([log for (topic, _), log in self.broker.logs.items() if topic == TOPIC])
        self.world.note("log", "{}-{} refuses markers", log.topic, log.index)
        log.refuses_with = KafkaError(ErrorCode.not_enough_replicas, "a fault of the simulation")

        def accept() -> None:
            log.refuses_with = None

        self.world.after(self.world.rng.choice(OUTAGES_MS), accept)

    def _fail(self, index: int) -> None:
        code = self.world.rng.choice(
            [ErrorCode.kafka_storage_error, ErrorCode.not_enough_replicas, ErrorCode.message_too_large]
        )
        self.logs[index].fail_with = KafkaError(code, "a fault of the simulation")
        self.world.note("log", "{} fails its next append: {}", index, code.name)

    def _stop(self, index: int) -> None:
        self.world.note("log", "{} is not replicated", index)
        self._stuck.add(index)

        def go_on() -> None:
            self._stuck.discard(index)
            self._replicate(index, self.logs[index].log_end_offset)

        self.world.after(self.world.rng.choice(OUTAGES_MS), go_on)

    def _hand_over(self, index: int) -> None:
        """Another broker leads the partition for a moment. It writes nothing."""
        if index in self._away:
            return
        broker = self.broker
        broker.terms[index] += 1
        self._away.add(index)
        self.world.note("broker", "gives {} away in term {}", index, broker.terms[index])
        broker.transactions.unload(index, broker.terms[index])
        self.world.after(self.world.between(1, 5_000), lambda: self._take_back(index))

    def _take_back(self, index: int) -> None:
        if index in self._away and self.broker.is_up:
            self._away.discard(index)
            self.broker.terms[index] += 1
            self.world.note("broker", "takes {} back in term {}", index, self.broker.terms[index])
            self.broker.transactions.load(index, self.logs[index], self.broker.terms[index])

    def _repeat_news(self, index: int) -> None:
        runtime, term = self.broker.transactions, self.broker.terms[index]
        if self.world.chance(0.3) and index not in self._away:
            self.broker.terms[index] = term = term + 1
            runtime.load(index, self.logs[index], term)
        driver = runtime.drivers.get(index)
        before = None if driver is None else (driver.state, driver.shard)
        epoch = self.world.between(0, term)
        self.world.note("broker", "gets late news of term {} of {}", epoch, index)
        for _ in range(2):
            runtime.load(index, self.logs[index], epoch)
            runtime.unload(index, epoch)
        same = runtime.drivers.get(index)
        if same is not driver or (same is not None and (same.state, same.shard) != before):
            raise SimulationFailure(f"late news of term {epoch} changes partition {index}")

    # --- the broker's life ------------------------------------------------------------------------------------

    def on_crash(self) -> None:
        """The records that are not replicated may be lost."""
        self._open.clear()
        self._away.clear()
        for index, log in self.logs.items():
            if log.held_back is not None and self.world.chance(0.5) and (lost := log.truncate_to_high_watermark()):
                self.world.note("log", "{} loses {} records", index, lost)
                self.broker.rebuild_shadow(log)
                end = log.log_end_offset
                self._pending[index] = [row for row in self._pending.get(index, []) if row[0] < end]
                self._decided = {key: one for key, one in self._decided.items() if one[0] != index or one[1] < end}

    def on_start(self) -> None:
        for index, log in self.logs.items():
            self.broker.terms[index] += 1
            if log.held_back is not None:
                log.replicate()
                self._advance(index)

    # --- the log ----------------------------------------------------------------------------------------------

    def on_record(self, index: int, offset: int, record: SimpleRecord) -> None:
        decoded = decode(record.key, record.value)
        if isinstance(decoded, UnreadableTransaction):
            return
        name, transaction = decoded
        self._pending.setdefault(index, []).append((offset, name, transaction))
        if transaction is not None and transaction.state in PREPARED:
            commit = transaction.state is TransactionState.PREPARE_COMMIT
            self._decided[transaction.producer_id, transaction.producer_epoch] = (index, offset, commit)

    def on_appended(self, index: int) -> None:
        log = self.logs[index]
        if log.held_back is None:
            return
        end = log.log_end_offset
        lag_ms = self.world.between(0, 2_000) if "lag" in self.kinds else 0
        self.world.after(lag_ms, lambda: self._replicate(index, end))

    def _replicate(self, index: int, end: int) -> None:
        log = self.logs[index]
        if index not in self._stuck and log.held_back is not None and log.high_watermark < end <= log.log_end_offset:
            log.held_back = end
            if self.broker.is_up:
                self.broker.transactions.on_high_watermark(index)

    def _advance(self, index: int) -> None:
        """Applies what is replicated now."""
        high_watermark = self.logs[index].high_watermark
        pending, state = self._pending.get(index, []), self.replicated.setdefault(index, {})
        while pending and pending[0][0] < high_watermark:
            _, name, transaction = pending.pop(0)
            if transaction is None:
                state.pop(name, None)
            else:
                state[name] = transaction

    # --- checks -----------------------------------------------------------------------------------------------

    def on_request(self, name: str, request: Any) -> int:
        self._asked += 1
        self._open[self._asked] = (name, request, self.world.now_ms)
        return self._asked

    def on_reply(self, number: int, name: str, request: Any, reply: Any) -> None:
        self._open.pop(number, None)
        index = self.broker.transactions.partition_of(name)
        self._advance(index)
        state = self.replicated.get(index, {}).get(name)
        if isinstance(request, InitProducerId) and reply.error is ErrorCode.none:
            id_, epoch = reply.producer
            is_shown = state is not None and (state.producer_id != id_ or state.producer_epoch >= epoch >= 0)
        elif isinstance(request, AddPartitions) and reply is ErrorCode.none:
            is_shown = state is not None and self._has(state, request)
        elif isinstance(request, EndTransaction) and reply.error is ErrorCode.none:
            is_shown = state is not None and (
                state.producer_id != request.producer.producer_id
                or state.producer_epoch > request.producer.producer_epoch
            )
        else:
            return
        if not is_shown:
            raise SimulationFailure(f"{request} is answered by {reply}; replicated is {state}", name)

    @staticmethod
    def _has(state: Transaction, request: AddPartitions) -> bool:
        if (state.producer_id, state.producer_epoch) != request.producer:
            return state.producer_id != request.producer.producer_id or (
                state.producer_epoch > request.producer.producer_epoch
            )
        return state.state is TransactionState.ONGOING and state.partitions.issuperset(request.partitions)

    def on_marker(self, marker: EndTransactionMarker) -> None:
        """A coordinator asks for a marker."""
        known = self._decided.get((marker.producer_id, marker.producer_epoch))
        if known is None or known[2] is not marker.commit:
            raise SimulationFailure(f"{marker} has no decision")
        index, offset, _ = known
        if self.logs[index].high_watermark <= offset:
            raise SimulationFailure(f"{marker} comes before its decision at offset {offset} is replicated")
        if index in self._away or marker.coordinator_epoch != self.broker.terms[index]:
            raise SimulationFailure(f"{marker} is of another term than {self.broker.terms[index]}")

    def check(self) -> None:
        """No request waits longer than its transactional id's timeout."""
        for name, request, since_ms in self._open.values():
            waited_ms = self.world.now_ms - since_ms
            if waited_ms <= self._timeout_ms:
                continue
            index = self.broker.transactions.partition_of(name)
            self._advance(index)
            state = self.replicated.get(index, {}).get(name)
            if isinstance(request, EndTransaction) and state is not None and state.state in PREPARED:
                continue  # it waits for its markers
            raise SimulationFailure(f"{request} has waited for {waited_ms} ms", name)
