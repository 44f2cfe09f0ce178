"""Errors of a connection to a broker."""

from __future__ import annotations

from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.request_limits import TooManyElements


class _RetriableError(OdradekError):
    @property
    def retriable(self) -> bool:
        return True


class BrokerUnreachable(_RetriableError):
    """A broker cannot be reached, or no broker at all. The message has each address and why it failed."""


class ConnectionLost(_RetriableError):
    """The connection ended, or a request on it timed out, before the reply. The broker may have run the request."""


class ReplyTooLarge(OdradekError):
    """A reply has more bytes than ``receive_message_max_bytes`` or more elements than the client reads.

    The client does not retry, since the same request would get the same reply."""


class AuthenticationFailed(OdradekError):
    """The broker refused the login or the client's certificate, or the client does not trust the broker's certificate.

    The client does not retry, since the same login would be refused again, and a broker may lock the user out.
    ``code``: the broker's error code, if it sent one."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class UnsupportedVersion(KafkaError):
    """No version of an API is supported by both the broker and this client."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unsupported_version, message)


def unreadable(address: object, error: ValueError) -> ConnectionLost | ReplyTooLarge:
    """Returns the error for a reply that cannot be read: ReplyTooLarge for too many elements, else ConnectionLost.

    After a corrupt reply a retry may succeed, and ConnectionLost is retriable."""
    kind = ReplyTooLarge if TooManyElements in (type(error), type(error.__cause__)) else ConnectionLost
    return kind(f"{address} sent a reply that cannot be read: {error}")
