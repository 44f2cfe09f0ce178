"""DeleteRecords 0–2: raises the log start offset of partitions; −1 means to the high watermark (behaviour 53).

* 2: flexible.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.long_lists import dict_in_steps
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 2)


def handle(broker: BrokerServices, context: Context, message: DeleteRecordsRequest) -> Steps[list[Chunk]]:
    context.must_finish = True
    # An array has the index and the offset of each partition. A dictionary for each topic takes three times as much.
    by_topic: defaultdict[str, array[int]] = defaultdict(partial(array, "q"))
    for topic in message.topics:
        numbers = by_topic[topic.name]
        for part in topic.partitions:
            numbers.extend((part.partition_index, part.offset))
            yield None
    topics = elements(context, "topics")
    try:
        for name, numbers in by_topic.items():
            # Of several entries for one partition the last counts, as in Kafka.
            offsets = yield from dict_in_steps(zip(numbers[::2], numbers[1::2], strict=True))
            partitions = elements(context, "topics", "partitions")
            allowed = is_allowed(broker, context, Operation.DELETE, Resource.TOPIC, name)
            for index, offset in offsets.items():
                partitions.add(_delete(broker, name, index, offset) if allowed else _denied(index))
                yield None
            topics.add({"name": name, "partitions": partitions})
            yield None
            broker.leftovers.add(offsets)
    finally:  # even if the client disconnects before the end
        broker.checkpoint_log_starts()
        broker.leftovers.add(by_topic)
    return reply(context, {"topics": topics})


def _denied(index: int) -> dict[str, object]:
    return {"partition_index": index, "low_watermark": -1, "error_code": ErrorCode.topic_authorization_failed}


def _delete(broker: BrokerServices, topic: str, index: int, offset: int) -> dict[str, object]:
    code, low_watermark = ErrorCode.none, -1
    partition = broker.partition(topic, index)
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.invalid_topic_exception)
        if partition is None:
            raise KafkaError(broker.missing_partition(topic, index))
        if "delete" not in partition.log.config.cleanup_policy and partition.log.config.is_compacted:
            raise KafkaError(ErrorCode.policy_violation)
        low_watermark = partition.log.delete_before(offset)
        partition.wake_fetches()
    except KafkaError as error:
        code = error.code
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": code}
