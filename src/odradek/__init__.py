"""Odradek: Kafka's consumer-offset system in Python."""

import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036  pip refuses an older Python; a copied folder does not
    raise ImportError(f"odradek needs Python 3.11 or newer, not {sys.version_info[0]}.{sys.version_info[1]}")

from odradek._version import __version__
from odradek.core.lazy_import import loader, register_part

if TYPE_CHECKING:
    from odradek import aio as aio
    from odradek import client as client
    from odradek import history as history
    from odradek import lag as lag
    from odradek import pipelines as pipelines
    from odradek import spark as spark
    from odradek import testing as testing
    from odradek.client.admin import Admin
    from odradek.client.admin.topic_table import read_table
    from odradek.client.consumer import Consumer
    from odradek.client.producer import Producer
    from odradek.core.ids import OffsetAndMetadata, TopicPartition
    from odradek.testing.broker import Broker
    from odradek.testing.cluster import Cluster
    from odradek.testing.schema_registry import SchemaRegistry
    from odradek.testing.zookeeper import ZooKeeper

__all__ = [
    "Admin",
    "Broker",
    "Cluster",
    "Consumer",
    "OffsetAndMetadata",
    "Producer",
    "SchemaRegistry",
    "TopicPartition",
    "ZooKeeper",
    "__version__",
    "read_table",
]

# Each module is imported at the first access to one of its names, so that ``import odradek`` is fast.
_HOMES = {
    "Admin": "odradek.client.admin",
    "Broker": "odradek.testing.broker",
    "Cluster": "odradek.testing.cluster",
    "Consumer": "odradek.client.consumer",
    "OffsetAndMetadata": "odradek.core.ids",
    "Producer": "odradek.client.producer",
    "SchemaRegistry": "odradek.testing.schema_registry",
    "TopicPartition": "odradek.core.ids",
    "read_table": "odradek.client.admin.topic_table",
    "ZooKeeper": "odradek.testing.zookeeper",
}
# Pages and programs name parts of them as ``odradek.lag.describe``; an import of ``odradek`` alone loads none of them.
_PACKAGES = ("aio", "client", "history", "lag", "pipelines", "spark", "testing")
__getattr__ = loader(__name__, _HOMES, packages=_PACKAGES, missing="odradek.client.other_names:missing_text")
register_part("offset store", "odradek.zookeeper.consumer_offsets:offsets_opener")
