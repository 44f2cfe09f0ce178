"""Produce 3–13: appends the client's record batches to logs.

* 5: log start offset in the reply.
* 7: zstd.
* 8: record errors and an error message in the reply.
* 9: flexible.
* 10: the new leader in the reply.
* 11: the error TRANSACTION_ABORTABLE.
* 12: the broker adds the partition of a transactional batch to its transaction
  (broker/partitions/transaction_verification).
* 13: topic ids.

Versions 0 to 2 are advertised but not served, as in Kafka 4: old versions of librdkafka look for version 0.

``partitions/produce_appends`` appends the batches. With acks=0 there is no reply. If such a request fails, the broker
closes the connection; the client gets no other sign.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.limits.quotas import PRODUCER_BYTE_RATE
from odradek.broker.limits.reply_memory import Hangup
from odradek.broker.loop.scheduler import finish
from odradek.broker.loop.workers import OUTLIVING_BYTES
from odradek.broker.partitions.produce_appends import STEP_PARTITIONS, ProduceAppends, is_transactional
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS
from odradek.wire.chunks import Chunk
from odradek.wire.produce_fetch_replies import NO_ENDPOINTS, produce_reply, produce_reply_in_steps
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.produce.v13 import request as v13
    from kio.schema.types import TopicName

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.authorizer import Authorizer
    from odradek.broker.partitions.produce_appends import TopicBatches
    from odradek.wire.produce_fetch_replies import Endpoints, ProducedPartition

    class TopicProduceData(v13.TopicProduceData):
        name: TopicName  # until version 12

    class ProduceRequest(v13.ProduceRequest):
        topic_data: tuple[TopicProduceData, ...]


VERSIONS = (3, 13)
ADVERTISED_OLDEST = 0
IS_FREQUENT = True
ADMIN_CLIENT_ID = "__admin_client"
KNOWS_ZSTD, NAMES_LEADERS, KNOWS_TRANSACTION_ABORTABLE, ADDS_PARTITIONS, HAS_TOPIC_IDS = 7, 10, 11, 12, 13
"""The first version of each."""
_NO_ID = bytes(16)
_Packed = bytes | list[Chunk] | None
_Reply = list[Chunk] | Deferred[_Packed] | None


def handle(
    broker: BrokerServices, context: Context, message: ProduceRequest
) -> _Packed | Deferred[_Packed] | Steps[_Reply]:
    call = _DecodedProduce(broker, context, message)
    appends = ProduceAppends(broker, call)
    rest = appends.begin()
    if rest is not None:
        steps = _in_steps(broker, context, call, appends, rest)
        return steps if call.acks else _without_acks(broker, context, steps)
    if appends.awaited is None:
        return _reply(broker, context, call, appends)
    return appends.replication(context.connection).map(lambda _: _reply(broker, context, call, appends))


def _in_steps(
    broker: BrokerServices, context: Context, call: _DecodedProduce, appends: ProduceAppends, steps: Steps[None]
) -> Steps[_Reply]:
    yield from steps
    if appends.awaited is None:
        return (yield from _reply_in_steps(broker, context, call, appends))
    promise: Deferred[_Packed] = Deferred()
    appends.replication(context.connection).then(
        lambda _: broker.scheduler.start(_reply_in_steps(broker, context, call, appends)).then(promise.resolve)
    )
    return promise


def _without_acks(broker: BrokerServices, context: Context, steps: Steps[_Reply]) -> Steps[_Reply]:
    """Serves a request with acks=0.

    The request runs to its end even after its connection has closed, if all requests with acks=0 in progress have at
    most ``OUTLIVING_BYTES`` together.
    """
    workers, size = broker.workers, context.request_bytes
    context.must_finish = workers.outliving + size <= OUTLIVING_BYTES
    workers.outliving += size
    try:
        return (yield from steps)
    finally:
        workers.outliving -= size


class _DecodedProduce:
    """A request, as its appends need it (``ProduceCall``)."""

    __slots__ = ("_authorizer", "_broker", "_context", "_id_denial", "_id_refusal", "_message", "acks", "topics")

    def __init__(self, broker: BrokerServices, context: Context, message: ProduceRequest) -> None:
        self._broker = broker
        self._context = context
        self._message = message
        self.acks: int = message.acks
        self.topics = message.topic_data
        self._authorizer: Authorizer | None = broker.authorizer
        self._id_denial: tuple[KafkaError | None] | None = None
        self._id_refusal = None if broker.authorizer is None else self._refused_id()

    @property
    def timeout_ms(self) -> int:
        return milliseconds(self._message.timeout)

    @property
    def transactional_id(self) -> str | None:
        return self._message.transactional_id

    @property
    def takes_zstd(self) -> bool:
        return self._context.version >= KNOWS_ZSTD

    @property
    def adds_partitions(self) -> bool:
        return self._context.version >= ADDS_PARTITIONS

    @property
    def knows_transaction_abortable(self) -> bool:
        return self._context.version >= KNOWS_TRANSACTION_ABORTABLE

    def describe(self, topic: TopicBatches, count: int) -> tuple[str, str | bytes, KafkaError | None]:
        """Returns a topic's name, its field in the reply, and the error of the whole topic or None.

        ``count``: the partitions that the audit log counts; 0 if it has them already."""
        name: str
        key: str | bytes
        if self._context.version < HAS_TOPIC_IDS:
            name = key = topic.name
            is_known = True
        else:
            topic_id = topic.topic_id
            known = None if topic_id is None else self._broker.catalog.topic_by_id(topic_id)
            key = _NO_ID if topic_id is None else topic_id.bytes
            is_known, name = (False, "") if known is None else (True, known.name)
        refused: KafkaError | None = None
        if self._authorizer is not None:
            refused = self._denial(self._authorizer, name if is_known else None, count)
        if refused is None:
            if self.acks not in (-1, 0, 1):
                refused = KafkaError(ErrorCode.invalid_required_acks)
            elif not is_known:
                refused = KafkaError(ErrorCode.unknown_topic_id)
            elif name in INTERNAL_TOPICS and self._context.client_id != ADMIN_CLIENT_ID:
                refused = KafkaError(ErrorCode.invalid_topic_exception)
        return name, key, refused

    def _denial(self, authorizer: Authorizer, name: str | None, count: int) -> KafkaError | None:
        if self._id_refusal is not None:
            return self._id_refusal
        if name is None or authorizer.allows(
            self._context, Operation.WRITE, Resource.TOPIC, name,
            count=count, logs_grant=count > 0, logs_denial=count > 0,
        ):  # fmt: skip
            return None
        return KafkaError(ErrorCode.topic_authorization_failed)

    def _refused_id(self) -> KafkaError | None:
        """Returns the error of the whole request if its client may not use the transactional id.

        Only the first partitions are searched for a transactional batch. The appends ask about a later one.
        """
        if self._message.transactional_id is None or not _has_transactional_batch(self._message):
            return None
        return self.denial_of_id()

    def denial_of_id(self) -> KafkaError | None:
        """Returns the error if the client may not use the transactional id. The audit log has the question once."""
        name, authorizer = self._message.transactional_id, self._authorizer
        if name is None or authorizer is None:
            return None
        if self._id_denial is None:
            may_write = authorizer.allows(self._context, Operation.WRITE, Resource.TRANSACTIONAL_ID, name)
            denial = None if may_write else KafkaError(ErrorCode.transactional_id_authorization_failed)
            self._id_denial = (denial,)
        return self._id_denial[0]


def _has_transactional_batch(message: ProduceRequest) -> bool:
    parts = chain.from_iterable(topic.partition_data for topic in message.topic_data[:STEP_PARTITIONS])
    return any(is_transactional(part.records or b"") for part in islice(parts, STEP_PARTITIONS))


# --- replies ----------------------------------------------------------------------------------------------------------


def _reply(broker: BrokerServices, context: Context, call: _DecodedProduce, appends: ProduceAppends) -> _Packed:
    if appends.is_led_elsewhere and context.version >= NAMES_LEADERS:
        return finish(_reply_in_steps(broker, context, call, appends))
    if broker.quotas.has_quota(PRODUCER_BYTE_RATE):
        _count_bytes(broker, context)
    if call.acks:
        return produce_reply(context.version, appends.results)
    _raise_hangup({part.error_code for _, parts in appends.results for part in parts})
    return None


def _reply_in_steps(
    broker: BrokerServices, context: Context, call: _DecodedProduce, appends: ProduceAppends
) -> Steps[list[Chunk] | None]:
    if broker.quotas.has_quota(PRODUCER_BYTE_RATE):
        _count_bytes(broker, context)
    try:
        if call.acks:
            nodes = NO_ENDPOINTS
            if appends.is_led_elsewhere and context.version >= NAMES_LEADERS:
                nodes = yield from _named_leaders(broker, context, appends.results)
            return (yield from produce_reply_in_steps(context.version, appends.results, nodes))
        codes: set[int] = set()
        for number, (_, parts) in enumerate(appends.results):
            for first in range(0, len(parts), STEP_PARTITIONS):
                codes.update([part.error_code for part in parts[first : first + STEP_PARTITIONS]])
                if first or not number % STEP_PARTITIONS:
                    yield None
        _raise_hangup(codes)
        return None
    finally:
        appends.forget()


def _named_leaders(
    broker: BrokerServices, context: Context, results: list[tuple[str | bytes, list[ProducedPartition]]]
) -> Steps[Endpoints]:
    """Adds the leaders of the partitions that another broker leads. Returns the leaders' addresses."""
    from odradek.broker.handlers.current_leaders import CurrentLeaders

    leaders = CurrentLeaders(broker, context)
    for number, (key, parts) in enumerate(results):
        topic = UUID(bytes=key) if isinstance(key, bytes) else key
        for position, part in enumerate(parts):
            if part.error_code == ErrorCode.not_leader_or_follower:
                parts[position] = part._replace(leader=leaders.of(topic, part.partition))
            if position and not position % STEP_PARTITIONS:
                yield None
        if not number % STEP_PARTITIONS:
            yield None
    return leaders.nodes


def _count_bytes(broker: BrokerServices, context: Context) -> None:
    used = context.request_bytes
    context.throttle(broker.quotas.record(PRODUCER_BYTE_RATE, context.user, context.client_id, used))


def _raise_hangup(codes: set[int]) -> None:
    """Closes the connection on an error: the only way to report one to a client with acks=0."""
    failed = codes - {0}
    if failed:
        names = sorted(ErrorCode(code).name for code in failed)
        raise Hangup(f"produce without acks failed: {', '.join(names)}")
