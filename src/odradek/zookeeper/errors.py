"""Errors of ZooKeeper. Each message is one line with the path or the address, and with a remedy if there is one."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition


class ZooKeeperError(OdradekError):
    """ZooKeeper refused a request; the message has the path and the reason."""


class ZooKeeperUnreachable(ZooKeeperError):
    """No node of ZooKeeper responds in time, or the reply to a request was lost."""

    @property
    def retriable(self) -> bool:
        return True


class SessionExpired(ZooKeeperUnreachable):
    """The session ended while the connection was lost: the session's ephemeral znodes are gone."""


class NoPermission(ZooKeeperError):
    """ZooKeeper refuses the login, or the access list of a path does not permit the request."""


class ZnodeChanged(ZooKeeperError):
    """Another writer changed a path between our read and our write; nothing was written."""


class TransactionTooLarge(ZooKeeperError):
    """A transaction is larger than ZooKeeper's limit for a request (``jute.maxbuffer``, 1 MB)."""


class OffsetsChanged(ZooKeeperError):
    """A consumer's commit changed nothing.

    Another writer has changed an offset, another consumer owns a partition, or the session has expired.
    ``partitions``: those that the consumer may no longer commit."""

    def __init__(self, partitions: Iterable[TopicPartition], why: str) -> None:
        self.partitions = frozenset(partitions)
        super().__init__(why)


class InvalidOffset(ZooKeeperError):
    """The znode at the path of an offset does not contain a valid offset; the message has the path and the reason."""
