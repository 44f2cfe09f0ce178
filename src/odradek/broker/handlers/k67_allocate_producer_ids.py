"""AllocateProducerIds 0: allocates a block of producer ids to a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.loop.scheduler import value_of
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest

    from odradek.broker.handlers.api import Context, ControllerServices
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 0)
LISTENERS = ("controller",)


def handle(
    controller: ControllerServices, context: Context, message: AllocateProducerIdsRequest
) -> Steps[dict[str, object]]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    owner = message.broker_id, message.broker_epoch
    brokers = controller.role.registered_brokers
    promise = brokers.submit(lambda control, _: control.allocate_producer_ids(*owner), context)
    try:
        first, count = yield from value_of(promise)
    except KafkaError as error:
        return {"error_code": error.code, "producer_id_start": 0, "producer_id_len": 0}
    return {"error_code": ErrorCode.none, "producer_id_start": first, "producer_id_len": count}
