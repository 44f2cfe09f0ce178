"""The interface of a store of committed offsets outside Kafka.

``odradek/zookeeper`` implements it. ``odradek/__init__`` registers that package, because ``odradek/client`` may
not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, cast

from odradek.client.group.config import ConsumerConfig
from odradek.core.ids import TopicPartition
from odradek.core.lazy_import import part


class StoreSettings(NamedTuple):
    """The group, the addresses (``host:port,…/chroot``), the session timeout in ms, and a properties file with a login
    and TLS."""

    group_id: str
    connect: str
    session_timeout_ms: int
    config: str | None = None


class ConsumerOffsetStore(Protocol):
    """The committed offsets of one consumer's group, and the owners of partitions: only its owner reads a partition.

    A store belongs to an event loop. Its calls raise OffsetStoreUnreachable when the store does not respond, and other
    OdradekErrors with one line that names the path and the remedy."""

    @property
    def is_connected(self) -> bool:
        """Whether the store has a connection now."""

    def owns(self, tp: TopicPartition) -> bool:
        """Whether this consumer owns a partition."""

    async def take_ownership(
        self, partitions: Iterable[TopicPartition], topics: Iterable[str]
    ) -> dict[TopicPartition, str]:
        """Makes this consumer the owner of all partitions, or of none.

        Returns the other owners by partition; empty after a success. ``topics`` is the subscription, for the
        registration of this consumer."""

    async def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Gives partitions up. Without a connection this happens when the connection is back."""

    async def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the committed offsets of those partitions that have one. Later commits expect them unchanged."""

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the committed offsets; later commits do not depend on them."""

    async def commit(self, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Stores all offsets, or none. Without a connection the call waits for one, at most ``timeout_ms``.

        Raises CommitFailed if another writer has changed an offset since the last read or commit, if another consumer
        owns a partition, or if the session that owned the partitions has expired. This consumer then no longer owns
        these partitions."""

    async def close(self) -> None:
        """Gives all partitions up and ends the connection."""


OnLost = Callable[[frozenset[TopicPartition]], None]
"""Called on the loop with the partitions that this consumer no longer owns."""
StoreOpener = Callable[[OnLost], ConsumerOffsetStore]
"""Opens the store on the running loop."""


def store_opener(config: ConsumerConfig) -> StoreOpener | None:
    """Checks the settings of a consumer's store and returns its opener; None if the offsets are in Kafka alone.

    Raises ConfigError for a wrong setting, and if the store needs a package that is not installed."""
    if not config.uses_zookeeper:
        return None
    assert config.group_id is not None
    assert config.zookeeper_connect is not None
    check = cast(Callable[[StoreSettings], StoreOpener], part("offset store"))
    return check(
        StoreSettings(
            config.group_id, config.zookeeper_connect, config.zookeeper_session_timeout_ms, config.zookeeper_config
        )
    )
