"""Changes a catalogue as the broker's controller does."""

from __future__ import annotations

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.log import Catalog, Change
from odradek.catalog.shard import CatalogRequest


def changed(catalog: Catalog, *requests: CatalogRequest) -> Change:
    """Writes the records of the requests and applies them. Returns the change."""
    change = catalog.change()
    for request in requests:
        finish(change.add(request))
    change.write()
    finish(catalog.on_metadata_update(finish(change.replay()), catalog))
    return change
