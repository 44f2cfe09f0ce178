"""FetchSnapshot 0–1: returns a part of a snapshot of the metadata log to an observer.

* 1: directory id of the observer, and the endpoint of the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers import observer_fetches
from odradek.broker.handlers.authorization import check_cluster
from odradek.core.access.acl import Operation

if TYPE_CHECKING:
    from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest

    from odradek.broker.handlers.api import Context, ControllerServices

VERSIONS = (0, 1)
LISTENERS = ("controller",)


def handle(controller: ControllerServices, context: Context, message: FetchSnapshotRequest) -> dict[str, object]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    return observer_fetches.fetch_snapshot(controller, context, message)
