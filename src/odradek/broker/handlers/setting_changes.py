"""Changes of settings by clients: the common part of AlterConfigs and IncrementalAlterConfigs.

Both make the same kind of change: for a resource, each name gets a text, or ``None`` to reset the setting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check, check_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.long_lists import count_in_steps, list_in_steps
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import ChangeTooLarge
from odradek.broker.settings import protection
from odradek.broker.settings import resources as config_resources
from odradek.broker.settings.config import MIN_ISR, BrokerConfig, check_topic_configs
from odradek.broker.settings.description import DYNAMIC
from odradek.broker.settings.keys import dynamic_broker_key
from odradek.broker.settings.prefixes import base_of
from odradek.broker.settings.resources import LOGGER
from odradek.catalog.state import BROKER, CLIENT_METRICS, GROUP, TOPIC, AlterConfigs, check_topic_name
from odradek.core.access import acl
from odradek.core.errors import ConfigError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from typing import Any, TypeVar

    from kio.schema.alter_configs.v2 import request as alter_configs
    from kio.schema.incremental_alter_configs.v1 import request as incremental_alter_configs

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.wire.chunks import Chunk

    Resource = TypeVar("Resource", alter_configs.AlterConfigsResource, incremental_alter_configs.AlterConfigsResource)

log = logging.getLogger("odradek.broker")

MAX_SETTINGS = 10_000
"""The most settings of one resource in a request: they are checked in one step.

