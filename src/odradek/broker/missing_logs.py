"""The error of a request whose change was committed while the disk had no room for all of its logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.api import BrokerServices


def missing_log(broker: BrokerServices, topic: str, partition_count: int, created: str) -> KafkaError | None:
    """Returns the error if a log of the topic could not be made. ``created``: subject and verb of the message."""
    failure = broker.log_failure(topic, partition_count)
    if not failure:
        return None
    return KafkaError(
        ErrorCode.kafka_storage_error,
        f"{created} created, but a log could not be written: {failure}. The broker makes it when writes succeed.",
    )
