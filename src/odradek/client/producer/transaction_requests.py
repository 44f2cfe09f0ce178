"""The requests of transactions and the error codes in their replies. No clock, no socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.core.errors import ErrorCode
from odradek.core.ids import ConsumerGroupMetadata, OffsetAndMetadata, ProducerIdentity, TopicPartition
from odradek.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)

if TYPE_CHECKING:
    from odradek.wire.api_keys import ApiKey

# Later versions of AddPartitionsToTxn have several transactions in a request; only brokers send them.
ADD_PARTITIONS_CEILING = 3
# Version 6 of InitProducerId is for two-phase commits (KIP-939).
INIT_CEILING = 5


class TransactionRequest(NamedTuple):
    """A request of a transaction. ``text`` is the beginning of error messages. ``group_id``: the request goes to this
    group's coordinator."""

    api_key: ApiKey[object]
    message: Mapping[str, object]
    ceiling: int
    text: str
    group_id: str | None = None


def init(transactional_id: str, timeout_ms: int, producer: ProducerIdentity) -> TransactionRequest:
    message = {
        "transactional_id": transactional_id, "transaction_timeout": timeout_ms,
        "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch,
    }  # fmt: skip
    return TransactionRequest(INIT_PRODUCER_ID, message, INIT_CEILING, "init_transactions()")


def add_partitions(
    transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> TransactionRequest:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    message = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": producer.producer_epoch,
        "v3_and_below_topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
    }
    return TransactionRequest(ADD_PARTITIONS_TO_TXN, message, ADD_PARTITIONS_CEILING, "adding partitions")


def add_offsets(transactional_id: str, producer: ProducerIdentity, group_id: str) -> TransactionRequest:
    message = {
        "transactional_id": transactional_id, "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch, "group_id": group_id,
    }  # fmt: skip
    return TransactionRequest(ADD_OFFSETS_TO_TXN, message, 4, f"adding the offsets of group {group_id}")


def commit_offsets(
    transactional_id: str,
    producer: ProducerIdentity,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    by_itself: bool,
) -> TransactionRequest:
    topics: dict[str, list[dict[str, object]]] = {}
    for (topic, partition), commit in offsets.items():
        topics.setdefault(topic, []).append({
            "partition_index": partition, "committed_offset": commit.offset,
            "committed_leader_epoch": commit.leader_epoch, "committed_metadata": commit.metadata,
        })  # fmt: skip
    message = {
        "transactional_id": transactional_id, "group_id": group.group_id, "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch, "generation_id": group.generation, "member_id": group.member_id,
        "group_instance_id": group.instance_id,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }  # fmt: skip
    text = f"offsets of group {group.group_id}"
    return TransactionRequest(TXN_OFFSET_COMMIT, message, 5 if by_itself else 4, text, group.group_id)


def end(transactional_id: str, producer: ProducerIdentity, *, commit: bool, returns_epoch: bool) -> TransactionRequest:
    message = {
        "transactional_id": transactional_id, "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch, "committed": commit,
    }  # fmt: skip
    text = "commit_transaction()" if commit else "abort_transaction()"
    return TransactionRequest(END_TXN, message, 5 if returns_epoch else 4, text)


class PartitionError(NamedTuple):
    """An error code, and the partition that it is for."""

    code: ErrorCode
    partition: str = ""


def refusals(api_key: int, reply: Any) -> Sequence[PartitionError]:
    """Returns the error codes in a reply; empty after a success."""
    if api_key == ADD_PARTITIONS_TO_TXN:
        rows = [
            PartitionError(row.partition_error_code, f"{topic.name}-{row.partition_index}")
            for topic in reply.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        ]
    elif api_key == TXN_OFFSET_COMMIT:
        rows = [
            PartitionError(row.error_code, f"{topic.name}-{row.partition_index}")
            for topic in reply.topics
            for row in topic.partitions
        ]
    else:
        rows = [PartitionError(reply.error_code)]
    return [row for row in rows if row.code is not ErrorCode.none]


_WHY = {
    ErrorCode.unknown_member_id: "the group has removed the consumer",
    ErrorCode.illegal_generation: "the group has rebalanced since group_metadata()",
    ErrorCode.stale_member_epoch: "the group has rebalanced since group_metadata()",
    ErrorCode.fenced_instance_id: "another consumer uses the group_instance_id",
    ErrorCode.invalid_transaction_timeout: "transaction_timeout_ms is above the broker's transaction.max.timeout.ms",
    ErrorCode.operation_not_attempted: "another partition was refused",
    ErrorCode.invalid_txn_state: "the coordinator has no such transaction now; it may have timed out",
    ErrorCode.invalid_producer_id_mapping: "the coordinator has forgotten the transactional id",
    ErrorCode.transaction_abortable: "the broker asks to abort the transaction",
}


def reason(refused: PartitionError) -> str:
    """Returns an error code in words."""
    name = refused.code.name.upper()
    words = f"{name} ({_WHY[refused.code]})" if refused.code in _WHY else name
    return f"{refused.partition}: {words}" if refused.partition else words
