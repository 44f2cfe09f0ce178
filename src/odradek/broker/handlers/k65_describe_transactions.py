"""DescribeTransactions 0: returns the states of transactional ids."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import Known, each_once, elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.core.pace import sorted_in_steps

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)
_UNKNOWN = {
    "transaction_state": "", "transaction_timeout": 0, "transaction_start_time": 0, "producer_id": 0,
    "producer_epoch": 0,
}  # fmt: skip


def handle(broker: BrokerServices, context: Context, message: DescribeTransactionsRequest) -> Steps[list[Chunk]]:
    states = elements(context, "transaction_states")
    known: Known = {}
    yield from each_once(
        states,
        message.transactional_ids,
        str,
        lambda transactional_id: _describe(broker, context, transactional_id),
        known,
    )
    broker.leftovers.add(known)
    return reply(context, {"transaction_states": states})


def _describe(broker: BrokerServices, context: Context, transactional_id: str) -> Steps[dict[str, object]]:
    from odradek.transactions.messages import DescribeTransaction
    from odradek.transactions.transitions import PREPARED

    if not is_allowed(broker, context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
        code = ErrorCode.transactional_id_authorization_failed
        return {"error_code": code, "transactional_id": transactional_id, "topics": ()} | _UNKNOWN
    asked = DescribeTransaction(transactional_id)
    runtime = broker.coordinators.runtime(TRANSACTIONS)
    shard_reply = yield runtime.ask(transactional_id, asked)
    current = shard_reply.transaction
    topics = elements(context, "transaction_states", "topics")
    row = {"error_code": shard_reply.error, "transactional_id": transactional_id, "topics": topics}
    if current is None:
        return row | _UNKNOWN
    unmarked = runtime.unmarked_partitions(transactional_id) if current.state in PREPARED else None
    listed = (
        current.partitions if unmarked is None else unmarked
    )  # as in Kafka, partitions with the marker are left out
    in_order = yield from sorted_in_steps(tuple(listed))  # markers that are written meanwhile change the set
    for topic, partitions in groupby(in_order, lambda partition: partition[0]):
        if not is_allowed(broker, context, Operation.DESCRIBE, Resource.TOPIC, topic):
            continue
        topics.add({"topic": topic, "partitions": [index for _, index in partitions]})
        yield None
    return row | {
        "transaction_state": current.state.title,
        "transaction_timeout": current.timeout_ms,
        "transaction_start_time": current.start_ms,
        "producer_id": current.producer_id,
        "producer_epoch": current.producer_epoch,
    }
