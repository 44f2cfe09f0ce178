"""Errors of ZooKeeper, each with one line that names the path or the address and the remedy."""

from __future__ import annotations

from odradek.core.errors import OdradekError


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
