"""``startingOffsets=zookeeper``: the start offsets of a query without a checkpoint are those in ZooKeeper.

The login comes from the environment of the driver (``ODRADEK_ZOOKEEPER_LOGIN``), because Spark shows the options of a
source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from odradek.core.errors import ConfigError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.zookeeper.config import SETTINGS, config_of
from odradek.zookeeper.layout import KAFKA_TEMPLATE, OffsetLayout

PREFIX = "zookeeper."
PATH, JSON_FIELD, LAST_READ = "zookeeper.path", "zookeeper.jsonField", "zookeeper.lastRead"
LOGIN = "zookeeper.login"
OPTIONS = (PATH, JSON_FIELD, LAST_READ, *SETTINGS)
_SHOWN = 3


@dataclass(frozen=True)
class ZooKeeperStart:
    """Where ZooKeeper has the offsets. ``layout``: the paths.

    ``settings``: the settings of the ZooKeeper session, without a login."""

    settings: Mapping[str, str]
    layout: OffsetLayout
    group: str


def zookeeper_start(
    options: Mapping[str, str], group_id: str | None, topics: Collection[str], *, last_read: bool
) -> ZooKeeperStart:
    """Checks the options, which have lower-case names. ``topics``: those that are named in the options.

    Raises ConfigError."""
    if LOGIN in options:
        raise ConfigError("zookeeper.login: Spark shows options, so set ODRADEK_ZOOKEEPER_LOGIN on the driver instead")
    settings = {name: options[name] for name in SETTINGS if name in options}
    if "zookeeper.connect" not in settings:
        raise ConfigError("startingOffsets=zookeeper needs zookeeper.connect, for example 127.0.0.1:2181/kafka")
    config_of(None, settings, {})
    template = options.get(PATH, KAFKA_TEMPLATE)
    if "{group}" in template and group_id is None:
        raise ConfigError("startingOffsets=zookeeper needs kafka.group.id: zookeeper.path has {group}")
    if "{topic}" not in template and len(topics) != 1:
        raise ConfigError("zookeeper.path has no {topic}, so exactly one topic has to be named in subscribe or assign")
    group = group_id or "-"
    layout = OffsetLayout(
        template,
        options.get(JSON_FIELD.lower()),
        last_read,
        None if "{group}" in template else group,
        None if "{topic}" in template else next(iter(topics)),
    )
    return ZooKeeperStart(settings, layout, group)


def offsets_in_zookeeper(
    start: ZooKeeperStart, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Reads the offsets of partitions; those without a znode are left out.

    Raises ConfigError for a znode without a valid offset, and ZooKeeperErrors of the session."""
    # Imported here, because workers need only the options of this module.
    from odradek.zookeeper.connection import ZooKeeperConnection
    from odradek.zookeeper.store import OffsetStore

    with ZooKeeperConnection(config_of(None, start.settings)) as connection:
        connection.sync()
        found = OffsetStore(connection, start.layout).read_partitions(start.group, list(partitions))
    if found.invalid:
        shown = "; ".join(f"{one.path}: {one.reason}" for one in found.invalid[:_SHOWN])
        more = f"; and {len(found.invalid) - _SHOWN} more" if len(found.invalid) > _SHOWN else ""
        raise ConfigError(f"startingOffsets=zookeeper: {shown}{more}")
    return {tp: OffsetAndMetadata(offset) for tp, offset in found.next_offsets().items()}
