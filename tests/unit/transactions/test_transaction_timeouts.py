"""Many transactions exceed their timeout at once."""

from __future__ import annotations

from test_transaction_shard import CONFIG, TIMEOUT_MS, A, Coordinator

from odradek.codecs.transaction_state import TransactionState
from odradek.core.effects import Announce, SetTimer, result_of
from odradek.core.errors import ErrorCode
from odradek.core.pace import PART_RECORDS
from odradek.transactions.messages import AddPartitions, InitProducerId
from odradek.transactions.shard import TIMEOUTS

COUNT = 2 * PART_RECORDS + 10


def test_timed_out_transactions_are_aborted_in_parts() -> None:
    """One result for all of them would hold all records and announcements in memory, and delay all requests."""
    coordinator = Coordinator()
    names = [f"t{number}" for number in range(COUNT)]
    for name in names:
        producer = coordinator.call(InitProducerId(name, TIMEOUT_MS, None)).producer
        assert coordinator.call(AddPartitions(name, producer, (A,), 2)) is ErrorCode.none
    transactions = coordinator.shard.transactions
    now_ms = max(each.start_ms for each in transactions.values()) + TIMEOUT_MS + 1
    steps = coordinator.shard.on_timer(now_ms, TIMEOUTS)
    result = result_of(steps)
    assert len(result.records) == PART_RECORDS
    assert sum(isinstance(effect, Announce) for effect in result.effects) == PART_RECORDS
    assert [effect.at_ms for effect in result.effects if isinstance(effect, SetTimer)][-1] == now_ms
    coordinator.world.advance(TIMEOUT_MS + 2 * CONFIG.abort_interval_ms)
    assert {coordinator.shard.transactions[name].state for name in names} == {TransactionState.PREPARE_ABORT}
    assert sorted(markers.transactional_id for markers in coordinator.announced) == sorted(names)
