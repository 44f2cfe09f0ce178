"""The error of a request whose change was committed while the disk had no room for all of its logs."""

from __future__ import annotations

from odradek.core.errors import ErrorCode, KafkaError


def missing_log(failure: str, created: str) -> KafkaError | None:
    """Returns the error if a log could not be made. ``created``: subject and verb of the message."""
    if not failure:
        return None
    return KafkaError(
        ErrorCode.kafka_storage_error,
        f"{created} created, but a log could not be written: {failure}. The broker makes it when writes succeed.",
    )
