"""Feature levels: a new cluster has the levels of Apache Kafka 4.3, and updates may change some of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest

from odradek.catalog import records
from odradek.catalog.features import (
    AT_FIRST,
    ELIGIBLE_LEADERS,
    GROUP,
    KRAFT,
    METADATA,
    SAFE_DOWNGRADE,
    SUPPORTED,
    TRANSACTION,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdateFeatures,
)
from odradek.catalog.state import CatalogState
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError


class Catalogue:
    def __init__(self, log: Iterable[bytes] = ()) -> None:
        self.shard = CatalogState(lambda data: uuid.UUID(bytes=data), (1,), uuid.UUID(int=9))
        self.log: list[bytes] = []
        self.take(log)

    def take(self, values: Iterable[bytes]) -> None:
        for value in values:
            self.shard.replay(len(self.log), value)
            self.log.append(value)

    def update(self, *updates: tuple[str, int, int]) -> dict[str, int]:
        request = UpdateFeatures({name: FeatureUpdate(name, level, how) for name, level, how in updates})
        self.take(map(records.encode, result_of(self.shard.generate(request))))
        return dict(self.shard.features)


def test_a_new_cluster_has_the_levels_of_apache_kafka() -> None:
    assert Catalogue().shard.features == {
        "metadata.version": 30, "transaction.version": 2, "group.version": 1, "share.version": 1,
        "streams.version": 1, "eligible.leader.replicas.version": 1,
    }  # fmt: skip
    assert all(SUPPORTED[name][0] <= level <= SUPPORTED[name][1] for name, level in AT_FIRST.items())


def test_levels_are_lowered_raised_and_read_back() -> None:
    catalogue = Catalogue()
    levels = catalogue.update((GROUP, 0, SAFE_DOWNGRADE), (TRANSACTION, 1, UNSAFE_DOWNGRADE), (KRAFT, 1, UPGRADE))
    assert GROUP not in levels, "a feature at level 0 is in no list"
    assert (levels[TRANSACTION], levels[KRAFT]) == (1, 1)
    assert Catalogue(catalogue.log).shard.features == levels
    again = catalogue.update((GROUP, 1, UPGRADE), (TRANSACTION, 2, UPGRADE))
    assert again == {**AT_FIRST, KRAFT: 1}
    assert Catalogue(catalogue.log).shard.features == again


def test_an_update_to_the_current_level_writes_no_record() -> None:
    catalogue = Catalogue()
    for how in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        catalogue.update(*((name, level, how) for name, level in AT_FIRST.items()), (KRAFT, 0, how))
    assert catalogue.log == []


@pytest.mark.parametrize(
    "update",
    [
        (GROUP, 0, UPGRADE),
        (GROUP, 0, 0),
        (GROUP, 0, 4),
        (GROUP, -1, SAFE_DOWNGRADE),
        (GROUP, 2, UPGRADE),
        (KRAFT, 1, SAFE_DOWNGRADE),
        (METADATA, 29, SAFE_DOWNGRADE),
        (METADATA, 29, UNSAFE_DOWNGRADE),
        (METADATA, 31, UPGRADE),
        ("no.such", 0, UPGRADE),
        ("no.such", 1, UPGRADE),
    ],
)
def test_an_update_that_kafka_refuses_changes_nothing(update: tuple[str, int, int]) -> None:
    catalogue = Catalogue()
    with pytest.raises(KafkaError) as refused:
        catalogue.update((ELIGIBLE_LEADERS, 0, SAFE_DOWNGRADE), update)
    assert refused.value.code is ErrorCode.invalid_update_version
    assert update[0] in refused.value.message
    assert catalogue.shard.features == AT_FIRST


def test_the_quorum_feature_cannot_be_lowered() -> None:
    catalogue = Catalogue()
    catalogue.update((KRAFT, 1, UPGRADE))
    for how in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        with pytest.raises(KafkaError):
            catalogue.update((KRAFT, 0, how))
