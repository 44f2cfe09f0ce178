"""Changes a catalogue as the broker's controller does."""

from __future__ import annotations

from collections.abc import Callable

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.quorum import LoneQuorum
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.catalog.state import CatalogRequest
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError


def changed(catalog: StoredCatalog, *requests: CatalogRequest) -> Change:
    """Commits the records of the requests, and publishes them. Returns the change."""
    change = Change(catalog.catalog.state)
    for request in requests:
        finish(change.add(request))
    commit(catalog, change)
    return change


def commit(catalog: StoredCatalog, change: Change) -> None:
    """Commits and publishes a change. Raises KafkaError."""
    delta = finish(catalog.catalog.commit(written(catalog, change), change.records))
    finish(catalog.catalog.on_metadata_update(delta, catalog.catalog))


def written(catalog: StoredCatalog, change: Change) -> int:
    """Commits the records of a change by the quorum of a lone broker. Returns their first offset. Raises KafkaError."""
    quorum = lone_quorum(catalog)
    with quorum.at_once():
        value = quorum.append(change.packed, len(change.records)).value
    if isinstance(value, KafkaError):
        raise value
    return value


def lone_quorum(catalog: StoredCatalog) -> LoneQuorum:
    """The quorum of a broker that commits in the call."""
    return LoneQuorum(catalog.log, 1, _no_thread)


def _no_thread(job: Callable[[], None]) -> Deferred[BaseException | None]:
    raise AssertionError("a call at once needs no thread")
