"""EndTxn 0–5: commits or aborts a transaction.

* 2: the error PRODUCER_FENCED, until then INVALID_PRODUCER_EPOCH.
* 3: flexible.
* 4: the error TRANSACTION_ABORTABLE.
* 5: each transaction has its own epoch (transaction.version 2); the reply has the producer's next id and epoch.

The reply follows when all partitions have the marker. It does not wait for a partition that is offline or refuses the
marker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.handlers.authorization import check
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity

if TYPE_CHECKING:
    from kio.schema.end_txn.v5.request import EndTxnRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 5)
_EPOCH_PER_TRANSACTION = 5


def handle(broker: BrokerServices, context: Context, message: EndTxnRequest) -> Steps[dict[str, object]]:
    from odradek.transactions.messages import EndTransaction

    check(broker, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, message.transactional_id)
    has_own_epochs = context.version >= _EPOCH_PER_TRANSACTION
    if has_own_epochs:
        yield from broker.producer_ids.ready()  # a producer id whose epochs are exhausted is replaced
    producer = ProducerIdentity(message.producer_id, message.producer_epoch)
    request = EndTransaction(message.transactional_id, producer, message.committed, 2 if has_own_epochs else 0)
    producer_reply = yield broker.coordinators.runtime(TRANSACTIONS).ask(message.transactional_id, request)
    error = producer_reply.error
    if error is ErrorCode.producer_fenced and context.version < 2:
        error = ErrorCode.invalid_producer_epoch
    producer_id, epoch = producer_reply.producer
    return {"error_code": error, "producer_id": producer_id, "producer_epoch": epoch}
