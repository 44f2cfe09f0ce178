"""ListTransactions 0–2: returns the transactional ids that this broker coordinates.

* 1: filter by duration.
* 2: filter by a pattern of the transactional id, in the syntax of RE2. Apache Kafka has Java's syntax here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import elements, reply
from odradek.codecs.transaction_state import TransactionState
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import STEP_WORK, Pace, sorted_in_steps
from odradek.groups.kip848.regex import check_pattern, resolve_in_steps

if TYPE_CHECKING:
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.transactions.messages import ListedTransaction
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 2)
_STATES = {state.title: state for state in TransactionState}
_WITHOUT_RECORDS = ("Dead", "PrepareEpochFence")
"""Kafka's states that no record has. A filter may name them."""


def handle(broker: BrokerServices, context: Context, message: ListTransactionsRequest) -> Steps[list[Chunk]]:
    unknown: set[str] = set()
    known = yield from _states(message, unknown)
    filters, names = elements(context, "unknown_state_filters"), (yield from sorted_in_steps(unknown))
    for name in names:
        filters.add_value(name)
        yield None
    broker.leftovers.add(unknown, names)
    try:
        error, listed = yield from _find(broker, context, message, known)
    except KafkaError as refused:
        error, listed = refused.code, []
    rows = elements(context, "transaction_states")
    for transactional_id, producer_id, state in listed:
        if not is_allowed(broker, context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
            yield None
            continue
        rows.add({"transactional_id": transactional_id, "producer_id": producer_id, "transaction_state": state.title})
        yield None
    return reply(context, {"error_code": error, "unknown_state_filters": filters, "transaction_states": rows})


def _find(
    broker: BrokerServices,
    context: Context,
    message: ListTransactionsRequest,
    states: frozenset[TransactionState] | None,
) -> Steps[tuple[ErrorCode, list[ListedTransaction]]]:
    """Returns the transactions that pass the filters. Raises KafkaError (INVALID_REGULAR_EXPRESSION)."""
    from odradek.transactions.messages import ListTransactions

    pattern = message.transactional_id_pattern if context.version >= 2 else None
    if pattern:
        check_pattern(pattern)
    duration_ms = message.duration_filter if context.version >= 1 else -1
    producer_ids: set[int] = set()
    pace = Pace()
    for producer_id in message.producer_id_filters:
        producer_ids.add(producer_id)
        if pace.spend():
            yield None
    request = ListTransactions(states, producer_ids, duration_ms)
    listed: list[ListedTransaction] = []
    runtime = broker.coordinators.runtime(TRANSACTIONS)
    # As in Kafka, one partition that still loads makes the whole reply an error. So the other partitions are not read.
    indexes = sorted(runtime.partitions(), key=lambda index: runtime.shard(index) is not None)
    for index in indexes:
        shard_reply = yield runtime.submit(index, request)
        if shard_reply.error is not ErrorCode.none:
            return shard_reply.error, []
        listed += shard_reply.transactions
        yield None
    if not pattern:
        return ErrorCode.none, listed
    return ErrorCode.none, (yield from _matching(listed, pattern))


def _matching(transactions: list[ListedTransaction], pattern: str) -> Steps[list[ListedTransaction]]:
    """Returns the transactions whose id matches the pattern."""
    listed: list[ListedTransaction] = []
    for first in range(0, len(transactions), STEP_WORK):
        part = transactions[first : first + STEP_WORK]
        matched = yield from resolve_in_steps([pattern], [each.transactional_id for each in part])
        listed += [each for each in part if each.transactional_id in matched[pattern]]
    return listed


def _states(message: ListTransactionsRequest, unknown: set[str]) -> Steps[frozenset[TransactionState] | None]:
    """Returns the states of the filter, None for all. Adds its unknown names to ``unknown``."""
    known: set[TransactionState] = set()
    for name in message.state_filters:
        if name in _STATES:
            known.add(_STATES[name])
        elif name not in _WITHOUT_RECORDS:
            unknown.add(name)
        yield None
    return frozenset(known) if message.state_filters else None
