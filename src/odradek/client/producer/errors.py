"""Errors of transactions. The type shows the remedy: to abort the transaction, or to close the producer."""

from __future__ import annotations

from odradek.core.errors import ErrorCode, KafkaError


class TransactionAbortable(KafkaError):
    """The transaction cannot commit. Abort it with ``abort_transaction()``; then its work can begin again."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorCode.transaction_abortable, f"{why}: call abort_transaction(), then begin again")


class TransactionFatal(KafkaError):
    """The producer cannot be used any more: close it, remove the cause, and make a new one."""

    @property
    def retriable(self) -> bool:
        return False

    @property
    def fatal(self) -> bool:
        return True


class ProducerFenced(TransactionFatal):
    """Another producer uses the same ``transactional_id``, or the transaction timed out. Close this producer."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(
            ErrorCode.producer_fenced,
            f"transactional id {transactional_id!r} is in use by a newer producer, or the transaction exceeded "
            "transaction_timeout_ms: close this producer",
        )
