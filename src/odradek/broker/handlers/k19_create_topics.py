"""CreateTopics 2–7: creates topics with settings and optional manual replica assignments.

* 4: −1 means the broker's default number of partitions or replicas.
* 5: flexible; settings, partition count and replication factor of each topic in the reply.
* 6: the error THROTTLING_QUOTA_EXCEEDED.
* 7: topic ids.

The reply follows when the topics exist. If the whole request is refused, each of its topics gets the error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from odradek.broker.controller.write_events import TopicSpec
from odradek.broker.handlers.authorization import is_allowed, is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply, rows_of_topics, shared_elements
from odradek.broker.handlers.missing_logs import missing_log
from odradek.broker.limits.quotas import Permits
from odradek.broker.loop.long_lists import dict_in_steps
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import ChangeTooLarge
from odradek.broker.settings.description import describe_topic
from odradek.catalog.state import CreateTopic, check_partition_count
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ConfigError, ErrorCode, KafkaError
from odradek.core.ids import METADATA_TOPIC

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (2, 7)
LISTENERS = ("client", "controller")
STEP_TOPICS = 500
"""The number of topics whose partitions are counted in one step, and of assignments that are read in one step."""


def handle(broker: BrokerServices, context: Context, message: CreateTopicsRequest) -> Steps[list[Chunk]]:
    def make(times: Mapping[str, int]) -> Steps[Elements]:
        return _create_all(broker, context, message, times)

    rows = yield from rows_of_topics(context, "topics", message.topics, make, _failed)
    return reply(context, {"topics": rows})


def _create_all(
    broker: BrokerServices, context: Context, message: CreateTopicsRequest, times: Mapping[str, int]
) -> Steps[Elements]:
    """Returns a row for each topic whose name is in the request exactly once.

    Raises KafkaError if the whole request is refused."""
    denied: set[str] = set()
    if broker.authorizer is not None and not is_allowed_for_cluster(
        broker, context, Operation.CREATE, logs_denial=False
    ):
        for name, count in times.items():
            is_asked = count == 1 and name != METADATA_TOPIC
            if is_asked and not is_allowed(broker, context, Operation.CREATE, Resource.TOPIC, name):
                denied.add(name)
            yield None
    describable = None if broker.authorizer is None else (yield from _describable(broker, context, times))
    partitions = 0
    for number, topic in enumerate(message.topics):
        if times[topic.name] == 1 and topic.name != METADATA_TOPIC and topic.name not in denied:
            partitions += _partition_count(broker, topic)
        if not number % STEP_TOPICS:
            yield None
    check_partition_count(partitions)
    outcomes: list[CreateTopic | list[bytes]] = []
    try:
        return (yield from _create(broker, context, message, times, outcomes, denied=denied, describable=describable))
    finally:
        broker.leftovers.add(outcomes, denied)


def _create(
    broker: BrokerServices,
    context: Context,
    message: CreateTopicsRequest,
    times: Mapping[str, int],
    outcomes: list[CreateTopic | list[bytes]],
    *,
    denied: Collection[str],
    describable: Collection[str] | None,
) -> Steps[Elements]:
    """Creates the topics. ``outcomes`` gets each accepted topic and the packed row of each refused one.
    ``denied``: the topics that the client may not create; ``describable``: those whose settings it may read; None: all.

    They stay in the list when the whole request is refused."""
    rows = elements(context, "topics")
    permits = Permits(broker.quotas, context, strict=context.version >= 6)

    def create(change: Change) -> Steps[None]:
        for topic in message.topics:
            if times[topic.name] > 1:
                yield None
                continue
            try:
                if topic.name in denied:
                    raise KafkaError(ErrorCode.topic_authorization_failed, "Authorization failed.")
                request = yield from _add(broker, permits, change, topic)
            except ChangeTooLarge:
                raise
            except KafkaError as error:
                outcomes.append(rows.packed(_failed(topic.name, error)))
            except ConfigError as error:
                refused = KafkaError(ErrorCode.invalid_config, str(error))
                outcomes.append(rows.packed(_failed(topic.name, refused)))
            else:
                outcomes.append(request)
            yield None

    yield from value_of(broker.controller.write(create, context, validate_only=message.validate_only))
    described: dict[frozenset[tuple[str, str]], Elements | tuple[()]] = {}
    for outcome in outcomes:
        if isinstance(outcome, list):
            rows.repeat(outcome)
            yield None
            continue
        name = outcome.name
        failure = broker.log_failure(name, len(outcome.assignments) or outcome.partition_count)
        if error := missing_log(failure, "The topic was"):
            rows.add(_failed(name, error))
        else:
            is_shown = describable is None or name in describable
            rows.add(_created(broker, context, outcome, described, is_shown=is_shown))
        yield None
    return rows


def _describable(broker: BrokerServices, context: Context, times: Mapping[str, int]) -> Steps[set[str]]:
    """Returns the topics whose settings the client may read. As in Kafka, refused topics are asked about, too."""
    names = set()
    for name, count in times.items():
        is_asked = count == 1 and name != METADATA_TOPIC
        if is_asked and is_allowed(
            broker, context, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name, logs_denial=False
        ):
            names.add(name)
        yield None
    return names


def _partition_count(broker: BrokerServices, topic: CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return broker.config.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)


def _add(broker: BrokerServices, permits: Permits, change: Change, topic: CreatableTopic) -> Steps[CreateTopic]:
    """Adds a topic to the change. Raises KafkaError or ConfigError."""
    configs = yield from dict_in_steps((config.name, config.value) for config in topic.configs)
    try:
        assignments = yield from _assignments(topic)
        permits.take(_partition_count(broker, topic))
        wanted = TopicSpec(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)
        request = broker.controller.new_topic(wanted)
        yield from change.add(request)
    finally:
        broker.leftovers.add(configs)
    return request


def _created(
    broker: BrokerServices,
    context: Context,
    request: CreateTopic,
    described: dict[frozenset[tuple[str, str]], Elements | tuple[()]],
    *,
    is_shown: bool,
) -> dict[str, object]:
    """Returns the row of a created topic. ``described`` caches the packed settings of topics with equal settings.

    ``is_shown``: whether the client may read them."""
    head = {"name": request.name, "topic_id": request.topic_id, "error_code": ErrorCode.none, "error_message": None}
    if not is_shown:
        return head | _UNDESCRIBED
    own = frozenset(request.configs.items())
    if own not in described:
        described[own] = _described(broker, context, request.configs)
    assignments = request.assignments
    return head | {
        "num_partitions": len(assignments) or request.partition_count,
        "replication_factor": len(assignments[0]) if assignments else request.replication_factor,
        "configs": described[own],
    }


_UNDESCRIBED = {
    "num_partitions": -1,
    "replication_factor": -1,
    "configs": (),
    "topic_config_error_code": ErrorCode.topic_authorization_failed,
}
"""The settings in the row of a topic whose settings the client may not read."""


def _described(broker: BrokerServices, context: Context, own: Mapping[str, str]) -> Elements | tuple[()]:
    if context.version < 5:
        return ()
    rows = shared_elements(context, "topics", "configs")
    for row in sorted(describe_topic(broker.config, own), key=lambda row: row.key.name):
        rows.add(
            {
                "name": row.key.name,
                "value": row.value,
                "read_only": row.read_only,
                "config_source": row.source,
                "is_sensitive": row.key.sensitive,
            }
        )
    return rows


def _assignments(topic: CreatableTopic) -> Steps[dict[int, tuple[int, ...]]]:
    """Returns the manual assignments by partition.

    Raises KafkaError if the request also has counts, or if a partition has two assignments.
    """
    if not topic.assignments:
        return {}
    manual = "A manual partition assignment was specified, but"
    if topic.replication_factor != -1:
        raise KafkaError(ErrorCode.invalid_request, f"{manual} replication factor was not set to -1.")
    if topic.num_partitions != -1:
        raise KafkaError(ErrorCode.invalid_request, f"{manual} numPartitions was not set to -1.")
    assigned: dict[int, tuple[int, ...]] = {}
    for number, row in enumerate(topic.assignments, 1):
        if not number % STEP_TOPICS:
            yield None
        if row.partition_index in assigned:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {row.partition_index}",
            )
        assigned[row.partition_index] = tuple(row.broker_ids)
    return assigned


def _failed(name: str, error: KafkaError) -> dict[str, object]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message or None,
        "configs": [],
    }
