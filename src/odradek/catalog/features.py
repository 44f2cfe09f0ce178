"""Feature levels of the cluster: which there are, where a new one begins, and how they may change.

The levels are those of a freshly formatted Apache Kafka 4.3. A client reads them to learn what the whole cluster can
do; here ``group.version`` decides about KIP-848 groups and ``kraft.version`` about changes of voters. The others are
remembered: what they stand for in Kafka either needs no level here or is not served, whatever the level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from odradek.core.errors import ErrorCode, KafkaError

METADATA, KRAFT, TRANSACTION, GROUP = "metadata.version", "kraft.version", "transaction.version", "group.version"
SHARE, STREAMS, ELIGIBLE_LEADERS = "share.version", "streams.version", "eligible.leader.replicas.version"

SUPPORTED: Mapping[str, tuple[int, int]] = {
    METADATA: (7, 30),  # 3.3-IV3 to 4.3-IV0
    KRAFT: (0, 1),
    TRANSACTION: (0, 2),
    GROUP: (0, 1),
    SHARE: (0, 1),
    STREAMS: (0, 1),
    ELIGIBLE_LEADERS: (0, 1),
}
"""Feature → lowest and highest level."""

AT_FIRST: Mapping[str, int] = {
    METADATA: 30,
    TRANSACTION: 2,
    GROUP: 1,
    SHARE: 1,
    STREAMS: 1,
    ELIGIBLE_LEADERS: 1,
}
"""Levels where the log says nothing else. A feature at level 0 is in no list of levels."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeatureUpdate(NamedTuple):
    """``how``: one of the three above."""

    name: str
    level: int
    how: int


class UpdateFeatures(NamedTuple):
    """Changes the levels of features, of all or of none. Of two updates of one feature the later counts."""

    updates: Mapping[str, FeatureUpdate]


def check(levels: Mapping[str, int], update: FeatureUpdate) -> None:
    """Raises KafkaError (INVALID_UPDATE_VERSION) where Apache Kafka would refuse the update."""
    fault = _fault(levels, update)
    if fault:
        text = f"Nothing was updated. {update.name!r} cannot get the level {update.level}: {fault}."
        raise KafkaError(ErrorCode.invalid_update_version, text)


def _fault(levels: Mapping[str, int], update: FeatureUpdate) -> str:
    name, level, how = update.name, update.level, update.how
    present = levels.get(name, 0)
    if how not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return f"there is no upgrade type {how}"
    if name not in SUPPORTED:
        return "this broker does not know the feature"
    lowest, highest = SUPPORTED[name]
    if not lowest <= level <= highest:
        return f"this broker supports {lowest} to {highest}"
    if level > present and how != UPGRADE:
        return f"a downgrade cannot lead up from {present}"
    if level < present:
        if how == UPGRADE:
            return f"an upgrade cannot lead down from {present}"
        if name == METADATA:  # from 30 down, each step would lose records that lower levels do not know
            return f"metadata written at {present} might be lost"
        if name == KRAFT:
            return "this feature cannot be downgraded"
    return ""
