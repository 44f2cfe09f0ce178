"""Feature levels of the cluster: supported levels, initial levels and allowed changes.

The initial levels are those of a newly formatted Apache Kafka 4.3. Clients read levels to find the cluster's features.
In this broker, ``group.version`` controls KIP-848 groups, ``transaction.version`` the records of transactions,
``kraft.version`` changes of voters, and ``eligible.leader.replicas.version`` changes of ``min.insync.replicas``. The
other levels are only stored: their features need no level here, or they are not supported.
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
"""Initial levels. A feature at level 0 is in no list of levels."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeatureUpdate(NamedTuple):
    """A new level of a feature. ``how`` is UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE."""

    name: str
    level: int
    how: int


class UpdateFeatures(NamedTuple):
    """Changes the levels of all named features or of none. ``updates``: by the name of the feature."""

    updates: Mapping[str, FeatureUpdate]


def check(levels: Mapping[str, int], update: FeatureUpdate) -> None:
    """Raises KafkaError (INVALID_UPDATE_VERSION) if Apache Kafka would refuse the update."""
    fault = _fault(levels, update)
    if fault:
        text = f"No feature was updated. The level of {update.name!r} cannot change to {update.level}: {fault}."
        raise KafkaError(ErrorCode.invalid_update_version, text)


def _fault(levels: Mapping[str, int], update: FeatureUpdate) -> str:
    name, level, how = update.name, update.level, update.how
    present = levels.get(name, 0)
    if how not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return f"the upgrade type {how} is unknown"
    if name not in SUPPORTED:
        return "this broker does not support the feature"
    lowest, highest = SUPPORTED[name]
    if not lowest <= level <= highest:
        return f"this broker supports levels {lowest} to {highest}"
    if level > present and how != UPGRADE:
        return f"the current level is {present}, and a downgrade cannot raise it"
    if level < present:
        if how == UPGRADE:
            return f"the current level is {present}, and an upgrade cannot lower it"
        if name == METADATA:  # a lower level may lack record types of the present one
            return f"metadata written at level {present} might be lost"
        if name == KRAFT:
            return "this feature cannot be downgraded"
    return ""
