"""Errors of a connection to a broker, whichever side opened it."""

from __future__ import annotations

from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.request_limits import TooManyElements


class _Passing(OdradekError):
    @property
    def retriable(self) -> bool:
        return True


class BrokerUnreachable(_Passing):
    """No connection to a broker; the message names each address tried and why it failed."""


class ConnectionLost(_Passing):
    """The connection ended, or a request timed out on it, before the reply came. The request may have been done."""


class ReplyTooLarge(OdradekError):
    """A broker announced a reply of more bytes than ``receive_message_max_bytes`` lets through, or sent one of more
    elements than are read. The same request would bring the same reply, so it is not made again by itself."""


class UnsupportedVersion(KafkaError):
    """The broker has no version of a request in common with us."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unsupported_version, message)


def unreadable(address: object, error: ValueError) -> ConnectionLost | ReplyTooLarge:
    """For a reply that could not be read: broken ones may come whole when they are asked for again."""
    kind = ReplyTooLarge if TooManyElements in (type(error), type(error.__cause__)) else ConnectionLost
    return kind(f"{address} sent a reply that cannot be read: {error}")
