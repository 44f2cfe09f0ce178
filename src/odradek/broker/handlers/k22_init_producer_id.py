"""InitProducerId 0–5: returns an id for an idempotent producer, or the next epoch of a transactional id.

* 2: flexible.
* 3: the producer's current id and epoch in the request.
* 4: the error PRODUCER_FENCED, until then INVALID_PRODUCER_EPOCH.
* 5: the error TRANSACTION_ABORTABLE.

Version 6 (two-phase commit) is unstable in Apache Kafka 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.handlers.authorization import check, is_allowed_for_cluster, refusal
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.transactions.messages import ProducerReply

VERSIONS = (0, 5)
IS_FREQUENT = True


def handle(broker: BrokerServices, context: Context, message: InitProducerIdRequest) -> Steps[dict[str, object]]:
    _check(broker, context, message.transactional_id)
    known = (message.producer_id, message.producer_epoch) if context.version >= 3 else (-1, -1)
    if message.transactional_id == "" or known.count(-1) == 1:  # only one of id and epoch
        return _row(ErrorCode.invalid_request)
    if message.transactional_id is None:
        return _row(producer_id=(yield from broker.producer_ids.next()), epoch=0)
    producer_reply = yield from _initialize(broker, message, known)
    error = producer_reply.error
    if error is ErrorCode.producer_fenced and context.version < 4:
        error = ErrorCode.invalid_producer_epoch
    return _row(error, *producer_reply.producer)


def _check(broker: BrokerServices, context: Context, transactional_id: str | None) -> None:
    """Raises KafkaError if the client may not get a producer id.

    An idempotent producer needs the permission of the cluster, or that to write one topic.
    """
    if transactional_id is not None:
        check(broker, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
    elif broker.authorizer is not None and not (
        is_allowed_for_cluster(broker, context, Operation.IDEMPOTENT_WRITE, logs_denial=False)
        or broker.authorizer.allows_any(context, Operation.WRITE, Resource.TOPIC)
    ):
        raise refusal(Resource.CLUSTER)


def _initialize(broker: BrokerServices, message: InitProducerIdRequest, known: tuple[int, int]) -> Steps[ProducerReply]:
    from odradek.transactions.messages import InitProducerId

    assert message.transactional_id is not None
    yield from broker.producer_ids.ready()  # so that the coordinator need not wait for an id
    expected = None if known == (-1, -1) else ProducerIdentity(*known)
    request = InitProducerId(message.transactional_id, milliseconds(message.transaction_timeout), expected)
    producer_reply: ProducerReply = yield broker.coordinators.runtime(TRANSACTIONS).ask(
        message.transactional_id, request
    )
    return producer_reply


def _row(error: ErrorCode = ErrorCode.none, producer_id: int = -1, epoch: int = -1) -> dict[str, object]:
    return {"error_code": error, "producer_id": producer_id, "producer_epoch": epoch}
