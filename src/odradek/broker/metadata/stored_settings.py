"""Stored dynamic broker settings at the start of the broker: the check, and ``--delete-config``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from odradek.broker.metadata.committed_catalog import CommittedCatalog
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.settings import protection
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.keys import UnknownConfig, find_broker_key
from odradek.catalog.state import BROKER, AlterConfigs
from odradek.core.errors import ConfigError

log = logging.getLogger("odradek.broker")


def delete(stored: StoredCatalog, node_id: int, names: Sequence[str]) -> None:
    """Resets settings, as AlterConfigs would. Raises ConfigError for an unknown name, and KafkaError.

    This helps if a setting keeps all clients out, for example ``max.connections.per.ip.overrides``.
    """
    texts_of = {resource: stored.catalog.configs(BROKER, resource) for resource in (str(node_id), "")}
    for name in names:
        try:
            if not any(name in texts for texts in texts_of.values()):
                find_broker_key(name)
        except UnknownConfig as error:
            raise ConfigError(error.with_hint()) from None
    for resource, texts in texts_of.items():
        changes = dict.fromkeys(name for name in names if name in texts)
        if changes:
            stored.apply(AlterConfigs(BROKER, resource, changes))
            log.warning("deleted dynamic settings of %s: %s", _owner(resource), ", ".join(changes))


def check(catalog: CommittedCatalog, node_id: int, config: BrokerConfig) -> None:
    """Raises ConfigError if a stored setting needs a protection that this broker lacks (``settings/protection``), or
    if the listeners of the start contradict it.

    Earlier versions of the broker accepted such settings.
    """
    for resource in (str(node_id), ""):
        try:
            protection.check(catalog.configs(BROKER, resource))
        except ConfigError as error:
            raise ConfigError(
                f"dynamic setting of {_owner(resource)}: {error} (odradek serve --delete-config NAME removes it)"
            ) from None
    whole = BrokerConfig(config.texts)
    whole.set_dynamic(catalog.configs(BROKER, str(node_id)), catalog.configs(BROKER, ""))
    try:
        whole.check_listeners()
    except ConfigError as error:
        raise ConfigError(f"dynamic setting: {error} (odradek serve --delete-config NAME removes it)") from None


def _owner(resource: str) -> str:
    return f"broker {resource}" if resource else "all brokers"
