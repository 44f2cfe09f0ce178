"""DescribeProducers 0: returns the states of the idempotent and transactional producers of partitions.

As in Kafka, each replica answers for its own log: ``describe-producers --broker-id`` asks a follower.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check
from odradek.broker.handlers.long_replies import Known, each_once, elements, reply
from odradek.catalog.state import check_topic_name
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.producers.states import ProducerState

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)


def handle(broker: BrokerServices, context: Context, message: DescribeProducersRequest) -> Steps[list[Chunk]]:
    topics = elements(context, "topics")
    known: Known = {}
    faults: dict[str, KafkaError | None] = {}
    for topic in message.topics:
        partitions = elements(context, "topics", "partitions")
        faults[topic.name] = _fault(broker, context, topic.name)
        asked = zip(repeat(topic.name), topic.partition_indexes)

        def describe(one: tuple[str, int]) -> Steps[dict[str, object]]:
            return _describe(broker, context, *one, faults[one[0]])

        yield from each_once(partitions, asked, lambda one: one, describe, known)
        topics.add({"name": topic.name, "partitions": partitions})
        yield None
    broker.leftovers.add(known)
    return reply(context, {"topics": topics})


def _fault(broker: BrokerServices, context: Context, name: str) -> KafkaError | None:
    """Returns the error of all partitions of a topic."""
    try:
        check_topic_name(name)
        check(broker, context, Operation.READ, Resource.TOPIC, name)
    except KafkaError as error:
        return error
    return None


def _describe(
    broker: BrokerServices, context: Context, name: str, index: int, fault: KafkaError | None
) -> Steps[dict[str, object]]:
    code, text = ErrorCode.none, None
    producers = elements(context, "topics", "partitions", "active_producers")
    try:
        if fault is not None:
            raise fault
        states = yield from _states(broker, name, index)
        for state in states:
            producers.add(
                {
                    "producer_id": state.producer_id,
                    "producer_epoch": state.epoch,
                    "last_sequence": state.last_sequence,
                    "last_timestamp": state.last_timestamp,
                    "coordinator_epoch": state.coordinator_epoch,
                    "current_txn_start_offset": state.transaction_start,
                }
            )
            yield None
    except KafkaError as error:
        code, text = error.code, error.message or None
    return {"partition_index": index, "error_code": code, "error_message": text, "active_producers": producers}


def _states(broker: BrokerServices, name: str, index: int) -> Steps[list[ProducerState]]:
    """Returns the states, after a rebuild that a truncation has begun. Raises KafkaError."""
    if broker.catalog.topic(name) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    partition = broker.partitions.get((name, index))
    if partition is None:
        raise KafkaError(broker.missing_partition(name, index))
    partition.check_online()
    for _ in partition.log.producer_snapshots.rest_of_rebuild():
        yield None
    return list(partition.log.producers)
