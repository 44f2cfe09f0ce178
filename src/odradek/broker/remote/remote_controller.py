"""The controller, as a broker of a cluster has it: another node, which changes the catalogue.

The queue of write events is here the queue of what is applied: committed batches and snapshots, one after another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from odradek.broker.controller.write_events import Controller, TopicSpec
from odradek.broker.loop.scheduler import Steps
from odradek.broker.metadata.producer_ids import ProducerIds
from odradek.broker.remote.node_request import NodeRequest, schema_request
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.api_keys import ALLOCATE_PRODUCER_IDS, CREATE_TOPICS

if TYPE_CHECKING:
    import asyncio

    from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
    from kio.schema.create_topics.v7.response import CreateTopicsResponse

    from odradek.broker.controller.write_events import ControlledBroker, ControllerRequestContext, WriteEvent
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.change import Change
    from odradek.broker.remote.forwarder import RequestForwarder
    from odradek.catalog.delta import Delta
    from odradek.catalog.state import Topic

log = logging.getLogger("odradek.broker")

CREATION_WAIT_MS = 2_000
"""A request that needs a new topic waits at most this time for it. Then its client finds no topic, and asks again."""
IDS_TIMEOUT_MS = 5_000
_CREATE_VERSION, _ALLOCATE_VERSION = 7, 0


class RemoteProducerIds(ProducerIds):
    """Producer ids of the blocks that the controller gives to this incarnation of the broker. A record may be that of
    an earlier one, which may still live: so only a reply gives a block."""

    def take_block(self, first: int, count: int) -> None:
        self._ids = range(first, first + count)

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        """Ignores the records about blocks."""


class RemoteController(Controller):
    """``has_loaded``: whether the catalogue's topics are replaced by copies, and not changed in place: only then may a
    snapshot be made. ``forwarder``: the way to the controller. ``broker_epoch``: returns the present one."""

    def __init__(
        self, broker: ControlledBroker, has_loaded: Callable[[], bool], forwarder: RequestForwarder,
        loop: asyncio.AbstractEventLoop, broker_epoch: Callable[[], int],
    ) -> None:  # fmt: skip
        super().__init__(broker)
        self._has_loaded, self._loop, self._broker_epoch = has_loaded, loop, broker_epoch
        self.forwarder = forwarder
        self.producer_ids = RemoteProducerIds(broker.node_id, self)
        self._creations: dict[frozenset[str], Deferred[dict[str, KafkaError]]] = {}

    # --- what the controller has committed ----------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        if self._has_loaded():
            super().begin_snapshot()

    # --- changes ------------------------------------------------------------------------------------------------

    def _commit(self, change: Change, event: WriteEvent | None) -> Steps[None]:
        """Refuses records: what changes the catalogue is forwarded (``node/forwarded_requests``). An operation without
        records, such as a change of loggers, is served here."""
        raise KafkaError(ErrorCode.not_controller, "Only the controller changes the catalogue.")

    def create_topic(self, new: TopicSpec) -> Steps[Topic]:
        """Creates one topic, as a request of this broker. Raises KafkaError."""
        refused = yield from self._create([new], None)
        if new.name in refused:
            raise refused[new.name]
        topic = self._broker.catalog.topic(new.name)
        if topic is None:
            raise KafkaError(ErrorCode.request_timed_out, "The topic is created, and this broker has not learned it.")
        return topic

    def auto_create(self, names: Collection[str], context: ControllerRequestContext) -> Deferred[dict[str, KafkaError]]:
        """Creates the missing topics with this broker's defaults, as a request of the client. The promise has the
        errors of the refused topics."""
        config = self._broker.config
        internal = [self._broker.coordinators.topic_spec(name) for name in names if not self._has_defaults(name)]
        specs = [
            TopicSpec(name, config.num_partitions, config.default_replication_factor)
            for name in names
            if self._has_defaults(name) and self._broker.catalog.topic(name) is None
        ]
        if missing := [spec for spec in internal if spec is not None and self._broker.catalog.topic(spec.name) is None]:
            self._create_once(missing, None)
        return self._within_wait(self._create_once(specs, context)) if specs else Deferred.of({})

    def ensure_internal_topic(self, name: str, context: ControllerRequestContext) -> Deferred[None]:
        """Creates the topic of a coordinator, as a request of this broker. A failure is only logged, as in Kafka."""
        spec = self._broker.coordinators.topic_spec(name)
        assert spec is not None

        def end(refused: dict[str, KafkaError]) -> None:
            if name in refused:
                self.report_missing_topic(name, refused[name])

        return self._within_wait(self._create_once([spec], None)).map(end)

    def _create_once(
        self, specs: list[TopicSpec], context: ControllerRequestContext | None
    ) -> Deferred[dict[str, KafkaError]]:
        """Creates topics, unless a request for the same ones is in progress. The promise has the errors."""
        names = frozenset(spec.name for spec in specs)
        present = self._creations.get(names)
        if present is None:
            present = self._creations[names] = self._broker.scheduler.start(self._create_all(specs, context))
            present.then(lambda _: self._creations.__delitem__(names))
        return present

    def _create_all(
        self, specs: list[TopicSpec], context: ControllerRequestContext | None
    ) -> Steps[dict[str, KafkaError]]:
        try:
            return (yield from self._create(specs, context))
        except OdradekError as error:
            log.warning("the topics %s are not created: %s", ", ".join(sorted(spec.name for spec in specs)), error)
            return {}

    def _create(
        self, specs: Iterable[TopicSpec], context: ControllerRequestContext | None
    ) -> Steps[dict[str, KafkaError]]:
        """Creates topics, and waits until this broker has them. Returns the errors of those that are refused.

        Raises KafkaError if the controller refuses the request, or does not answer in time."""
        request = _creation(specs)
        if context is None:
            refused = yield from self.forwarder.ask(request)
            yield from self.forwarder.catch_up()
            return refused
        whole = request.frame(0, context.client_id)[4:]
        return request.read((yield from self.forwarder.forward(whole, context.principal, context.client_host)))

    def _within_wait(self, promise: Deferred[dict[str, KafkaError]]) -> Deferred[dict[str, KafkaError]]:
        """Returns the promise of the same errors; of none, if they do not come in time."""
        limited: Deferred[dict[str, KafkaError]] = Deferred()

        def end(refused: dict[str, KafkaError]) -> None:
            if not limited.resolved:
                timer.cancel()
                limited.resolve(refused)

        timer = self._loop.call_later(CREATION_WAIT_MS / 1000, end, {})
        promise.then(end)
        return limited

    # --- producer ids -------------------------------------------------------------------------------------------

    def allocate_producer_ids(self, broker_id: int) -> Deferred[None]:
        return self._broker.scheduler.start(self._allocate(broker_id))

    def _allocate(self, broker_id: int) -> Steps[None]:
        """Raises KafkaError (COORDINATOR_LOAD_IN_PROGRESS), after which clients try again, as Kafka's broker."""
        try:
            ids = yield from self.forwarder.ask(_allocation(broker_id, self._broker_epoch()), IDS_TIMEOUT_MS)
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, error.message) from None
        if isinstance(ids, ErrorCode):
            text = f"the controller gives no producer ids: {ids.name}"
            raise KafkaError(ErrorCode.coordinator_load_in_progress, text)
        self.producer_ids.take_block(ids.start, len(ids))


