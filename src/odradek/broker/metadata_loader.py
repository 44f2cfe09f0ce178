"""What follows from committed metadata records: each publisher acts on what they change, at start and later.

The loader calls the publishers one after the other, in the order of ``broker/metadata_publishers``: once at start, with
a delta of the whole image, then after each committed batch. Who waits for the change is answered after the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.broker.scheduler import Steps, finish

if TYPE_CHECKING:
    from odradek.broker.catalog_image import Publisher
    from odradek.broker.metadata_log import Catalog
    from odradek.catalog.delta import Delta

log = logging.getLogger("odradek.broker")


class MetadataLoader:
    """Passes deltas on to the publishers. One at a time: ``broker/controller`` writes one change after the other."""

    def __init__(self, catalog: Catalog, publishers: Sequence[Publisher]) -> None:
        self._catalog = catalog
        self._publishers = publishers

    def load(self) -> None:
        """Publishes the whole image, at start. Raises what a publisher raises."""
        delta = self._catalog.initial_delta()
        for publisher in self._publishers:
            steps = publisher.on_metadata_update(delta, self._catalog)
            if steps is not None:
                finish(steps)

    def publish(self, delta: Delta) -> Steps[None]:
        """Publishes a committed change. A publisher that fails says so in the log, and the others go on."""
        for publisher in self._publishers:
            try:
                steps = publisher.on_metadata_update(delta, self._catalog)
                if steps is not None:
                    yield from steps
            except Exception:
                log.exception("%s could not follow a change of the catalogue", type(publisher).__name__)
