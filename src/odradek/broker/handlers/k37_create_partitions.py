"""CreatePartitions 0–3: adds partitions to topics.

* 2: flexible.
* 3: the error THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import elements, reply, rows_of_topics
from odradek.broker.handlers.missing_logs import missing_log
from odradek.broker.limits.quotas import Permits
from odradek.broker.loop.long_lists import list_in_steps
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import ChangeTooLarge
from odradek.catalog.state import CreatePartitions
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (0, 3)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: CreatePartitionsRequest) -> Steps[list[Chunk]]:
    def make(times: Mapping[str, int]) -> Steps[Elements]:
        return _create_all(broker, context, message, times)

    rows = yield from rows_of_topics(context, "results", message.topics, make, _row)
    return reply(context, {"results": rows})


def _create_all(
    broker: BrokerServices, context: Context, message: CreatePartitionsRequest, times: Mapping[str, int]
) -> Steps[Elements]:
    """Returns a row for each topic that the request has once. Raises KafkaError if the whole request is refused."""
    permits = Permits(broker.quotas, context, strict=context.version >= 3)
    rows = elements(context, "results")
    outcomes: list[tuple[str, int] | list[bytes]] = []  # the accepted topics, and the packed rows of refused ones

    def create(change: Change) -> Steps[None]:
        for topic in message.topics:
            if times[topic.name] == 1:
                if is_allowed(broker, context, Operation.ALTER, Resource.TOPIC, topic.name):
                    error = yield from _create(broker, permits, change, topic)
                else:
                    error = KafkaError(ErrorCode.topic_authorization_failed)
                name, count = topic.name, topic.count
                outcomes.append((name, count) if error is None else rows.packed(_row(name, error)))
            yield None

    try:
        yield from value_of(broker.controller.write(create, context, validate_only=message.validate_only))
        for outcome in outcomes:
            if isinstance(outcome, list):
                rows.repeat(outcome)
            else:
                rows.add(_row(outcome[0], missing_log(broker.log_failure(*outcome), "The partitions were")))
            yield None
    finally:
        broker.leftovers.add(outcomes)
    return rows


def _create(
    broker: BrokerServices, permits: Permits, change: Change, topic: CreatePartitionsTopic
) -> Steps[KafkaError | None]:
    """Adds a topic's new partitions to the change. Returns the error if they are refused."""
    assigned = None
    if topic.assignments is not None:
        assigned = yield from list_in_steps(tuple(row.broker_ids) for row in topic.assignments)
    request = CreatePartitions(topic.name, topic.count, None if assigned is None else tuple(assigned))
    known = broker.catalog.topic(topic.name)
    try:
        permits.take(max(topic.count - known.partition_count, 0) if known is not None else 0)
        yield from change.add(request)
    except ChangeTooLarge:
        raise
    except KafkaError as error:
        return error.kept()
    finally:
        if assigned is not None:
            broker.leftovers.add(assigned)
    return None


def _row(name: str, error: KafkaError | None) -> dict[str, object]:
    return {
        "name": name,
        "error_code": error.code if error is not None else ErrorCode.none,
        "error_message": (error.message or None) if error is not None else None,
    }
