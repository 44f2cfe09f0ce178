"""InitProducerId 0–5: an id for an idempotent producer.

Versions: 2 flexible, 3 the id and epoch a producer already has. Transactions do not exist yet: a transactional id
gets an error that ends the producer with a clear name rather than a retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    from odradek.broker.api import BrokerServices, Context
    from odradek.broker.scheduler import Steps

VERSIONS = (0, 5)
IS_FREQUENT = True


def handle(broker: BrokerServices, context: Context, message: InitProducerIdRequest) -> Steps[dict[str, Any]]:
    transactional_id = message.transactional_id
    known = (message.producer_id, message.producer_epoch) if context.version >= 3 else (-1, -1)
    if transactional_id == "" or known.count(-1) == 1:  # an id and its epoch come together
        code = ErrorCode.invalid_request
    elif transactional_id is not None:
        code = ErrorCode.transactional_id_authorization_failed
    else:
        producer_id = yield from broker.producer_ids.next()
        return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
