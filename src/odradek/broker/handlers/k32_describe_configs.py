"""DescribeConfigs 1–4: settings of topics, this broker, its loggers and others, with where each value comes from.

Versions: 1 sources and synonyms, 3 types and documentation, 4 flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odradek.broker.config import Described, Source, describe_broker, describe_topic, find_broker_key
from odradek.broker.config_changes import check_resource
from odradek.broker.config_resources import LOGGER, describe, describe_loggers
from odradek.catalog.shard import BROKER, TOPIC, check_topic_name
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    synonyms = message.include_synonyms
    documented = getattr(message, "include_documentation", False)
    alike: _Alike = {}
    return {"results": [_describe(broker, resource, synonyms, documented, alike) for resource in message.resources]}


_Alike = dict[tuple[Any, ...], list[dict[str, Any]]]
"""Rows of topics on which the same is set: of thousands of topics, most are as the broker has them."""


def _describe(broker: BrokerServer, resource: Any, synonyms: bool, documented: bool, alike: _Alike) -> dict[str, Any]:
    kind, name, names = resource.resource_type, resource.resource_name, resource.configuration_keys or None
    code, text, packed = ErrorCode.none, "", None
    rows: list[Described] = []
    try:
        if kind == TOPIC:
            own = _set_on_topic(broker, name)
            as_others = (names, *sorted(own.items()))
            packed = alike.get(as_others)
            if packed is None:
                described = describe_topic(broker.config, own, names)
                packed = alike[as_others] = [_packed(row, synonyms, documented) for row in described]
        elif kind == BROKER:
            rows = _broker_rows(broker, name, names)
        else:
            check_resource(broker, kind, name)
            if kind == LOGGER:
                rows = describe_loggers(names)
            else:
                rows = describe(broker.config, kind, broker.catalog.configs(kind, name), names)
    except KafkaError as error:
        code, text = error.code, error.message
    return {
        "error_code": code,
        "error_message": text,
        "resource_type": kind,
        "resource_name": name,
        "configs": [_packed(row, synonyms, documented) for row in rows] if packed is None else packed,
    }


def _set_on_topic(broker: BrokerServer, name: str) -> Mapping[str, str]:
    check_topic_name(name)
    if broker.catalog.topic(name) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    return broker.catalog.topic_configs(name)


def _broker_rows(broker: BrokerServer, name: str, names: tuple[str, ...] | None) -> list[Described]:
    if name == "":
        set_for_all = broker.catalog.configs(BROKER, "")
        source = Source.DYNAMIC_DEFAULT_BROKER
        return [
            Described(find_broker_key(key), value, source, False, ((key, value, source),))
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
    told = {
        "node.id": str(broker.node_id),
        "broker.id": str(broker.node_id),
        "log.dirs": str(broker.directory.path),
        "listeners": "PLAINTEXT://{}:{}".format(*broker.address),
    }
    return [
        row._replace(value=told[row.key.name], source=Source.STATIC_BROKER) if row.key.name in told else row
        for row in describe_broker(broker.config, names)
    ]


def _packed(row: Described, synonyms: bool, documented: bool) -> dict[str, Any]:
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
        "documentation": _documentation(row) if documented or row.source is Source.LOGGER else None,
    }


def _documentation(row: Described) -> str:
    inert = row.key.inert
    if inert and inert != row.key.doc:
        return f"{row.key.doc} Without effect: {inert}".strip()
    return f"Without effect: {inert}" if inert else row.key.doc
