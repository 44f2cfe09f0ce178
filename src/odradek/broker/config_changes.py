"""Changing settings while running: what AlterConfigs and IncrementalAlterConfigs have in common.

Both end in the same step: a resource, and for each name a text, or ``None`` that takes the setting back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from odradek.broker import config_resources
from odradek.broker.config import BrokerConfig, check_topic_configs, find_broker_key, find_topic_key
from odradek.broker.config_inert import DYNAMIC
from odradek.broker.config_resources import LOGGER
from odradek.catalog.shard import BROKER, CLIENT_METRICS, GROUP, TOPIC, AlterConfigs
from odradek.core.errors import ConfigError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.server import BrokerServer

Changes = Mapping[str, str | None]


def answer(resources: Any, alter: Callable[[Any], None]) -> list[dict[str, Any]]:
    """Alters each resource; a row for each says how it went."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    rows = []
    for resource in resources:
        code, text = ErrorCode.none, None
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            names = [config.name for config in resource.configs]
            if len(set(names)) != len(names):
                raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
            alter(resource)
        except KafkaError as error:
            code, text = error.code, error.message or None
        except ConfigError as error:
            code, text = ErrorCode.invalid_config, str(error)
        rows.append(
            {
                "error_code": code,
                "error_message": text,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return rows


def check_resource(broker: BrokerServer, kind: int, name: str) -> None:
    """Raises KafkaError where there is no such resource, or none that has settings."""
    if kind == TOPIC:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        if broker.catalog.topic(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    elif kind == BROKER:
        if name not in ("", str(broker.node_id)):
            raise KafkaError(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {broker.node_id}, but received {name}"
            )
    elif kind == LOGGER:
        if name != str(broker.node_id):
            raise KafkaError(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {broker.node_id}, but received {name}"
            )
    elif kind in (CLIENT_METRICS, GROUP):
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default resources of this type are not allowed.")
    else:
        raise KafkaError(ErrorCode.invalid_request, f"resources of type {kind} have no configs here")


def alter(broker: BrokerServer, kind: int, name: str, changes: Changes, *, validate_only: bool) -> None:
    """Checks the changes and makes them. Raises KafkaError or ConfigError; nothing has changed then."""
    check_resource(broker, kind, name)
    if kind == LOGGER:
        config_resources.check_loggers(changes)
        if not validate_only:
            config_resources.set_loggers(changes)
        return
    present = broker.catalog.configs(kind, name)
    after = {key: value for key, value in {**present, **changes}.items() if value is not None}
    if kind == TOPIC:
        for key, value in changes.items():
            if value is not None:
                find_topic_key(key).parse(value)
        check_topic_configs(after, broker.config)
    elif kind == BROKER:
        _check_broker(broker.config, name, changes)
    else:
        config_resources.check(broker.config, kind, after)
    broker.alter_configs(AlterConfigs(kind, name, changes), validate_only=validate_only)


_PER_BROKER = ("ssl.", "sasl.", "listeners", "listener.security.protocol.map", "cordoned.log.dirs")
_PER_LISTENER = ("ssl.keystore.", "ssl.key.", "ssl.truststore.")


def _check_broker(config: BrokerConfig, broker_id: str, changes: Changes) -> None:
    set_to = {key: value for key, value in changes.items() if value is not None}  # any may be taken back
    for names, told in (
        (
            [key for key in set_to if find_broker_key(key).name not in DYNAMIC],
            "Cannot update these configs dynamically",
        ),
        (
            [key for key in set_to if key.startswith(_PER_LISTENER)],
            "These security configs can be dynamically updated only per-listener using the listener prefix",
        ),
        (
            [key for key in set_to if not broker_id and key.startswith(_PER_BROKER)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        ),
    ):
        if names:
            raise KafkaError(ErrorCode.invalid_request, f"{told}: [{', '.join(names)}]")
    try:
        if "listeners" in set_to:
            raise ConfigError("listeners is set by --listen alone")
        config.after(changes, cluster_wide=not broker_id)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from None
