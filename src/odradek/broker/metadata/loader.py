"""The loader of committed metadata records: it passes their changes to the publishers.

The loader calls the publishers in the order of ``broker/publishers``. At the start it passes a delta of the
whole image, later the delta of each committed batch. The broker replies to the request of a batch after the last
publisher.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps, finish
from odradek.catalog.delta import Delta

if TYPE_CHECKING:
    from odradek.broker.metadata.catalog_view import CatalogView, Publisher
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.catalog.records import MetadataRecord

log = logging.getLogger("odradek.broker")


class MetadataLoader:
    """Passes deltas to the publishers, one at a time, because the controller writes one change after another.

    ``waiting``: those of the publishers that get nothing before ``begin_waiting``, ``load_waiting`` and
    ``end_waiting``."""

    def __init__(
        self, catalog: CommittedCatalog, publishers: Sequence[Publisher], waiting: Sequence[Publisher] = ()
    ) -> None:
        self._catalog = catalog
        self._all = publishers
        self._waiting = waiting
        self._copy: CommittedCatalog | None = None
        self._late: deque[tuple[Delta, int]] | None = None
        """The changes since ``begin_waiting``, with the offsets after them."""
        self._publishers = [one for one in publishers if one not in waiting] if waiting else publishers

    def load(self) -> None:
        """Publishes the whole image at the broker's start. Raises the errors of a publisher."""
        finish(self.load_in_steps())

    def load_in_steps(self) -> Steps[None]:
        """Publishes the whole image, as ``load``. No change may be committed meanwhile."""
        yield from self._load(self._publishers)

    def begin_waiting(self) -> Steps[None]:
        """Takes the whole image for the publishers that wait, between two changes. Later ones are kept for them."""
        self._copy, self._late = self._catalog.copied(), deque()
        yield None

    def load_waiting(self) -> Steps[None]:
        """Publishes the image of ``begin_waiting`` to the publishers that wait, then what was committed meanwhile.

        Changes go on to be committed and published to the others."""
        copy = self._copy
        assert copy is not None
        for publisher in self._waiting:
            steps = publisher.on_metadata_update(Delta.of(copy.state), copy)
            if steps is not None:
                yield from steps
        self._copy = None
        yield from self._catch_up()

    def end_waiting(self) -> Steps[None]:
        """Publishes the last changes, between two others. From then on all publishers are in their order."""
        yield from self._catch_up()
        self._publishers, self._waiting = self._all, ()

    def _catch_up(self) -> Steps[None]:
        while self._late:
            delta, end_offset = self._late.popleft()
            yield from self._pass_on(self._waiting, delta, self._catalog.at(end_offset))

    def _load(self, publishers: Sequence[Publisher]) -> Steps[None]:
        delta = self._catalog.initial_delta()
        for publisher in publishers:
            steps = publisher.on_metadata_update(delta, self._catalog)
            if steps is not None:
                yield from steps

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
        """Applies committed records to the catalogue, and publishes their changes."""
        delta = yield from self._catalog.commit(offset, changes)
        yield from self.publish(delta)
        if self._waiting and self._late is not None:
            self._late.append((delta, self._catalog.log_end_offset))

    def publish(self, delta: Delta) -> Steps[None]:
        """Publishes a committed change. The failure of a publisher is logged, and the next publishers follow."""
        yield from self._pass_on(self._publishers, delta, self._catalog)

    def _pass_on(self, publishers: Sequence[Publisher], delta: Delta, image: CatalogView) -> Steps[None]:
        for publisher in publishers:
            try:
                steps = publisher.on_metadata_update(delta, image)
                if steps is not None:
                    yield from steps
            except Exception:
                log.exception("%s could not apply a change of the catalogue", type(publisher).__name__)
