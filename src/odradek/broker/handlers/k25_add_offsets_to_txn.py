"""AddOffsetsToTxn 0–4: adds a group's partition of ``__consumer_offsets`` to a transaction.

* 2: the error PRODUCER_FENCED, until then INVALID_PRODUCER_EPOCH.
* 3: flexible.
* 4: the error TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.handlers.authorization import check
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, ProducerIdentity, partition_for_group

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 4)


def handle(broker: BrokerServices, context: Context, message: AddOffsetsToTxnRequest) -> Steps[dict[str, object]]:
    from odradek.transactions.messages import AddPartitions

    check(broker, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, message.transactional_id)
    check(broker, context, Operation.READ, Resource.GROUP, message.group_id)
    index = broker.groups.partition_of(message.group_id)
    if index < 0:  # the topic is created when a client looks for the group's coordinator
        index = partition_for_group(message.group_id, broker.config.offsets_topic_num_partitions)
    producer = ProducerIdentity(message.producer_id, message.producer_epoch)
    request = AddPartitions(message.transactional_id, producer, {(OFFSETS_TOPIC, index)}, client_version=0)
    error = yield broker.coordinators.runtime(TRANSACTIONS).ask(message.transactional_id, request)
    if error is ErrorCode.producer_fenced and context.version < 2:
        error = ErrorCode.invalid_producer_epoch
    return {"error_code": error}
