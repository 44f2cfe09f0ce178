"""ListConfigResources 0–1: returns topics, brokers, their loggers, groups and client metrics subscriptions.

Of groups and client metrics subscriptions, only those with settings are returned.

* 0: client metrics subscriptions only.
* 1: the requested resource types, or all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.settings.resources import LOGGER
from odradek.catalog.state import BROKER, CLIENT_METRICS, GROUP, TOPIC
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 1)
_KINDS = (TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP)


def handle(broker: BrokerServices, context: Context, message: ListConfigResourcesRequest) -> Steps[list[Chunk]]:
    check_cluster(broker, context, Operation.DESCRIBE_CONFIGS)
    kinds = tuple(message.resource_types) or _KINDS if context.version >= 1 else (CLIENT_METRICS,)
    if not set(kinds) <= set(_KINDS):
        return reply(context, {"error_code": ErrorCode.unsupported_version, "config_resources": ()})
    listed = elements(context, "config_resources")
    for kind in dict.fromkeys(kinds):
        for name in _names(broker, context, kind):
            listed.add({"resource_name": name, "resource_type": kind})
            yield None
    return reply(context, {"error_code": ErrorCode.none, "config_resources": listed})


def _names(broker: BrokerServices, context: Context, kind: int) -> list[str]:
    if kind == TOPIC:
        return [topic.name for topic in broker.catalog.topics()]
    if kind in (BROKER, LOGGER):
        return [str(address.broker_id) for address in broker.brokers.known(context)]
    return broker.catalog.configured_resources(kind)
