"""Deltas: the changes of metadata records in the form that publishers get."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.broker.metadata.lone_broker import BeginEpochs, RaiseEpochs
from odradek.catalog.credentials import SCRAM_SHA_256, AlterCredential
from odradek.catalog.delta import Delta
from odradek.catalog.features import GROUP as GROUP_FEATURE
from odradek.catalog.features import SAFE_DOWNGRADE, FeatureUpdate, UpdateFeatures
from odradek.catalog.image import CatalogImage
from odradek.catalog.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.catalog.state import (
    BROKER,
    TOPIC,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    CatalogRequest,
    CatalogState,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from odradek.core.access.credential import Credential
from odradek.core.effects import result_of

ID, OTHER = UUID(int=1), UUID(int=2)
USER = (("user", "u"),)


def state_of(*requests: CatalogRequest) -> CatalogState:
    """An state in which the results of all these requests are published."""
    state = CatalogState(lambda data: UUID(bytes=data), (1,), UUID(int=9))
    for request in requests:
        for record in result_of(state.generate(request)):
            state.apply(0, record)
    return state


def delta_of(state: CatalogState, *requests: CatalogRequest) -> Delta:
    return replayed(state, *(record for each in requests for record in result_of(state.generate(each))))


def replayed(state: CatalogState, *records: MetadataRecord) -> Delta:
    delta = Delta(state)
    for record in records:
        delta.replay(0, record)
    return delta


def named(delta: Delta) -> dict[str, list[object]]:
    """The contents of the delta, without its empty parts."""
    found = {
        "created": [(topic.name, topic.partition_count) for topic in delta.created.values()],
        "grown": [(topic.name, topic.partition_count) for topic in delta.grown.values()],
        "deleted": [(topic.name, topic.partition_count) for topic in delta.deleted.values()],
        "epochs": [(key, partition.leader_epoch) for key, partition in delta.partitions.items()],
        "configs": list(delta.configs),
        "quotas": list(delta.quotas),
        "users": list(delta.users),
        "features": list(delta.features),
        "producer ids": [record.next_producer_id for record in delta.producer_ids],
    }
    return {name: what for name, what in found.items() if what}


TWO = CreateTopic("t", ID, 2, 1, configs={"retention.ms": "5"})
CREDENTIAL = AlterCredential("u", SCRAM_SHA_256, Credential(b"s", b"k", b"v", 4096))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (CreateTopic("u", OTHER, 3, 1), {"created": [("u", 3)]}),
        (
            CreateTopic("u", OTHER, 1, 1, configs={"retention.ms": "1", "segment.ms": "2"}),
            {"created": [("u", 1)], "configs": [(TOPIC, "u")]},
        ),
        (CreatePartitions("t", 5), {"grown": [("t", 5)]}),
        (DeleteTopic(ID), {"deleted": [("t", 2)]}),
        (AlterConfigs(BROKER, "", {"log.retention.ms": "7"}), {"configs": [(BROKER, "")]}),
        (AlterConfigs(TOPIC, "t", {"retention.ms": None}), {"configs": [(TOPIC, "t")]}),
        (AlterConfigs(TOPIC, "t", {"retention.ms": "5"}), {}),
        (AlterClientQuotas(USER, {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0}), {"quotas": [USER]}),
        (CREDENTIAL, {"users": ["u"]}),
        (
            UpdateFeatures({GROUP_FEATURE: FeatureUpdate(GROUP_FEATURE, 0, SAFE_DOWNGRADE)}),
            {"features": [GROUP_FEATURE]},
        ),
        (AllocateProducerIds(1), {"producer ids": [1000]}),
        (BeginEpochs(), {"epochs": [(("t", 0), 1), (("t", 1), 1)]}),
        (RaiseEpochs({("t", 1): 7}), {"epochs": [(("t", 1), 7)]}),
    ],
)
def test_a_delta_names_what_a_request_changes(request_: CatalogRequest, expected: dict[str, list[object]]) -> None:
    delta = delta_of(state_of(TWO), request_)
    assert not delta.is_initial
    assert named(delta) == expected


def test_new_topics_and_partitions_are_only_in_the_delta_and_settings_are_in_the_image_at_once() -> None:
    state = state_of(TWO)
    present = state.topics["t"]
    requests = (
        CreateTopic("u", OTHER, 1, 1, configs={"retention.ms": "1"}), CreatePartitions("t", 5),
        AlterConfigs(TOPIC, "t", {"retention.ms": "6"}),
    )  # fmt: skip
    delta = delta_of(state, *requests)
    assert state.topics == {"t": present}
    assert present.partition_count == 2
    assert state.topic_configs("t") == {"retention.ms": "6"}
    assert state.topic_configs("u") == {"retention.ms": "1"}, "the new topic has these settings"
    assert [topic.name for topic in delta.new_topics] == ["u", "t"]
    for topic in delta.new_topics:
        state.publish(topic)
    assert {name: topic.partition_count for name, topic in state.topics.items()} == {"t": 5, "u": 1}


def test_a_topic_that_one_batch_creates_and_deletes_is_not_in_the_delta() -> None:
    """Odradek's requests write no such records, but the log of another controller may contain them. The delta still
    names the topic's settings."""
    state = state_of()
    made = (TopicRecord("u", OTHER), PartitionRecord(0, OTHER, (1,), (1,), 1), ConfigRecord(TOPIC, "u", "a", "b"))
    assert named(replayed(state, *made, RemoveTopicRecord(OTHER))) == {"configs": [(TOPIC, "u")]}
    assert not state.topic_configs("u")
    assert not state.topics
    again = replayed(state, *made, RemoveTopicRecord(OTHER), *made)
    assert named(again)["created"] == [("u", 1)]


