"""AlterConfigs 0–2: replaces all settings of topics, brokers and other resources.

Settings that are not in the request are reset.

* 2: flexible.

Kafka recommends IncrementalAlterConfigs; old tools use this API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers import setting_changes
from odradek.broker.settings.resources import LOGGER
from odradek.catalog.state import BROKER
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kio.schema.alter_configs.v2.request import AlterableConfig, AlterConfigsRequest, AlterConfigsResource

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.catalog.state import AlterConfigs
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 2)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: AlterConfigsRequest) -> Steps[list[Chunk]]:
    return setting_changes.alter_resources(
        broker, context, message.resources, changes(broker, context, message), validate_only=message.validate_only
    )


def changes(
    broker: BrokerServices, context: Context, message: AlterConfigsRequest
) -> Callable[[AlterConfigsResource, list[AlterableConfig]], AlterConfigs | None]:
    """Returns the function that checks the change of one resource, and makes the catalogue's request for it."""

    def replace(resource: AlterConfigsResource, rows: list[AlterableConfig]) -> AlterConfigs | None:
        kind, name = resource.resource_type, resource.resource_name
        if kind == LOGGER:
            raise KafkaError(ErrorCode.invalid_request, "Use IncrementalAlterConfigs to change the levels of loggers.")
        nulls = [config.name for config in rows if config.value is None]
        if nulls:
            raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}")
        if kind == BROKER:
            setting_changes.check_resource(broker, kind, name)
        setting_changes.check_allowed(broker, context, Operation.ALTER_CONFIGS, kind, name)
        given = {config.name: config.value for config in rows}
        replaced = dict.fromkeys(broker.catalog.configs(kind, name))
        if kind == BROKER and not name:
            # Also reset the cluster-wide settings that the catalogue lacks, because the broker itself has set them.
            replaced |= dict.fromkeys(broker.config.cluster_wide)
        values = {**replaced, **given}
        return setting_changes.alter(broker, kind, name, values, validate_only=message.validate_only)

    return replace
