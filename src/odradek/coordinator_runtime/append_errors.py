"""The errors of requests whose records could not be appended."""

from __future__ import annotations

import logging

from odradek.core.errors import ErrorCode, KafkaError, StorageError

log = logging.getLogger("odradek.broker")

_APPEND_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
}


def append_error(error: KafkaError | StorageError) -> ErrorCode:
    """Returns the error of a request whose records could not be appended, as in Kafka's coordinators."""
    code = error.code if isinstance(error, KafkaError) else ErrorCode.kafka_storage_error
    return _APPEND_ERRORS.get(code, code)


def error_code(error: Exception) -> ErrorCode:
    """Returns the error of a request that failed with this exception."""
    return append_error(error) if isinstance(error, KafkaError | StorageError) else ErrorCode.unknown_server_error


def is_storage_error(error: Exception) -> bool:
    """Returns whether the log could not be written. The log has logged this once, for all its failed writes."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.kafka_storage_error


def log_failed_append(name: str, error: Exception, *, is_refused: bool = False) -> None:
    if is_storage_error(error):
        log.debug("%s: an append failed: %s", name, error)
    elif is_refused:
        log.info("%s: the log refuses a write: %s", name, error)
    else:
        expected = isinstance(error, KafkaError | StorageError)
        log.warning("%s: an append failed: %s", name, error, exc_info=None if expected else error)
