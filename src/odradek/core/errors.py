"""Errors with Kafka's names. ``ErrorCode`` is kio's enum of Kafka's error codes (``ErrorCode.offset_out_of_range``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

__all__ = ["ConfigError", "CorruptRecord", "ErrorCode", "KafkaError", "OdradekError", "StorageError"]


def __getattr__(name: str) -> object:
    # kio is imported at the first use: it is slow to load, and a command that starts a broker needs only the classes.
    if name == "ErrorCode":
        from odradek.core.kio_import import ErrorCode

        globals()[name] = ErrorCode
        return ErrorCode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Names instead of codes, because the import of the codes is slow.
_FATAL = frozenset({
    "fenced_instance_id", "unreleased_instance_id", "unsupported_assignor", "producer_fenced",
    "transaction_coordinator_fenced", "transactional_id_authorization_failed", "sasl_authentication_failed",
    "unsupported_sasl_mechanism", "illegal_sasl_state", "security_disabled",
})  # fmt: skip


class OdradekError(Exception):
    """The base class of all errors that Odradek raises on purpose."""

    @property
    def retriable(self) -> bool:
        """Whether a later retry of the same call may succeed."""
        return False

    @property
    def fatal(self) -> bool:
        """Whether the client cannot continue: close it and remove the cause."""
        return False


class ConfigError(OdradekError):
    """A setting that is unknown, invalid or contradicts another one. The message names it and the remedy."""


class StorageError(OdradekError):
    """A failed disk operation or an invalid file. The message names the file."""


class Refusal(Exception):
    """An exception that is the reply to a request. It may be stored, and its traceback is never logged."""

    def kept(self) -> Self:
        """Returns this exception without its traceback, for storage.

        A Python stack frame that stores an exception it caught forms a cycle with the exception's traceback. Then all
        objects of the stack frame, e.g. a request of megabytes, stay until the next full garbage collection.
        """
        return self.with_traceback(None)


class KafkaError(OdradekError, Refusal):
    """An error with a code of Kafka's protocol: ``code``."""

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
        # By default an exception is pickled with its text as the argument, which these constructors do not accept.
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[KafkaError], args: tuple[object, ...], state: dict[str, object]) -> KafkaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class CorruptRecord(KafkaError):
    """Bytes that are not a valid record batch.

    ``offset`` and ``next_offset``: the first offset of the batch, and the offset after it; None if they are not known.
    A client also says ``partition``, the topic and the number of the partition.
    """

    offset: int | None = None
    next_offset: int | None = None
    partition: tuple[str, int] | None = None

    def __init__(self, message: str) -> None:
        from odradek.core.kio_import import ErrorCode

        super().__init__(ErrorCode.corrupt_message, message)
