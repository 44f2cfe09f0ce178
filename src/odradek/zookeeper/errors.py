"""Errors of ZooKeeper, each with one line that names the path or the address and the remedy."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition


class ZooKeeperError(OdradekError):
    """ZooKeeper refused a request; the message has the path and the reason."""


class ZooKeeperUnreachable(ZooKeeperError):
    """No node answers in time, or the answer to a request was lost."""

    @property
    def retriable(self) -> bool:
        return True


class SessionExpired(ZooKeeperUnreachable):
    """The session ended while the connection was lost: its ephemeral nodes are gone."""


class NoPermission(ZooKeeperError):
    """The access list of a path does not allow the request to this login."""


class ZnodeChanged(ZooKeeperError):
    """Another writer changed a path between our read and our write; nothing was written."""


class TransactionTooLarge(ZooKeeperError):
    """A transaction is larger than ZooKeeper's limit for a request (``jute.maxbuffer``, 1 MB)."""


class OffsetsChanged(ZooKeeperError):
    """A consumer's commit changed nothing: another writer has changed offsets, or its session has expired.

    ``partitions``: those that the consumer may no longer commit."""

    def __init__(self, partitions: Iterable[TopicPartition], why: str) -> None:
        self.partitions = frozenset(partitions)
        super().__init__(why)


class InvalidOffset(ZooKeeperError):
    """The znode at the path of an offset does not contain a valid offset; the message has the path and the reason."""
