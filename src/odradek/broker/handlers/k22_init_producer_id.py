"""InitProducerId 0–5: returns an id for an idempotent producer.

* 2: flexible.
* 3: the producer's current id and epoch in the request.

The broker has no transactions yet. A request with a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED: a
fatal error, so that the producer stops instead of retrying.
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
