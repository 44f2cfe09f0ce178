"""Which leaders of an error's reply a client takes over."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.client.cluster import Cluster
from odradek.client.config import as_config
from odradek.client.metadata_wire import Metadata, TopicMetadata
from odradek.client.model import Node, PartitionDescription, TopicDescription
from odradek.core.ids import TopicPartition

ONE, TWO, THREE = (Node(number, "127.0.0.1", 9000 + number) for number in (1, 2, 3))
MOVED = Node(2, "127.0.0.1", 9999)


def metadata(leader: int, epoch: int, *nodes: Node) -> Metadata:
    rows = {index: PartitionDescription(index, leader, epoch, (1, 2, 3), (1, 2, 3)) for index in range(2)}
    topic = TopicDescription("t", UUID(int=7), False, tuple(rows.values()))
    topics = {"t": TopicMetadata(topic, rows, dict.fromkeys(rows, 0.0))}
    return Metadata(nodes={node.node_id: node for node in nodes}, topics=topics)


def cluster(epoch: int = 5) -> Cluster:
    made = Cluster(as_config("127.0.0.1:9001"))
    made.update_metadata(metadata(1, epoch, ONE, TWO), everything=False)
    return made


def test_a_newer_leader_is_taken_with_its_address() -> None:
    known, tp = cluster(), TopicPartition("t", 1)
    assert known.take_leaders({tp: (3, 6)}, [THREE]) == {tp}
    assert (known.leader(tp), known.leader_epoch(tp)) == (3, 6)
    assert known.node(3) == THREE
    assert known.leader(TopicPartition("t", 0)) == 1
    description = known.known_topic("t")
    assert description is not None
    assert [one.leader for one in description.partitions] == [1, 3]


def test_another_address_replaces_the_known_one() -> None:
    known, tp = cluster(), TopicPartition("t", 0)
    assert known.take_leaders({tp: (2, 6)}, [MOVED]) == {tp}
    assert known.node(2) == MOVED


@pytest.mark.parametrize(
    ("epoch", "named"), [(5, (2, 5)), (5, (2, 4)), (5, (3, 6)), (5, (-1, 6)), (5, (2, -1)), (-1, (2, 6))]
)
def test_no_older_leader_is_taken_and_none_without_an_address_or_known_epoch(
    epoch: int, named: tuple[int, int]
) -> None:
    known, tp = cluster(epoch), TopicPartition("t", 0)
    assert known.take_leaders({tp: named}, []) == set()
    assert (known.leader(tp), known.leader_epoch(tp)) == (1, epoch)


def test_a_topic_or_partition_that_is_not_known_is_left_out() -> None:
    known, tps = cluster(), {TopicPartition("t", 2), TopicPartition("other", 0)}
    assert known.take_leaders(dict.fromkeys(tps, (2, 6)), []) == set()


def test_older_metadata_does_not_bring_the_former_leader_back() -> None:
    known, tp = cluster(), TopicPartition("t", 0)
    known.take_leaders({tp: (2, 6)}, [])
    known.update_metadata(metadata(1, 5, ONE, TWO), everything=False)
    assert (known.leader(tp), known.leader_epoch(tp)) == (2, 6)
