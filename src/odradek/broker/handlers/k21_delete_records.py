"""DeleteRecords 0–2: raises the log start offset of partitions; −1 means to the high watermark (behaviour 53).

* 2: flexible.

A partition with several replicas has its result when all replicas outside of the fence have deleted the records, or
REQUEST_TIMED_OUT after the request's time.
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
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    deletions: Deletions | None = None
    try:
        for name, numbers in by_topic.items():
            # Of several entries for one partition the last counts, as in Kafka.
            offsets = yield from dict_in_steps(zip(numbers[::2], numbers[1::2], strict=True))
            partitions = elements(context, "topics", "partitions")
            allowed = is_allowed(broker, context, Operation.DELETE, Resource.TOPIC, name)
            for index, offset in offsets.items():
                if allowed and deletions is None and _is_replicated(broker, name, index):
                    deletions = Deletions(broker, milliseconds(message.timeout))
                    yield from deletions.begin(context, by_topic)
                if not allowed:
                    partitions.add(_denied(index))
                elif deletions is not None and (name, index) in deletions.rows:
                    partitions.add((yield deletions.rows[name, index]))
                else:
                    partitions.add(_delete(broker, name, index, offset))
                yield None
            topics.add({"name": name, "partitions": partitions})
            yield None
            broker.leftovers.add(offsets)
    finally:  # even if the client disconnects before the end
        broker.checkpoint_log_starts()
        broker.leftovers.add(by_topic)
    return reply(context, {"topics": topics})


class Deletions:
    """The deletions of a request in partitions with several replicas. ``rows``: the promises of the reply's rows, by
    topic and index. The deletions begin together, so that no partition waits for the replicas of another one."""

    def __init__(self, broker: BrokerServices, timeout_ms: int) -> None:
        self.rows: dict[tuple[str, int], Deferred[dict[str, object]]] = {}
        self._broker = broker
        self._timeout_s = max(timeout_ms, 0) / 1000

    def begin(self, context: Context, by_topic: Mapping[str, array[int]]) -> Steps[None]:
        broker = self._broker
        for name, numbers in by_topic.items():
            if not is_allowed(broker, context, Operation.DELETE, Resource.TOPIC, name, logs_denial=False):
                continue
            offsets = yield from dict_in_steps(zip(numbers[::2], numbers[1::2], strict=True))
            for index, offset in offsets.items():
                if _is_replicated(broker, name, index):
                    self.rows[name, index] = self._delete(name, index, offset)
                yield None
            broker.leftovers.add(offsets)

    def _delete(self, name: str, index: int, offset: int) -> Deferred[dict[str, object]]:
        row = _delete(self._broker, name, index, offset)
        partition = self._broker.partition(name, index)
        promise: Deferred[dict[str, object]] = Deferred()
        if row["error_code"] or partition is None:
            promise.resolve(row)
            return promise
        wanted = partition.log_start_offset if offset < 0 else offset

        def end(result: int | ErrorCode) -> None:
            if promise.resolved:
                return
            timer.cancel()
            if isinstance(result, ErrorCode):
                promise.resolve({"partition_index": index, "low_watermark": -1, "error_code": result})
            else:
                promise.resolve({"partition_index": index, "low_watermark": result, "error_code": ErrorCode.none})

        def give_up() -> None:
            forget()
            if not promise.resolved:
                promise.resolve(row | {"low_watermark": low, "error_code": ErrorCode.request_timed_out})

        low = partition.low_watermark
        timer = self._broker.purgatory.loop.call_later(self._timeout_s, give_up)
        forget = partition.wait_for_deletion(wanted, end)
        return promise


def _is_replicated(broker: BrokerServices, topic: str, index: int) -> bool:
    partition = broker.partition(topic, index)
    return partition is not None and partition.is_replicated


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
        low_watermark = partition.log.removals.delete_before(offset)
        partition.wake_fetches()
    except KafkaError as error:
        code = error.code
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": code}
