"""TxnOffsetCommit 0–5: commits offsets of a group in a producer's transaction.

* 2: leader epochs.
* 3: flexible; the consumer's member id, generation and instance.
* 4: the error TRANSACTION_ABORTABLE.
* 5: the broker adds the group's partition of ``__consumer_offsets`` to the transaction.

The offsets become visible when the transaction is committed.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, cast

from odradek.broker.handlers.authorization import DENIED, is_allowed
from odradek.broker.handlers.long_replies import reply, rows_of_partitions
from odradek.broker.partitions.transaction_verification import PartitionVerification
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_SEQUENCE, OFFSETS_TOPIC, ProducerIdentity
from odradek.groups.messages import OffsetCommit, OffsetCommitReply, PartitionCommit, TopicCommit, TxnOffsetCommit

if TYPE_CHECKING:
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 5)
ADDS_PARTITIONS = 5
ABORTABLE = 4
_Rows = dict[str, dict[int, ErrorCode]]


def handle(broker: BrokerServices, context: Context, message: TxnOffsetCommitRequest) -> Steps[list[Chunk]]:
    topics: list[TopicCommit] = []
    rows: _Rows = {}
    refused: dict[str, ErrorCode] = {}
    whole = _denial(broker, context, message)
    missing: defaultdict[str, array[int]] = defaultdict(
        partial(array, "i")
    )  # a dictionary for each takes three times as much
    is_submitted = False
    try:
        for topic in message.topics:
            known = broker.catalog.topic(topic.name)
            code = whole
            if code is None and not is_allowed(broker, context, Operation.READ, Resource.TOPIC, topic.name):
                code = ErrorCode.topic_authorization_failed
            if code is not None:
                known, refused[topic.name] = None, code
            commits: list[PartitionCommit] = []
            for part in topic.partitions:
                if known is not None and 0 <= part.partition_index < known.partition_count:
                    commits.append(_commit(part, context.version))
                else:
                    missing[topic.name].append(part.partition_index)
                yield None
            if known is not None and commits:
                topics.append(TopicCommit(topic.name, known.id.bytes, commits))
        if topics:
            is_submitted = True
            commit_reply = yield from _submit(broker, context.version, message, topics)
            is_submitted = False
            yield from _add_errors(rows, topics, commit_reply, context.version)
        packed = yield from rows_of_partitions(
            context,
            "topics",
            _asked(broker, missing, rows, refused),
            lambda name, row: {"partition_index": row[0], "error_code": row[1]},
        )
    finally:  # the client may disconnect meanwhile
        broker.leftovers.add(rows, missing, refused, *([] if is_submitted else [topics]))
    return reply(context, {"topics": packed})


def _denial(broker: BrokerServices, context: Context, message: TxnOffsetCommitRequest) -> ErrorCode | None:
    """Returns the code if the client may not use the transactional id or the group."""
    for operation, resource_type, name in (
        (Operation.WRITE, Resource.TRANSACTIONAL_ID, message.transactional_id),
        (Operation.READ, Resource.GROUP, message.group_id),
    ):
        if not is_allowed(broker, context, operation, resource_type, name):
            return DENIED[resource_type]
    return None


def _asked(
    broker: BrokerServices, missing: Mapping[str, array[int]], rows: _Rows, refused: Mapping[str, ErrorCode]
) -> Iterator[tuple[str, Iterable[tuple[int, ErrorCode]]]]:
    """Yields the partitions of each topic: those that are refused or do not exist come first, once, as in Kafka."""
    for name, indexes in missing.items():
        code = refused.get(name, ErrorCode.unknown_topic_or_partition)
        yield name, chain(_each_once(broker, indexes, code), rows.get(name, {}).items())
    for name, errors in rows.items():
        if name not in missing:
            yield name, errors.items()


def _each_once(broker: BrokerServices, indexes: array[int], code: ErrorCode) -> Iterator[tuple[int, ErrorCode]]:
    seen: set[int] = set()
    for index in indexes:
        if index not in seen:
            seen.add(index)
            yield index, code
    broker.leftovers.add(seen)


def _commit(part: TxnOffsetCommitRequestPartition, version: int) -> PartitionCommit:
    epoch = part.committed_leader_epoch if version >= 2 else -1
    return (part.partition_index, part.committed_offset, epoch, part.committed_metadata)


def _submit(
    broker: BrokerServices, version: int, message: TxnOffsetCommitRequest, topics: list[TopicCommit]
) -> Steps[OffsetCommitReply]:
    """Verifies the transaction and commits the offsets."""
    if not message.group_id:
        return OffsetCommitReply(ErrorCode.invalid_group_id)
    producer = ProducerIdentity(message.producer_id, message.producer_epoch)
    has_member = version >= 3
    commit = OffsetCommit(
        message.group_id,
        topics,
        message.member_id if has_member else "",
        message.generation_id if has_member else -1,
        message.group_instance_id if has_member else None,
    )
    request = TxnOffsetCommit(producer, commit)
    index = broker.groups.partition_of(message.group_id)
    partition = broker.partition(OFFSETS_TOPIC, index)
    if partition is None:
        return request.error_reply(ErrorCode.not_coordinator)
    verification = PartitionVerification(
        broker, message.transactional_id, adds=version >= ADDS_PARTITIONS,
        knows_transaction_abortable=version >= ABORTABLE,
    )  # fmt: skip
    try:
        guard, pending = verification.begin(partition, producer, NO_SEQUENCE)
    except KafkaError as error:
        return OffsetCommitReply(error.code)
    epoch = partition.leader_epoch
    error_code = ErrorCode.none if pending is None else (yield pending)
    if error_code is ErrorCode.network_exception:  # as in Kafka: older clients do not try again after this error
        error_code = ErrorCode.coordinator_load_in_progress
    if error_code is not ErrorCode.none:
        return OffsetCommitReply(error_code)

    def check() -> ErrorCode:
        """Checks the transaction again. If a marker has ended it, the commit must not begin another transaction."""
        try:
            if partition.leader_epoch != epoch:  # an answer of a former term is void
                return ErrorCode.not_coordinator
            if partition.log.config.transaction_partition_verification_enable:
                partition.log.producers.check_verified(*producer, guard)
        except KafkaError as error:
            return error.code
        return ErrorCode.none

    promise = broker.groups.submit_checked(index, request, check)
    try:
        return cast("OffsetCommitReply", (yield promise))
    except GeneratorExit:  # the client has disconnected, but the coordinator still uses the topics
        broker.leftovers.add_after(promise, topics)
        raise


def _add_errors(
    rows: _Rows, topics: Iterable[TopicCommit], commit_reply: OffsetCommitReply, version: int
) -> Steps[None]:
    refused = commit_reply.refused or {}
    for topic in topics:
        errors = rows.setdefault(topic.topic, {})
        for index, *_ in topic.partitions:
            error = refused.get((topic.topic, index), commit_reply.error)
            if error is ErrorCode.coordinator_load_in_progress and version < 2:
                error = ErrorCode.coordinator_not_available
            errors[index] = error
            yield None
