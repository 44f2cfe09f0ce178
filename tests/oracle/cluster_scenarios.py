"""All scenarios of a cluster of brokers, in the order in which they are recorded."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import cluster_scenarios_admin
import cluster_scenarios_nodes
import cluster_scenarios_requests
from cluster_conversation import ClusterRun

Scenario = Callable[[ClusterRun], None]
SCENARIOS: tuple[Scenario, ...] = (
    *cluster_scenarios_admin.SCENARIOS,
    *cluster_scenarios_requests.SCENARIOS,
    *cluster_scenarios_nodes.SCENARIOS,
    *cluster_scenarios_admin.LAST,
)


def base_of(scenario: Callable[..., None]) -> int:
    """The number below the ids of the brokers that a scenario makes up. They are in requests, and so in the trace."""
    return 1000 + 100 * (zlib.crc32(scenario.__name__.encode()) % 10_000)
