"""Leaders that an error's reply names, with their addresses (KIP-951): they are used without a Metadata request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from odradek.client.metadata_wire import TopicMetadata
from odradek.client.model import Node
from odradek.core.errors import ErrorCode

NAMES_LEADER = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
"""The errors whose replies name the leader."""


def with_leader(
    topic: TopicMetadata, index: int, leader: int, leader_epoch: int, nodes: Mapping[int, Node]
) -> TopicMetadata | None:
    """Returns the topic with another leader of one partition.

    As in Java's client, None if the leader epoch is not newer than the known one, or the leader has no address."""
    known = topic.partitions.get(index)
    if known is None or leader not in nodes or not 0 <= known.leader_epoch < leader_epoch:
        return None
    partitions = topic.partitions | {
        index: dataclasses.replace(known, leader=leader, leader_epoch=leader_epoch),
    }
    rows = tuple(partitions[number] for number in sorted(partitions))
    return dataclasses.replace(
        topic, description=dataclasses.replace(topic.description, partitions=rows), partitions=partitions
    )
