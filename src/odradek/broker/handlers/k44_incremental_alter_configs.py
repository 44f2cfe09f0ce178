"""IncrementalAlterConfigs 0–1: sets, resets, appends to or subtracts from settings.

The resources are topics, brokers, loggers, groups and client metrics subscriptions.

* 1: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers import setting_changes
from odradek.broker.settings import resources
from odradek.broker.settings.config import topic_text
from odradek.broker.settings.keys import ConfigKey, ConfigType, find_broker_key, find_topic_key
from odradek.broker.settings.resources import LOGGER
from odradek.catalog.state import BROKER, TOPIC, AlterConfigs
from odradek.core.access.acl import Operation
from odradek.core.errors import ConfigError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 1)
LISTENERS = ("client", "controller")
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def handle(broker: BrokerServices, context: Context, message: IncrementalAlterConfigsRequest) -> Steps[list[Chunk]]:
    return setting_changes.alter_resources(
        broker, context, message.resources, changes(broker, context, message), validate_only=message.validate_only
    )


def changes(
    broker: BrokerServices, context: Context, message: IncrementalAlterConfigsRequest
) -> Callable[[AlterConfigsResource, list[AlterableConfig]], AlterConfigs | None]:
    """Returns the function that checks the change of one resource, and makes the catalogue's request for it."""

    def change(resource: AlterConfigsResource, rows: list[AlterableConfig]) -> AlterConfigs | None:
        kind, name = resource.resource_type, resource.resource_name
        nulls = [config.name for config in rows if config.value is None and config.config_operation != DELETE]
        if nulls:
            raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}")
        if kind in (BROKER, LOGGER):  # as in Kafka, a wrong id is a fault before any question
            setting_changes.check_resource(broker, kind, name)
        setting_changes.check_allowed(broker, context, Operation.ALTER_CONFIGS, kind, name)
        setting_changes.check_resource(broker, kind, name)
        values = {config.name: _new_value(broker, kind, name, config) for config in rows}
        return setting_changes.alter(broker, kind, name, values, validate_only=message.validate_only)

    return change


def _new_value(broker: BrokerServices, kind: int, name: str, config: AlterableConfig) -> str | None:
    """Returns a setting's value after the change; ``None`` resets it. Raises ConfigError, KafkaError."""
    operation, value = config.config_operation, config.value
    if operation == DELETE or value is None:  # the caller allows a null value only for DELETE
        return None
    if operation == SET:
        return value
    if operation not in (APPEND, SUBTRACT):
        raise KafkaError(ErrorCode.unknown_server_error)
    verb = "APPEND to" if operation == APPEND else "SUBTRACT from"
    if kind == LOGGER:
        raise KafkaError(ErrorCode.invalid_request, f"Can't {verb} the level of a logger.")
    key, current = _current(broker, kind, name, config.name)
    if key.type is not ConfigType.LIST:
        raise ConfigError(f"Can't {verb} key {key.name} because its type is not LIST.")
    parts = [part for part in current.split(",") if part]
    values = [part.strip() for part in value.split(",") if part.strip()]
    if operation == APPEND:
        parts += [part for part in values if part not in parts]
    else:
        parts = [part for part in parts if part not in values]
    return ",".join(parts)


def _current(broker: BrokerServices, kind: int, name: str, key_name: str) -> tuple[ConfigKey, str]:
    """Returns a setting's key and the list to change.

    For topics and brokers, the list is the value in effect. For other resources, it is their own value or the default.
    """
    own = broker.catalog.configs(kind, name)
    if kind == TOPIC:
        return find_topic_key(key_name), topic_text(broker.config, own, key_name) or ""
    if kind == BROKER:
        return find_broker_key(key_name), broker.config.text(key_name) or ""
    key = resources.find_key(kind, key_name)
    return key, own.get(key_name, key.default or "")
