"""Producer ids for idempotent and transactional producers. Each id is used only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps, value_of
from odradek.catalog.state import PRODUCER_ID_BLOCK
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.catalog.delta import Delta
    from odradek.core.deferred import Deferred

    class Allocator(Protocol):
        """The controller, which allocates producer id blocks to brokers."""

        def allocate_producer_ids(self, broker_id: int) -> Deferred[None]: ...


class ProducerIds:
    """The ids of the producer id blocks that the controller allocates to this broker.

    The remaining ids of a producer id block are never used after the broker ends.
    """

    # Subclasses use _ids.

    def __init__(self, node_id: int, allocator: Allocator) -> None:
        self._node_id = node_id
        self._allocator = allocator
        self._ids = range(0)
        self._allocation: Deferred[None] | None = None

    def next(self) -> Steps[int]:
        """Returns the next id. Raises KafkaError if no producer id block can be allocated."""
        yield from self.ready()
        return self._pop()

    def ready(self) -> Steps[None]:
        """Waits until ``take`` has an id. Raises KafkaError if no producer id block can be allocated."""
        while not self._ids:
            yield from value_of(self._allocate())

    def take(self) -> int:
        """Returns the next id at once.

        If there is none, starts the allocation of a producer id block and raises KafkaError."""
        if not self._ids:
            self._allocate()
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "a producer id block is being allocated")
        return self._pop()

    def _pop(self) -> int:
        producer_id = self._ids[0]
        self._ids = self._ids[1:]
        return producer_id

    def _allocate(self) -> Deferred[None]:
        """Returns the promise of a new producer id block."""
        if self._allocation is None or self._allocation.resolved:
            self._allocation = self._allocator.allocate_producer_ids(self._node_id)
        return self._allocation

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        """Stores a new producer id block of this broker."""
        for record in delta.producer_ids:
            if record.broker_id == self._node_id:
                self._ids = range(record.next_producer_id - PRODUCER_ID_BLOCK, record.next_producer_id)
