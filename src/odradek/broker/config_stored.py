"""Settings that were made while running, as the next start finds them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from odradek.broker import config_protection
from odradek.broker.config_keys import UnknownConfig, find_broker_key
from odradek.broker.metadata_log import Catalog
from odradek.catalog.shard import BROKER, AlterConfigs
from odradek.core.errors import ConfigError

log = logging.getLogger("odradek.broker")


def delete(catalog: Catalog, node_id: int, names: Sequence[str]) -> None:
    """Takes settings back, as AlterConfigs would. Raises ConfigError for a name that is no setting, KafkaError.

    This is the way back where a setting lets no client in, for example ``max.connections.per.ip.overrides``.
    """
    stored = {resource: catalog.configs(BROKER, resource) for resource in (str(node_id), "")}
    for name in names:
        try:
            if not any(name in texts for texts in stored.values()):
                find_broker_key(name)
        except UnknownConfig as error:
            raise ConfigError(error.with_hint()) from None
    for resource, texts in stored.items():
        changes = dict.fromkeys(name for name in names if name in texts)
        if changes:
            catalog.apply(AlterConfigs(BROKER, resource, changes))
            log.warning("deleted what was set while running for %s: %s", _owner(resource), ", ".join(changes))


def check(catalog: Catalog, node_id: int) -> None:
    """Raises ConfigError where one asks for protection that does not exist: brokers before this one let it pass."""
    for resource in (str(node_id), ""):
        try:
            config_protection.check(catalog.configs(BROKER, resource))
        except ConfigError as error:
            raise ConfigError(
                f"set while running for {_owner(resource)}: {error} (odradek serve --delete-config NAME removes it)"
            ) from None


def _owner(resource: str) -> str:
    return f"broker {resource}" if resource else "all brokers"
