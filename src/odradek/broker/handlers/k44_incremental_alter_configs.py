"""IncrementalAlterConfigs 0–1: sets, unsets, appends to or subtracts from settings of topics and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.config import ConfigKey, ConfigType, find_broker_key, find_topic_key, topic_text
from odradek.catalog.shard import BROKER, TOPIC, AlterConfigs
from odradek.core.errors import ConfigError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer

API_KEY = 44
VERSIONS = (0, 1)

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    responses = []
    for resource in message.resources:
        code, text = ErrorCode.none, None
        try:
            _alter(broker, resource, message.validate_only)
        except KafkaError as error:
            code, text = error.code, error.message or None
        except ConfigError as error:
            code, text = ErrorCode.invalid_config, str(error)
        responses.append(
            {
                "error_code": code,
                "error_message": text,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"responses": responses}


def _alter(broker: BrokerServer, resource: Any, validate_only: bool) -> None:
    kind, name = resource.resource_type, resource.resource_name
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    nulls = [config.name for config in resource.configs if config.value is None and config.config_operation != DELETE]
    if nulls:
        raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}")
    if kind == TOPIC:
        if broker.catalog.topic(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
        own = broker.catalog.topic_configs(name)
        changes = {
            config.name: _changed(
                find_topic_key(config.name), config, topic_text(broker.config, own, config.name) or ""
            )
            for config in resource.configs
        }
    elif kind == BROKER:
        _check_broker(broker, name, names)
        changes = {
            config.name: _changed(find_broker_key(config.name), config, broker.config.text(config.name) or "")
            for config in resource.configs
        }
    else:
        raise KafkaError(ErrorCode.invalid_request, f"resources of type {kind} have no configs here")
    broker.alter_configs(AlterConfigs(kind, name, changes), validate_only=validate_only)


def _check_broker(broker: BrokerServer, name: str, names: list[str]) -> None:
    from odradek.broker.config_inert import DYNAMIC

    if name not in ("", str(broker.node_id)):
        raise KafkaError(
            ErrorCode.invalid_request, f"Unexpected broker id, expected {broker.node_id}, but received {name}"
        )
    for key in names:
        find_broker_key(key)
    fixed = [key for key in names if key not in DYNAMIC]
    if fixed:
        raise KafkaError(ErrorCode.invalid_request, f"Cannot update these configs dynamically: [{', '.join(fixed)}]")


def _changed(key: ConfigKey, config: Any, present: str) -> str | None:
    """The value after the change; ``None`` takes the setting back. Raises ConfigError, KafkaError."""
    operation, value = config.config_operation, config.value or ""
    if operation == DELETE:
        return None
    if operation == SET:
        key.parse(value)
        return str(value)
    if operation not in (APPEND, SUBTRACT):
        raise KafkaError(ErrorCode.unknown_server_error)
    if key.type is not ConfigType.LIST:
        verb = "APPEND to" if operation == APPEND else "SUBTRACT from"
        raise ConfigError(f"Can't {verb} key {key.name} because its type is not LIST.")
    parts = [part for part in present.split(",") if part]
    named = [part.strip() for part in value.split(",") if part.strip()]
    if operation == APPEND:
        parts += [part for part in named if part not in parts]
    else:
        parts = [part for part in parts if part not in named]
    joined = ",".join(parts)
    key.parse(joined)
    return joined