def test_a_topic_that_one_batch_extends_and_deletes_has_its_old_partitions_in_the_delta() -> None:
    state = state_of(TWO)
    grown = PartitionRecord(2, ID, (1,), (1,), 1)
    assert named(replayed(state, grown, RemoveTopicRecord(ID))) == {"deleted": [("t", 2)]}


def test_a_partition_has_the_leader_epoch_of_its_last_record() -> None:
    state = state_of(TWO)
    grown, again = PartitionRecord(2, ID, (1,), (1,), 1), PartitionRecord(2, ID, (1,), (1,), 1, leader_epoch=4)
    old = PartitionRecord(0, ID, (1,), (1,), 1, leader_epoch=3)
    delta = replayed(state, grown, again, old, PartitionChangeRecord(1, ID, None))
    assert [partition.leader_epoch for partition in delta.grown[ID].partitions] == [3, 0, 4]
    assert [partition.leader_epoch for partition in state.topics["t"].partitions] == [3, 0]
    assert {key: partition.leader_epoch for key, partition in delta.partitions.items()} == {("t", 0): 3, ("t", 1): 0}


def test_a_snapshot_in_progress_has_no_later_change_of_a_partition() -> None:
    state = state_of(TWO)
    before = list(CatalogImage.of(state).values())
    snapshot = CatalogImage.of(state)
    replayed(state, PartitionChangeRecord(0, ID, 1), PartitionChangeRecord(1, ID, isr=()))
    replayed(state, PartitionRecord(0, ID, (1,), (1,), 1, leader_epoch=7))
    assert list(snapshot.values()) == before
    assert [partition.leader_epoch for partition in state.topics["t"].partitions] == [7, 0]


def test_replay_live_image_and_snapshot_agree_on_partitions() -> None:
    changes = (
        PartitionChangeRecord(0, ID, 2, isr=(2,), elr=(1,)),
        PartitionChangeRecord(1, ID, replicas=(1, 2), adding=(2,), directories=(ID, OTHER)),
        PartitionChangeRecord(0, ID, -1, isr=(), last_known_elr=(2,), recovery_state=1),
    )
    live, loaded = state_of(TWO), state_of(TWO)
    for change in changes:
        replayed(live, change)
        loaded.apply(0, change)
    again = CatalogState(lambda data: UUID(bytes=data), (1,), UUID(int=9))
    for value in CatalogImage.of(live).values():
        again.replay(-1, value)
    assert live.topics == loaded.topics == again.topics
    first, second = live.topics["t"].partitions
    assert (first.leader, first.leader_epoch, first.partition_epoch, first.isr, first.elr) == (-1, 2, 2, (), (1,))
    assert (second.leader_epoch, second.partition_epoch, second.replicas, second.isr) == (0, 1, (1, 2), (1,))


def test_a_change_of_a_partition_that_only_the_delta_has_stays_there() -> None:
    state = state_of(TWO)
    new = (TopicRecord("u", OTHER), PartitionRecord(0, OTHER, (1,), (1,), 1), PartitionChangeRecord(0, OTHER, 1))
    delta = replayed(state, *new, PartitionRecord(2, ID, (1,), (1,), 1), PartitionChangeRecord(2, ID, 1))
    assert (delta.created[OTHER].partitions[0].leader_epoch, delta.grown[ID].partitions[2].leader_epoch) == (1, 1)
    assert (list(state.topics), state.topics["t"].partition_count, delta.partitions) == (["t"], 2, {})


@pytest.mark.parametrize("record", [PartitionRecord(0, OTHER, (1,), (1,), 1), RemoveTopicRecord(OTHER)])
def test_a_record_for_an_unknown_topic_is_refused(record: MetadataRecord) -> None:
    with pytest.raises(ValueError, match="topic id that does not exist"):
        replayed(state_of(TWO), record)


def test_the_initial_delta_contains_the_image_without_producer_ids() -> None:
    changes = (
        TWO, CreatePartitions("t", 3), AlterConfigs(BROKER, "1", {"log.retention.ms": "7"}),
        AlterClientQuotas(USER, {"producer_byte_rate": 1.0}), CREDENTIAL, AllocateProducerIds(1),
    )  # fmt: skip
    state = state_of(*changes)
    delta = Delta.of(state)
    assert delta.is_initial
    assert named(delta) == {
        "created": [("t", 3)],
        "configs": [(TOPIC, "t"), (BROKER, "1")],
        "quotas": [USER],
        "users": ["u"],
        "features": list(state.features),
    }, "producer ids that were allocated before the restart may be in use"
    assert ProducerIdsRecord not in map(type, delta.producer_ids)
