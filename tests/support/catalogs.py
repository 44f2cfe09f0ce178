"""Changes a catalogue as the broker's controller does."""

from __future__ import annotations

from odradek.broker.metadata_log import Catalog, Change
from odradek.broker.scheduler import finish
from odradek.catalog.shard import CatalogRequest


def changed(catalog: Catalog, *requests: CatalogRequest) -> Change:
    """Writes the records of the requests and applies them. Returns the change."""
    change = catalog.change()
    for request in requests:
        finish(change.add(request))
    change.write()
    finish(catalog.on_metadata_update(finish(change.replay()), catalog))
    return change