No resource has as many as 1,000 settings. Kafka's controller writes at most 10,000 records for one request.
"""

Changes = Mapping[str, str | None]


def alter_resources(
    broker: BrokerServices,
    context: Context,
    resources: Sequence[Resource],
    alter: Callable[[Resource, list[Any]], AlterConfigs | None],
    *,
    validate_only: bool,
) -> Steps[list[Chunk]]:
    """Alters each resource of a request and returns a row for each.

    ``alter`` gets a resource and the rows of its settings. It returns the catalogue's request for the resource, or None
    for a logger.
    """
    times = yield from count_in_steps((resource.resource_type, resource.resource_name) for resource in resources)
    rows = elements(context, "responses")

    def alter_all(change: Change) -> Steps[None]:
        for resource in resources:
            refused: KafkaError | None = None
            try:
                if times[resource.resource_type, resource.resource_name] > 1:
                    raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
                settings = yield from list_in_steps(islice(resource.configs, MAX_SETTINGS + 1))
                check_names([row.name for row in settings])
                request = alter(resource, settings)
                broker.leftovers.add(settings)
                if request is not None:
                    yield from change.add(request)
            except ChangeTooLarge:
                raise
            except KafkaError as error:
                refused = error.kept()
            except ConfigError as error:
                refused = KafkaError(ErrorCode.invalid_config, str(error))
            rows.add(_row(resource, refused))
            yield None

    try:
        yield from value_of(broker.controller.write(alter_all, context, validate_only=validate_only, max_records=None))
    except KafkaError as error:  # nothing was written
        refusal = error.kept()
        rows = elements(context, "responses")
        for resource in resources:
            rows.add(_row(resource, refusal))
            yield None
    finally:
        broker.leftovers.add(times)
    return reply(context, {"responses": rows})


def _row(
    resource: alter_configs.AlterConfigsResource | incremental_alter_configs.AlterConfigsResource,
    refused: KafkaError | None,
) -> dict[str, object]:
    return {
        "error_code": refused.code if refused is not None else ErrorCode.none,
        "error_message": (refused.message or None) if refused is not None else None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def check_names(names: list[str]) -> None:
    """Checks the names of the settings in a request for one resource. Raises KafkaError."""
    if len(names) > MAX_SETTINGS:
        raise KafkaError(ErrorCode.policy_violation, "Unable to perform excessively large batch operation.")
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")


def check_allowed(broker: BrokerServices, context: Context, operation: int, kind: int, name: str) -> None:
    """Raises KafkaError if the client may not do an operation with the settings of a resource."""
    if kind == TOPIC:
        check(broker, context, operation, acl.Resource.TOPIC, name)
    elif kind == GROUP:
        check(broker, context, operation, acl.Resource.GROUP, name)
    elif kind in (BROKER, LOGGER, CLIENT_METRICS):
        check_cluster(broker, context, operation)


def check_resource(broker: BrokerServices, kind: int, name: str) -> None:
    """Raises KafkaError if the resource does not exist or has no settings."""
    if kind == TOPIC:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        check_topic_name(name)
    elif kind == BROKER:
        broker.role.check_broker_name(name)
    elif kind == LOGGER:
        if name != str(broker.node_id):
            raise KafkaError(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {broker.node_id}, but received {name}"
            )
    elif kind in (CLIENT_METRICS, GROUP):
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default resources of this type are not allowed.")
    else:
        raise KafkaError(ErrorCode.invalid_request, f"This broker has no configs for resources of type {kind}.")


def alter(
    broker: BrokerServices, kind: int, name: str, changes: Changes, *, validate_only: bool
) -> AlterConfigs | None:
    """Checks the changes of one resource. Returns the request for the catalogue, or None for loggers.

    The levels of loggers are set at once, unless ``validate_only``. Raises KafkaError or ConfigError.
    """
    check_resource(broker, kind, name)
    if kind == LOGGER:
        config_resources.check_loggers(changes)
        if not validate_only:
            config_resources.set_loggers(changes)
        return None
    present = broker.catalog.configs(kind, name)
    after = {key: value for key, value in {**present, **changes}.items() if value is not None}
    if kind == TOPIC:
        check_topic_configs(after, broker.config, present)
        if broker.catalog.topic(name) is None:  # as in Kafka, after the values
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    elif kind == BROKER:
        _check_broker(broker.config, name, changes, is_own=broker.role.has_broker_settings)
    else:
        config_resources.check(broker.config, kind, after)
    return AlterConfigs(kind, name, changes)


_PER_BROKER = (
    "ssl.", "sasl.", "listener.name.", "listeners", "listener.security.protocol.map", "cordoned.log.dirs",
    "principal.builder.class",
)  # fmt: skip
_THREADS = (
    "background.threads", "log.cleaner.threads", "num.io.threads", "num.network.threads",
    "num.recovery.threads.per.data.dir", "num.replica.fetchers",
)  # fmt: skip
_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"
_PER_LISTENER = ("ssl.keystore.", "ssl.key.", "ssl.truststore.")


def _check_broker(config: BrokerConfig, broker_id: str, changes: Changes, *, is_own: bool) -> None:
    """Raises KafkaError or ConfigError. ``is_own``: whether the settings are those of the node with this config."""
    set_to = {key: value for key, value in changes.items() if value is not None}  # any setting may be reset
    try:
        # Only a start sets the authorizer.
        protection.check({protection.AUTHORIZER: config.authorizer_class_name, **set_to})
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from None
    for key in set_to:
        if dynamic_broker_key(key).is_foreign:
            log.warning("%s is no setting of this broker: it is stored without effect", key)
    for names, text in (
        (
            [key for key in set_to if _is_fixed(config, key)],
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
            raise KafkaError(ErrorCode.invalid_request, f"{text}: [{', '.join(names)}]")
    try:
        if "listeners" in set_to:
            raise ConfigError("listeners can only be set by --listen")
        _check_reporters(set_to)
        after = config.after(changes, cluster_wide=not broker_id)
        if is_own:
            _check_threads(config, after)
        if any(key.startswith("listener.name.") for key in changes):
            from odradek.broker.settings.tls_settings import check_stores

            check_stores(after, changes, config)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from None
    if config.eligible_leaders and MIN_ISR in changes and (broker_id or changes[MIN_ISR] is None):
        level, verb = ("Broker", "altered") if broker_id else ("Cluster", "removed")
        raise ConfigError(f"{level}-level {MIN_ISR} cannot be {verb} while ELR is enabled.")


def _is_fixed(config: BrokerConfig, name: str) -> bool:
    """Whether only a start sets this setting. As in Kafka, an unknown name may belong to a plugin, and is not fixed."""
    if name.startswith("listener.name."):
        from odradek.broker.settings.listener_settings import has_no_use

        if has_no_use(config, name):
            return False
    key = dynamic_broker_key(name)
    return not key.is_foreign and base_of(key.name) not in DYNAMIC


def _check_reporters(set_to: Mapping[str, str]) -> None:
    """Raises ConfigError for reporters of metrics in Java, which no broker here can load."""
    names = [one.strip() for one in set_to.get("metric.reporters", "").split(",") if one.strip()]
    if any(name != _REPORTER for name in names):
        raise ConfigError("Validation of dynamic config update of Set(metric.reporters) failed: no such class")


def _check_threads(config: BrokerConfig, changed: BrokerConfig) -> None:
    """Raises ConfigError if a number of threads is more than doubled or less than halved, as Kafka does.

    The threads have no effect here. But a tool that changes the number in steps must see the refusals of Kafka.
    """
    for name in _THREADS:
        old, new = int(config.text(name) or 1), int(changed.text(name) or 1)
        fault = ""
        if new > old * 2:
            fault = f"value should not be greater than double the current value {old}"
        elif new < old // 2:
            fault = f"value should be at least half the current value {old}"
        if fault:
            raise ConfigError(f"Dynamic thread count update validation failed for {name}={new}, {fault}")
