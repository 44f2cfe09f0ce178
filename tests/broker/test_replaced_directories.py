"""A broker whose disk is lost starts with an empty directory, which has another id: its replicas may lead again."""

from __future__ import annotations

from uuid import UUID

import pytest
from support.cluster_nodes import SESSION_MS, Nodes

from odradek.catalog.registrations import PartitionRegistration


def partition(nodes: Nodes, index: int = 0) -> PartitionRegistration:
    topic = nodes.controller.broker.catalog.topic("t")
    assert topic is not None
    return topic.partitions[index]


@pytest.mark.parametrize("waits_for_the_fence", [True, False])
def test_a_broker_with_a_new_directory_leads_its_partitions_again(waits_for_the_fence: bool) -> None:
    nodes = Nodes()
    nodes.create("t", 2, 1, 2)
    before = partition(nodes).directories
    nodes.brokers[2].kill()
    if waits_for_the_fence:
        nodes.world.advance(3 * SESSION_MS)
        assert partition(nodes).leader == -1
    nodes.brokers[2].new_disk(7)
    nodes.brokers[2].begin()
    nodes.brokers[2].run_until_joined()
    nodes.world.advance(1_000)
    assert [partition(nodes, index).leader for index in (0, 1, 2)] == [2, 1, 2]
    assert partition(nodes).directories == (UUID(int=14 << 64),) != before
    assert partition(nodes, 1).directories == (UUID(int=1 << 64),)


def test_the_directory_is_said_again_until_the_controller_answers() -> None:
    """The controller is away when the broker has its records: the broker waits behind its fence."""
    nodes = Nodes()
    nodes.create("t", 2)
    nodes.brokers[2].kill()
    nodes.world.advance(3 * SESSION_MS)
    nodes.brokers[2].new_disk(3)
    nodes.brokers[2].begin()
    while not nodes.brokers[2].role.has_loaded():
        nodes.world.advance(1)
    nodes.controller.node.kill()
    nodes.world.advance(2 * SESSION_MS)
    assert not nodes.brokers[2].is_joined
    nodes.controller.begin()
    nodes.brokers[2].run_until_joined()
    nodes.world.advance(1_000)
    assert partition(nodes).leader == 2
