"""Scenarios of consumers that say their rack (KIP-392), at brokers with the replica selector that knows racks.

See ``SCENARIOS``. They run in a cluster of their own. Each broker is in a rack of its own: 1 in a, 2 in b, 3 in c.
"""

from __future__ import annotations

from typing import Any

from cluster_conversation import BROKERS, ClusterRun
from cluster_scenarios_replicas import SETTINGS as OF_REPLICAS
from cluster_scenarios_replicas import Scenario, await_isr, read, replicated, write
from scenarios_log import fetch_message

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SETTINGS = OF_REPLICAS | {"replica.selector.class": SELECTOR}
_RACKS = ("", "a", "b", "c", "B", "elsewhere")


def _written(c: ClusterRun, label: str, *replicas: int) -> str:
    """Returns a topic with five records, which the followers know to be committed."""
    name = replicated(c, label, replicas)
    write(c, name, replicas[0], count=3)
    write(c, name, replicas[0], count=2)
    c.settle()
    c.nodes.pass_ms(1000)
    return name


def consumers_in_racks(c: ClusterRun) -> None:
    """The leader names the follower in the consumer's rack, and returns no records."""
    name = _written(c, "t", 1, 2, 3)
    for rack in _RACKS:
        read(c, name, 1, rack_id=rack)
    for at in (2, 3):
        for rack in ("", "a", "b"):
            read(c, name, at, rack_id=rack)
    for offset in (2, 5, 6, 9, -1):
        read(c, name, 1, offset, rack_id="b")
        read(c, name, 2, offset, rack_id="b")


def racks_in_each_version(c: ClusterRun) -> None:
    name = _written(c, "t", 1, 2, 3)
    for version in (4, 10, 11, 12):
        c.call(1, version, fetch_message(name, 0, rack_id="b"), client="1")
    read(c, name, 1, rack_id="b", isolation_level=1)
    read(c, name, 1, rack_id="b", min_bytes=1_000_000, max_wait=60_000)
    for epoch in (0, 1):
        read(c, name, 1, rack_id="b", current_leader_epoch=epoch)
    for epoch in (0, 1):
        read(c, name, 1, 3, rack_id="b", last_fetched_epoch=epoch)


def racks_in_a_fetch_session(c: ClusterRun) -> None:
    """A session returns the follower each time."""
    name = _written(c, "t", 1, 2, 3)
    first = c.call(1, 12, fetch_message(name, 0, rack_id="b", session_epoch=0), client="1")
    c.name_number(first.session_id, "session")
    for epoch in (1, 2):
        again: Any = fetch_message(name, 0, rack_id="b", session_id=first.session_id, session_epoch=epoch)
        c.call(1, 12, again | {"topics": []}, client="1")


def racks_of_followers_that_are_away(c: ClusterRun) -> None:
    """Only a follower in the ISR is named."""
    name, few = _written(c, "t", 1, 2, 3), _written(c, "few", 1, 3)
    read(c, few, 1, rack_id="b")
    c.kill(2)
    c.await_fence(2)
    read(c, name, 1, rack_id="b")
    c.start(2)
    await_isr(c, name, BROKERS)
    c.nodes.pass_ms(1000)
    read(c, name, 1, rack_id="b")


SCENARIOS: tuple[Scenario, ...] = (
    consumers_in_racks, racks_in_each_version, racks_in_a_fetch_session, racks_of_followers_that_are_away,
)  # fmt: skip