def _allocation(broker_id: int, broker_epoch: int) -> NodeRequest[range | ErrorCode]:
    """Returns the request for a block of producer ids."""
    body = {"broker_id": broker_id, "broker_epoch": broker_epoch}
    return schema_request(ALLOCATE_PRODUCER_IDS, _ALLOCATE_VERSION, body, _allocated)


def _allocated(reply: AllocateProducerIdsResponse) -> range | ErrorCode:
    first: int = reply.producer_id_start
    return reply.error_code or range(first, first + reply.producer_id_len)


def _creation(specs: Iterable[TopicSpec]) -> NodeRequest[dict[str, KafkaError]]:
    """Returns the request to create topics. Its reply has the errors of those that are refused."""
    body = {"topics": [_row(spec) for spec in specs], "timeout": CREATION_WAIT_MS, "validate_only": False}
    return schema_request(CREATE_TOPICS, _CREATE_VERSION, body, _refused)


def _refused(reply: CreateTopicsResponse) -> dict[str, KafkaError]:
    return {
        row.name: KafkaError(row.error_code, row.error_message or "")
        for row in reply.topics
        if row.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists)
    }


def _row(spec: TopicSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "num_partitions": -1 if spec.assignments else spec.partition_count,
        "replication_factor": -1 if spec.assignments else spec.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": replicas} for index, replicas in spec.assignments.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in spec.configs.items()],
    }
