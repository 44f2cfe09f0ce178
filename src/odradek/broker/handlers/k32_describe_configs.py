"""DescribeConfigs 1–4: returns the settings of topics, this node, its loggers and other resources.

* 1: source and synonyms of each value.
* 3: types and documentation.
* 4: flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.broker.handlers.long_replies import each_once, elements, reply, shared_elements
from odradek.broker.handlers.setting_changes import check_allowed, check_resource
from odradek.broker.settings.description import ConfigRow, describe_broker, describe_topic
from odradek.broker.settings.keys import ConfigSource, dynamic_broker_key
from odradek.broker.settings.resources import LOGGER, describe, describe_loggers
from odradek.catalog.state import BROKER, TOPIC, check_topic_name
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (1, 4)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: DescribeConfigsRequest) -> Steps[list[Chunk]]:
    results = elements(context, "results")
    described = _Descriptions(broker, context, message)
    yield from each_once(results, message.resources, _key, described.of)
    return reply(context, {"results": results})


def _key(resource: DescribeConfigsResource) -> tuple[int, str, tuple[str, ...] | None]:
    return resource.resource_type, resource.resource_name, resource.configuration_keys


class _Descriptions:
    """The rows of one reply: the settings of each resource."""

    def __init__(self, broker: BrokerServices, context: Context, message: DescribeConfigsRequest) -> None:
        self._broker = broker
        self._context = context
        self._synonyms = message.include_synonyms
        self._documented = context.version >= 3 and message.include_documentation
        # Most of thousands of topics have the same settings. Topics with equal settings share their packed rows.
        self._shared: dict[tuple[object, ...], Elements] = {}

    def of(self, resource: DescribeConfigsResource) -> Steps[dict[str, object]]:
        code, text, configs = ErrorCode.none, "", None
        try:
            configs = yield from self._configs(
                resource.resource_type, resource.resource_name, resource.configuration_keys or None
            )
        except KafkaError as error:
            code, text = error.code, error.message
        return {
            "error_code": code,
            "error_message": text,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": () if configs is None else configs,
        }

    def _configs(self, kind: int, name: str, names: tuple[str, ...] | None) -> Steps[Elements]:
        broker = self._broker
        check_allowed(broker, self._context, Operation.DESCRIBE_CONFIGS, kind, name)
        if kind == TOPIC:
            own = _set_on_topic(broker, name)
            key = (names, *sorted(own.items()))
            configs = self._shared.get(key)
            if configs is None:
                configs = self._shared[key] = yield from self._packed(describe_topic(broker.config, own, names))
            return configs
        if kind == BROKER:
            rows = _broker_rows(broker, name, names)
        else:
            check_resource(broker, kind, name)
            if kind == LOGGER:
                rows = describe_loggers(names)
            else:
                rows = describe(broker.config, kind, broker.catalog.configs(kind, name), names)
        return (yield from self._packed(rows))

    def _packed(self, rows: list[ConfigRow]) -> Steps[Elements]:
        configs = shared_elements(self._context, "results", "configs")
        for row in rows:
            configs.add(_packed(row, self._synonyms, self._documented))
            yield None
        return configs


def _set_on_topic(broker: BrokerServices, name: str) -> Mapping[str, str]:
    check_topic_name(name)
    if broker.catalog.topic(name) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    return broker.catalog.topic_configs(name)


def _broker_rows(broker: BrokerServices, name: str, names: tuple[str, ...] | None) -> list[ConfigRow]:
    if name == "":
        set_for_all = broker.config.cluster_wide
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        return [
            ConfigRow(dynamic_broker_key(key), value, source, False, ((key, value, source),))
            for key, value in set_for_all.items()
            if names is None or key in names
        ]
    if not name.lstrip("-").isdigit():
        raise KafkaError(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}")
    if int(name) != broker.node_id:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
        )
    options = {
        "node.id": str(broker.node_id),
        "broker.id": str(broker.node_id),
        "log.dirs": str(broker.log_dir),
        "listeners": ",".join(map(str, broker.listeners)),
    }
    return describe_broker(broker.config, names, options)


def _packed(row: ConfigRow, synonyms: bool, documented: bool) -> dict[str, object]:
    hidden = row.key.sensitive
    return {
        "name": row.key.name,
        "value": None if hidden else row.value,
        "read_only": row.read_only,
        "config_source": row.source,
        "is_sensitive": hidden,
        "synonyms": [
            {"name": name, "value": None if hidden else value, "source": source}
            for name, value, source in (row.synonyms if synonyms else ())
        ],
        "config_type": row.key.type,
        "documentation": _documentation(row) if documented or row.source is ConfigSource.LOGGER else None,
    }


def _documentation(row: ConfigRow) -> str:
    inert = row.key.inert
    if inert and inert != row.key.doc:
        return f"{row.key.doc} Without effect: {inert}".strip()
    return f"Without effect: {inert}" if inert else row.key.doc
