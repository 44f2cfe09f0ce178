"""The publisher of the broker's own dynamic settings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from odradek.catalog.features import ELIGIBLE_LEADERS
from odradek.catalog.state import BROKER

if TYPE_CHECKING:
    from odradek.broker.limits.admissions import Admissions
    from odradek.broker.limits.host_limits import HostLimits
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta

log = logging.getLogger("odradek.broker")


class BrokerSettings:
    """The dynamic settings of this broker and of all brokers."""

    def __init__(self, config: BrokerConfig, node_id: int, host_limits: HostLimits, admissions: Admissions) -> None:
        self._config = config
        self._own = str(node_id)
        self._host_limits, self._admissions = host_limits, admissions

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        """Applies changed settings.

        Raises ConfigError at the start if a host in the static ``max.connections.per.ip.overrides`` has no address."""
        if not delta.is_initial and not alters_broker(delta) and ELIGIBLE_LEADERS not in delta.features:
            return
        config = self._config
        config.eligible_leaders = ELIGIBLE_LEADERS in image.features()
        config.set_dynamic(image.configs(BROKER, self._own), image.configs(BROKER, ""))
        self._host_limits.apply_settings(at_start=delta.is_initial)
        self._admissions.close_excess()
        if delta.is_initial:
            for name, fault in config.ignored.items():
                log.warning("the dynamic value of %s is ignored: %s", name, fault)


def alters_broker(delta: Delta) -> bool:
    """Returns whether settings of brokers have changed."""
    return any(kind == BROKER for kind, _ in delta.configs)
