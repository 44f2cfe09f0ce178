"""The registrations of nodes: checks and codes of Kafka's controller, and the state after records."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from odradek.catalog.features import AT_FIRST
from odradek.cluster.nodes.registrations import MIGRATING, UNASSIGNED, NewBroker, NewController, Registrations
from odradek.cluster.records import (
    BrokerRegistrationChangeRecord,
    Endpoint,
    FeatureRange,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from odradek.core.errors import ErrorCode, KafkaError

CLUSTER = "c"
ENDPOINTS = (Endpoint("PLAINTEXT", "h", 9092, 0),)
FEATURES = tuple(FeatureRange(name, 0, level) for name, level in AT_FIRST.items())
DIR_A, DIR_B, NEGATIVE = UUID(int=1 << 70), UUID(int=1 << 71), UUID(int=0xFF << 120)


def request(broker_id: int = 1, incarnation: int = 100, **changes: Any) -> NewBroker:
    made = NewBroker(broker_id, CLUSTER, UUID(int=incarnation), ENDPOINTS, FEATURES, None, (UUID(int=broker_id << 64),))
    return made._replace(**changes)


def record_of(
    nodes: Registrations, asked: NewBroker, *, offset: int = 10, has_session: bool = False
) -> RegisterBrokerRecord:
    return nodes.new_broker(asked, CLUSTER, AT_FIRST, offset, has_session=has_session)


def code_of(nodes: Registrations, asked: NewBroker, *, has_session: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        record_of(nodes, asked, has_session=has_session)
    return raised.value.code


def with_broker(broker_id: int = 1, **changes: Any) -> Registrations:
    nodes = Registrations()
    nodes.apply(10, record_of(nodes, request(broker_id, **changes)))
    return nodes


def test_a_broker_is_fenced_and_its_epoch_is_the_offset_of_the_next_record() -> None:
    nodes = Registrations()
    record = record_of(nodes, request(rack="ra"), offset=12)
    assert (record.broker_epoch, record.is_fenced, record.rack) == (12, True, "ra")
    nodes.apply(14, record)
    broker = nodes.brokers[1]
    assert (broker.epoch, broker.is_active, nodes.registered_at[1]) == (12, False, 14)
    assert nodes.check_epoch(1, 12) == broker
    for asked in ((1, 11), (2, 12)):
        with pytest.raises(KafkaError) as raised:
            nodes.check_epoch(*asked)
        assert raised.value.code is ErrorCode.stale_broker_epoch


def test_the_same_incarnation_keeps_its_epoch_and_its_state() -> None:
    nodes = with_broker()
    nodes.apply(11, BrokerRegistrationChangeRecord(1, 10, is_fenced=False))
    nodes.apply(12, BrokerRegistrationChangeRecord(1, 10, begins_shutdown=True, cordoned=()))
    again = record_of(nodes, request(rack="rb"), offset=20, has_session=True)
    assert (again.broker_epoch, again.is_fenced, again.is_shutting_down, again.rack) == (10, False, True, "rb")
    nodes.apply(20, again)
    assert nodes.registered_at[1] == 20
    other = record_of(nodes, request(incarnation=101), offset=30)
    assert (other.broker_epoch, other.is_fenced, other.is_shutting_down) == (30, True, False)


def test_another_incarnation_waits_for_the_end_of_the_session() -> None:
    nodes = with_broker()
    assert code_of(nodes, request(incarnation=101), has_session=True) is ErrorCode.duplicate_broker_registration
    assert record_of(nodes, request(incarnation=101)).broker_epoch == 10


REFUSED: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "another cluster": ({"cluster_id": "d"}, ErrorCode.inconsistent_cluster_id),
    "from ZooKeeper": ({"is_migrating": True}, ErrorCode.broker_id_not_registered),
    "no directory": ({"directories": ()}, ErrorCode.invalid_registration),
    "a reserved directory": ({"directories": (UUID(int=99),)}, ErrorCode.invalid_registration),
    "a reserved directory with a sign": ({"directories": (UUID(int=1 << 63),)}, ErrorCode.invalid_registration),
    "a directory twice": ({"directories": (DIR_A, DIR_A)}, ErrorCode.invalid_registration),
    "no metadata.version": ({"features": FEATURES[1:]}, ErrorCode.invalid_registration),
    "an older metadata.version": (
        {"features": (FeatureRange("metadata.version", 7, 29), *FEATURES[1:])},
        ErrorCode.unsupported_version,
    ),
    "a newer metadata.version": (
        {"features": (FeatureRange("metadata.version", 31, 32), *FEATURES[1:])},
        ErrorCode.unsupported_version,
    ),
    "a feature that is missing": ({"features": FEATURES[:1]}, ErrorCode.unsupported_version),
    "an unknown feature above 0": (
        {"features": (*FEATURES, FeatureRange("x.version", 1, 2))},
        ErrorCode.unsupported_version,
    ),
    "an unknown protocol": ({"endpoints": (Endpoint("P", "h", 1, 9),)}, ErrorCode.unknown_server_error),
    "port 0": ({"endpoints": (Endpoint("P", "h", 0, 0),)}, ErrorCode.unknown_server_error),
    "no host": ({"endpoints": (Endpoint("P", "", 1, 0),)}, ErrorCode.unknown_server_error),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_registration_is_refused(name: str) -> None:
    changes, code = REFUSED[name]
    assert code_of(Registrations(), request(**changes)) is code


def test_a_directory_belongs_to_one_broker() -> None:
    nodes = with_broker(1, directories=(DIR_A, DIR_B))
    with pytest.raises(KafkaError, match=f"Broker 1 is already registered with directory {DIR_B}") as raised:
        record_of(nodes, request(2, directories=(DIR_B,)))
    assert raised.value.code is ErrorCode.invalid_registration
    nodes.apply(11, BrokerRegistrationChangeRecord(1, 10, directories=(DIR_A,)))
    nodes.apply(12, record_of(nodes, request(2, directories=(DIR_B,)), offset=12))
    assert nodes.directory_owners == {DIR_A: 1, DIR_B: 2}
    nodes.apply(13, UnregisterBrokerRecord(2, 12))
    assert nodes.directory_owners == {DIR_A: 1}
    assert code_of(nodes, request(3, directories=(DIR_A,))) is ErrorCode.invalid_registration
    with pytest.raises(ValueError, match="of broker 1 to broker 3"):
        nodes.apply(14, RegisterBrokerRecord(3, UUID(int=5), 14, directories=(DIR_A,)))
    nodes.apply(15, record_of(nodes, request(1, incarnation=7, directories=(DIR_B,)), offset=15))
    assert nodes.directory_owners == {DIR_B: 1}


def test_directories_are_in_the_order_of_kafkas_ids() -> None:
    nodes = with_broker(directories=(DIR_B, DIR_A, NEGATIVE))
    assert nodes.brokers[1].directories == (NEGATIVE, DIR_A, DIR_B)
    assert nodes.default_directory(1) == UNASSIGNED
    assert nodes.default_directory(2) == UNASSIGNED
    nodes.apply(11, BrokerRegistrationChangeRecord(1, 10, directories=(DIR_B,)))
    assert nodes.default_directory(1) == DIR_B.bytes
    nodes.apply(12, BrokerRegistrationChangeRecord(1, 10, directories=()))
    assert nodes.brokers[1].directories == (DIR_B,)
    nodes.apply(13, RegisterBrokerRecord(2, UUID(int=5), 13))
    assert nodes.default_directory(2) == MIGRATING


def test_a_broker_takes_replicas_unless_all_directories_are_cordoned() -> None:
    nodes = with_broker(directories=(DIR_A, DIR_B))
    assert nodes.brokers[1].takes_replicas
    for cordoned, takes in (((DIR_A,), True), ((DIR_B, DIR_A), False), ((), True)):
        nodes.apply(11, BrokerRegistrationChangeRecord(1, 10, cordoned=cordoned))
        assert nodes.brokers[1].takes_replicas == takes


def test_fences_are_set_and_lifted_by_both_forms_of_records() -> None:
    nodes = with_broker()
    for record, is_active in (
        (UnfenceBrokerRecord(1, 10), True),
        (FenceBrokerRecord(1, 10), False),
        (BrokerRegistrationChangeRecord(1, 10, is_fenced=False), True),
        (BrokerRegistrationChangeRecord(1, 10, begins_shutdown=True), False),
    ):
        nodes.apply(11, record)
        assert nodes.is_active(1) == is_active


def test_a_record_that_contradicts_the_earlier_ones_is_refused() -> None:
    nodes = with_broker()
    for record in (FenceBrokerRecord(1, 9), BrokerRegistrationChangeRecord(1, 11), UnregisterBrokerRecord(1, 9)):
        with pytest.raises(ValueError, match=r"offset 40 .*registered with epoch 10"):
            nodes.apply(40, record)
    with pytest.raises(ValueError, match="offset 41 names broker 2, which is not registered"):
        nodes.apply(41, UnfenceBrokerRecord(2, 10))
    assert nodes.brokers[1].epoch == 10


def test_a_registration_is_the_same_after_the_record_of_a_snapshot() -> None:
    nodes = with_broker(rack="ra", directories=(DIR_B, DIR_A))
    nodes.apply(11, BrokerRegistrationChangeRecord(1, 10, is_fenced=False, cordoned=(DIR_A,)))
    copy = Registrations()
    copy.apply(-1, nodes.brokers[1].record())
    assert (copy.brokers, copy.directory_owners) == (nodes.brokers, nodes.directory_owners)
    assert copy.registered_at == {1: 10}


def test_unregistering_and_controllers() -> None:
    nodes = with_broker()
    with pytest.raises(KafkaError) as raised:
        nodes.unregistered(2)
    assert raised.value.code is ErrorCode.broker_id_not_registered
    nodes.apply(11, nodes.unregistered(1))
    assert (nodes.brokers, nodes.registered_at) == ({}, {})
    asked = NewController(9, UUID(int=3), ENDPOINTS, FEATURES)
    nodes.apply(12, nodes.new_controller(asked))
    assert nodes.controllers == {9: RegisterControllerRecord(9, UUID(int=3), ENDPOINTS, FEATURES)}
    with pytest.raises(KafkaError) as raised:
        nodes.new_controller(asked._replace(endpoints=(Endpoint("P", "h", 70_000, 0),)))
    assert raised.value.code is ErrorCode.unknown_server_error
