"""Errors with Kafka's names. ``ErrorCode`` is kio's enum of the wire's codes (``ErrorCode.offset_out_of_range``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

__all__ = ["ConfigError", "CorruptRecord", "ErrorCode", "KafkaError", "OdradekError", "StorageError"]


def __getattr__(name: str) -> Any:
    # Loading kio takes longer than starting a broker's process, which needs no more than the classes below.
    if name == "ErrorCode":
        from odradek.core.kio_import import ErrorCode

        globals()[name] = ErrorCode
        return ErrorCode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# By name, since loading the codes themselves takes a while.
_FATAL = frozenset({
    "fenced_instance_id", "unreleased_instance_id", "unsupported_assignor", "producer_fenced",
    "transaction_coordinator_fenced", "transactional_id_authorization_failed", "sasl_authentication_failed",
    "unsupported_sasl_mechanism", "illegal_sasl_state", "security_disabled",
})  # fmt: skip


class OdradekError(Exception):
    """Root of everything odradek raises on purpose."""

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed when it is made again later."""
        return False

    @property
    def fatal(self) -> bool:
        """Whether the client that raised it is of no use any more: close it, and see to the cause first."""
        return False


class ConfigError(OdradekError):
    """A setting that is unknown, ill-valued or contradicts another; the message names it and the remedy."""


class StorageError(OdradekError):
    """The disk refused, or holds what cannot be read; the message names the file."""


class Refusal(Exception):
    """An exception that is the answer to a request: it may be kept, and nothing logs its frames."""

    def kept(self) -> Self:
        """This exception without its traceback, to be kept as an answer.

        A frame that keeps an exception which it caught is held by its traceback: a cycle, which holds all that the
        frame holds, such as a request of megabytes, until the next full garbage collection.
        """
        return self.with_traceback(None)


class KafkaError(OdradekError, Refusal):
    """An error that has a code on the wire: ``code``."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code.name.upper()}: {message}" if message else code.name.upper())

    @property
    def retriable(self) -> bool:
        return bool(self.code.retriable)

    @property
    def fatal(self) -> bool:
        return self.code.name in _FATAL

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are otherwise pickled as their text, which is not what the constructors here take.
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[KafkaError], args: tuple[object, ...], state: dict[str, object]) -> KafkaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class CorruptRecord(KafkaError):
    """Bytes that are no valid record batch."""

    def __init__(self, message: str) -> None:
        from odradek.core.kio_import import ErrorCode

        super().__init__(ErrorCode.corrupt_message, message)
