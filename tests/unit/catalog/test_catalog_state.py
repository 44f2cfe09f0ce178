"""The catalogue: requests write records, records create topics, and replayed state equals live state."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.metadata.lone_broker import BeginEpochs, RaiseEpochs
from odradek.catalog import records
from odradek.catalog.credentials import AlterCredential
from odradek.catalog.records import PartitionChangeRecord
from odradek.catalog.state import (
    BROKER,
    PRODUCER_ID_BLOCK,
    TOPIC,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    CatalogState,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    check_topic_name,
)
from odradek.core.access.credential import Credential
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError


def make_id(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


class Catalogue:
    """A shard and its log."""

    def __init__(self) -> None:
        self.state = self.fresh()
        self.log: list[bytes] = []

    @staticmethod
    def fresh() -> CatalogState:
        return CatalogState(make_id, (1,), uuid.UUID(int=9))

    def apply(self, request):
        """Writes and replays the records that the request generates, and returns them."""
        generated = result_of(self.state.generate(request))
        for record in generated:
            value = records.encode(record)
            self.state.replay(len(self.log), value)
            self.log.append(value)
        return generated

    def create(self, name: str, count: int = 1, **more) -> None:
        self.apply(CreateTopic(name, uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}{len(self.log)}"), count, 1, **more))

    def replayed(self) -> CatalogState:
        shard = self.fresh()
        for offset, value in enumerate(self.log):
            shard.replay(offset, value)
        return shard


def state(shard: CatalogState):
    return shard.topics, shard.topics_by_id, shard.configs, shard.quotas, shard.next_producer_id


def refused(catalogue: Catalogue, request) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        catalogue.apply(request)
    return caught.value.code


def test_a_new_topic_has_its_partitions_settings_and_id() -> None:
    catalogue = Catalogue()
    catalogue.create("flights", 3, configs={"retention.ms": "5"})
    topic = catalogue.state.topics["flights"]
    assert [(p.partition_id, p.leader, p.replicas, p.leader_epoch) for p in topic.partitions] == [
        (0, 1, (1,), 0),
        (1, 1, (1,), 0),
        (2, 1, (1,), 0),
    ]
    assert catalogue.state.topics_by_id[topic.id] is topic
    assert catalogue.state.topic_configs("flights") == {"retention.ms": "5"}


def test_only_replay_changes_state() -> None:
    shard = Catalogue.fresh()
    assert len(result_of(shard.generate(CreateTopic("flights", uuid.UUID(int=1), 3, 1)))) == 4
    assert len(result_of(shard.generate(AllocateProducerIds(1)))) == 1
    assert state(shard) == state(Catalogue.fresh())


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda t: CreateTopic("flights", t, 1, 1), ErrorCode.topic_already_exists),
        (lambda t: CreateTopic("fli_ghts", t, 1, 1), ErrorCode.none),
        (lambda t: CreateTopic("a.b", t, 1, 1), ErrorCode.invalid_topic_exception),  # collides with a_b
        (lambda t: CreateTopic("bad name", t, 1, 1), ErrorCode.invalid_topic_exception),
        (lambda t: CreateTopic("x", t, 0, 1), ErrorCode.invalid_partitions),
        (lambda t: CreateTopic("x", t, 10_001, 1), ErrorCode.policy_violation),
        (lambda t: CreateTopic("x", t, 1, 0), ErrorCode.invalid_replication_factor),
        (lambda t: CreateTopic("x", t, 1, 3), ErrorCode.invalid_replication_factor),
        (lambda t: CreateTopic("x", t, -1, -1, {0: (2,)}), ErrorCode.invalid_replica_assignment),
        (lambda t: CreateTopic("x", t, -1, -1, {1: (1,)}), ErrorCode.invalid_replica_assignment),
        (lambda t: CreateTopic("x", t, -1, -1, {0: (1, 1)}), ErrorCode.invalid_replica_assignment),
        (lambda t: CreateTopic("x", t, -1, -1, {0: ()}), ErrorCode.invalid_replica_assignment),
        (lambda t: CreateTopic("x", t, -1, -1, {0: (1,), 1: (1,)}), ErrorCode.none),
        (DeleteTopic, ErrorCode.unknown_topic_id),
        (lambda t: CreatePartitions("nope", 5), ErrorCode.unknown_topic_or_partition),
        (lambda t: CreatePartitions("flights", 2), ErrorCode.invalid_partitions),
        (lambda t: CreatePartitions("flights", 1), ErrorCode.invalid_partitions),
        (lambda t: CreatePartitions("flights", 4, ((1,),)), ErrorCode.invalid_replica_assignment),
        (lambda t: CreatePartitions("flights", 3, ((7,),)), ErrorCode.invalid_replica_assignment),
        (lambda t: AlterConfigs(TOPIC, "nope", {}), ErrorCode.unknown_topic_or_partition),
    ],
)
def test_refused_requests_have_their_codes_and_change_nothing_and_valid_ones_write_records(request_of, code) -> None:
    catalogue = Catalogue()
    catalogue.create("flights", 2)
    catalogue.create("a_b")
    length = len(catalogue.log)
    request = request_of(uuid.UUID(int=77))
    if code is ErrorCode.none:
        catalogue.apply(request)
        assert len(catalogue.log) > length
    else:
        assert refused(catalogue, request) is code
        assert len(catalogue.log) == length


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_legal_names_are_accepted(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "ä", "a/b", "a\n"])
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(KafkaError):
        check_topic_name(name)


def test_names_that_collide_with_existing_topics_are_refused() -> None:
    catalogue = Catalogue()
    catalogue.create("a.b")
    for shard in (catalogue.state, catalogue.replayed()):
        catalogue.state = shard
        assert refused(catalogue, CreateTopic("a_b", uuid.UUID(int=9), 1, 1)) is ErrorCode.invalid_topic_exception
    catalogue.apply(DeleteTopic(catalogue.state.topics["a.b"].id))
    catalogue.create("a_b")
    assert refused(catalogue, CreateTopic("a.b", uuid.UUID(int=9), 1, 1)) is ErrorCode.invalid_topic_exception


@pytest.mark.claim(55, part=True)
def test_a_deleted_topic_loses_its_settings() -> None:
    # claim 55 (the topic's side): a topic that is created again has a new id
    catalogue = Catalogue()
    catalogue.create("flights", configs={"retention.ms": "5"})
    first = catalogue.state.topics["flights"].id
    catalogue.apply(DeleteTopic(first))
    assert not catalogue.state.topics
    assert not catalogue.state.configs
    catalogue.create("flights")
    assert catalogue.state.topics["flights"].id != first
    assert catalogue.state.topic_configs("flights") == {}


def test_producer_ids_are_allocated_in_blocks_that_do_not_overlap() -> None:
    catalogue = Catalogue()
    first, second = (catalogue.apply(AllocateProducerIds(1))[0].next_producer_id for _ in range(2))
    assert second - first == PRODUCER_ID_BLOCK
    assert catalogue.replayed().next_producer_id == second


names = st.sampled_from(["a", "b", "c"])
actions = st.one_of(
    st.tuples(st.just("create"), names, st.integers(1, 4)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("grow"), names, st.integers(1, 6)),
    st.tuples(st.just("alter"), names, st.sampled_from(["retention.ms", "segment.ms"]), st.none() | st.just("7")),
    st.tuples(st.just("broker"), st.just(""), st.just("log.retention.ms"), st.none() | st.just("9")),
    st.tuples(st.just("quota"), names, st.sampled_from(["producer_byte_rate", "x"]), st.none() | st.just(7.5)),
    st.tuples(st.just("ids")),
)


@given(st.lists(actions, max_size=30))
def test_replayed_state_equals_live_state(steps) -> None:
    catalogue = Catalogue()
    for step in steps:
        try:
            match step:
                case ("create", name, count):
                    catalogue.create(name, count)
                case ("delete", name):
                    topic = catalogue.state.topics.get(name)
                    catalogue.apply(DeleteTopic(topic.id if topic else uuid.UUID(int=404)))
                case ("grow", name, count):
                    catalogue.apply(CreatePartitions(name, count))
                case ("alter", name, setting, value):
                    catalogue.apply(AlterConfigs(TOPIC, name, {setting: value}))
                case ("quota", name, key, limit):
                    catalogue.apply(AlterClientQuotas((("user", name),), {key: limit}))
                case ("broker", name, setting, value):
                    catalogue.apply(AlterConfigs(BROKER, name, {setting: value}))
                case _:
                    catalogue.apply(AllocateProducerIds(1))
        except KafkaError:
            pass
        assert state(catalogue.replayed()) == state(catalogue.state)


def test_quotas_are_set_changed_and_removed() -> None:
    catalogue = Catalogue()
    entity = (("client-id", "c"), ("user", None))
    catalogue.apply(AlterClientQuotas(entity, {"producer_byte_rate": 5.0, "request_percentage": 1.0}))
    catalogue.apply(AlterClientQuotas(entity, {"producer_byte_rate": 6.0, "request_percentage": None}))
    assert catalogue.state.quotas == {entity: {"producer_byte_rate": 6.0}}
    written = len(catalogue.log)
    catalogue.apply(AlterClientQuotas(entity, {"producer_byte_rate": 6.0, "consumer_byte_rate": None}))
    assert len(catalogue.log) == written  # no change, so no record
    catalogue.apply(AlterClientQuotas(entity, {"producer_byte_rate": None}))
    assert catalogue.state.quotas == {}
    assert catalogue.replayed().quotas == {}


def test_every_partition_gets_the_new_leader_epoch() -> None:
    catalogue = Catalogue()
    catalogue.create("a", 2)
    catalogue.apply(BeginEpochs())
    catalogue.create("b")
    catalogue.apply(BeginEpochs())
    for shard in (catalogue.state, catalogue.replayed()):
        epochs = {name: [one.leader_epoch for one in topic.partitions] for name, topic in shard.topics.items()}
        assert epochs == {"a": [2, 2], "b": [1]}
        assert {one.leader for topic in shard.topics.values() for one in topic.partitions} == {1}


def test_a_change_of_an_unknown_partition_is_refused() -> None:
    catalogue = Catalogue()
    catalogue.create("a")
    change = records.encode(PartitionChangeRecord(1, catalogue.state.topics["a"].id, 1))
    with pytest.raises(ValueError, match="metadata record at offset 9 names a partition that does not exist"):
        catalogue.state.replay(9, change)


def test_leader_epochs_can_be_raised_for_one_partition() -> None:
    catalogue = Catalogue()
    catalogue.create("a", 3)
    catalogue.apply(RaiseEpochs({("a", 1): 7}))
    for shard in (catalogue.state, catalogue.replayed()):
        assert [one.leader_epoch for one in shard.topics["a"].partitions] == [0, 7, 0]
        assert [one.partition_id for one in shard.topics["a"].partitions] == [0, 1, 2]
    for unknown in (("b", 0), ("a", 3), ("a", -1)):
        assert refused(catalogue, RaiseEpochs({unknown: 1})) is ErrorCode.unknown_topic_or_partition


def test_forms_of_credentials_are_counted_as_users_change() -> None:
    catalogue = Catalogue()
    for number in range(3):
        catalogue.apply(AlterCredential(f"u{number}", 1, Credential(b"s" * 16, b"k", b"k", 4096)))
    catalogue.apply(AlterCredential("u0", 1, Credential(b"s" * 26, b"k", b"k", 8192)))
    catalogue.apply(AlterCredential("u1", 1, None))
    for shard in (catalogue.state, catalogue.replayed()):
        places = [shard.forms[1].at(step * (1 << 64) // 4) for step in range(4)]
        forms = ((16, "base 36"), 4096), ((26, "base 36"), 8192)
        assert places == [forms[0], forms[0], forms[1], forms[1]]
        assert 2 not in shard.forms
