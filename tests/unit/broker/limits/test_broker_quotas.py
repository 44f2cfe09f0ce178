"""Quotas: the clients that they apply to, rates over windows, and permits that are refilled over time."""

from __future__ import annotations

import pytest

from odradek.broker.limits.quotas import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaRate,
    Quotas,
)
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import Entity
from odradek.core.errors import KafkaError
from odradek.wire import schemas
from odradek.wire.offset_replies import CommittedTopic, offset_commit_reply
from odradek.wire.produce_fetch_replies import ProducedPartition, fetch_reply, produce_reply
from odradek.wire.schemas import Kind, milliseconds
from odradek.wire.throttle_time import with_throttle_time


class Clock:
    ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def quotas(clock: Clock, limits: dict[Entity, dict[str, float]]) -> Quotas:
    made = Quotas(BrokerConfig(), clock)
    made.replace(limits)
    return made


# --- rates ------------------------------------------------------------------------------------------------------


def test_a_young_rate_is_divided_by_all_windows_but_one() -> None:
    rate = QuotaRate(11, 1000)
    rate.record(0, 5000)
    assert rate.measure(0) == (500.0, 10_000.0)
    assert rate.measure(500) == (5000 * 1000 / 10_500, 10_500.0)
    assert rate.measure(10_500) == (5000 * 1000 / 10_500, 10_500.0)


def test_samples_older_than_all_windows_do_not_count() -> None:
    rate = QuotaRate(11, 1000)
    rate.record(0, 5000)
    rate.record(5000, 1000)
    assert rate.measure(11_000)[0] == pytest.approx(1000 * 1000 / 10_000)
    assert rate.ends_at_ms == 16_000
    assert rate.measure(16_000)[0] == 0


def test_each_window_has_one_sample() -> None:
    rate = QuotaRate(3, 1000)
    for at_ms in range(0, 10_000, 100):
        rate.record(at_ms, 10)
    assert rate.measure(9900)[0] == pytest.approx(300 * 1000 / 2900)


def test_the_throttle_time_ends_when_the_rate_is_at_its_limit_again() -> None:
    rate = QuotaRate(11, 1000)
    rate.record(0, 10_500)
    assert rate.throttle_ms(0, 1000) == 500
    assert rate.throttle_ms(400, 1000) == 100
    assert rate.throttle_ms(500, 1000) == 0
    rate.record(600, 9500)
    assert rate.throttle_ms(600, 1000) == round((20_000 / 10.6 - 1000) / 1000 * 10_600)


# --- quotas and clients -----------------------------------------------------------------------------------------

LEVELS: list[tuple[Entity, tuple[str, str | None, str | None]]] = [
    ((("client-id", "c"), ("user", "u")), ("u", "c")),
    ((("client-id", None), ("user", "u")), ("u", "c")),
    ((("user", "u"),), ("u", None)),
    ((("client-id", "c"), ("user", None)), ("u", "c")),
    ((("client-id", None), ("user", None)), ("u", "c")),
    ((("user", None),), ("u", None)),
    ((("client-id", "c"),), (None, "c")),
    ((("client-id", None),), (None, "c")),
]


@pytest.mark.parametrize("strongest", range(len(LEVELS)))
def test_the_first_existing_quota_in_kafkas_order_applies(clock: Clock, strongest: int) -> None:
    limits = {entity: {PRODUCER_BYTE_RATE: float(100 + place)} for place, (entity, _) in enumerate(LEVELS)}
    kept = dict(list(limits.items())[strongest:])
    bound = quotas(clock, kept).binding(PRODUCER_BYTE_RATE, "u", "c")
    assert bound is not None
    assert bound.limit == 100 + strongest
    assert bound.bucket == (PRODUCER_BYTE_RATE, *LEVELS[strongest][1])


def test_quotas_do_not_apply_to_other_clients(clock: Clock) -> None:
    found = quotas(clock, {(("client-id", "c"),): {PRODUCER_BYTE_RATE: 1.0}})
    assert found.has_quota(PRODUCER_BYTE_RATE)
    assert not found.has_quota(REQUEST_PERCENTAGE)
    assert found.binding(PRODUCER_BYTE_RATE, "u", "other") is None
    assert found.binding(PRODUCER_BYTE_RATE, "u", None) is None
    assert found.record(PRODUCER_BYTE_RATE, "u", "other", 1e9) == 0
    assert found.record(REQUEST_PERCENTAGE, "u", "c", 1e9) == 0


def test_a_user_quota_is_one_rate_for_all_clients_and_a_client_id_quota_one_for_each_id(clock: Clock) -> None:
    shared = quotas(clock, {(("user", "u"),): {PRODUCER_BYTE_RATE: 1000.0}})
    assert shared.record(PRODUCER_BYTE_RATE, "u", "a", 9000) == 0
    assert shared.record(PRODUCER_BYTE_RATE, "u", "b", 9000) == 8000
    single = quotas(clock, {(("client-id", None),): {PRODUCER_BYTE_RATE: 1000.0}})
    assert single.record(PRODUCER_BYTE_RATE, "u", "a", 9000) == 0
    assert single.record(PRODUCER_BYTE_RATE, "u", "b", 9000) == 0


def test_a_changed_limit_applies_at_once_and_earlier_use_counts(clock: Clock) -> None:
    entity: Entity = (("client-id", "c"),)
    found = quotas(clock, {entity: {PRODUCER_BYTE_RATE: 10_000.0}})
    assert found.record(PRODUCER_BYTE_RATE, "u", "c", 50_000) == 0
    found.replace({entity: {PRODUCER_BYTE_RATE: 1000.0}})
    assert found.record(PRODUCER_BYTE_RATE, "u", "c", 0) == 40_000
    found.replace({})
    assert found.record(PRODUCER_BYTE_RATE, "u", "c", 1e9) == 0


def test_request_time_throttles_for_at_most_one_window(clock: Clock) -> None:
    found = quotas(clock, {(("client-id", "c"),): {REQUEST_PERCENTAGE: 1.0}})
    assert found.record(REQUEST_PERCENTAGE, "u", "c", 5.0) == 0
    assert found.record(REQUEST_PERCENTAGE, "u", "c", 1e6) == 1000


def test_rates_of_inactive_clients_are_removed(clock: Clock) -> None:
    found = quotas(clock, {(("client-id", None),): {PRODUCER_BYTE_RATE: 1000.0}})
    for number in range(5000):
        clock.ms += 100
        found.record(PRODUCER_BYTE_RATE, "u", f"client-{number}", 1)
    assert len(found.rates) <= 1001


def test_permits_of_inactive_clients_are_removed_unless_overdrawn(clock: Clock) -> None:
    found = quotas(clock, {(("client-id", None),): {CONTROLLER_MUTATION_RATE: 1.0}})
    found.mutate("u", "debtor", 1_000_000, strict=False)
    for number in range(3000):
        clock.ms += 100
        found.mutate("u", f"client-{number}", 1, strict=True)
    assert len(found.permits) <= 1001
    with pytest.raises(KafkaError, match="THROTTLING_QUOTA_EXCEEDED"):
        found.mutate("u", "debtor", 1, strict=True)


# --- permits ----------------------------------------------------------------------------------------------------


def test_permits_may_be_overdrawn_once_and_are_refilled_over_time(clock: Clock) -> None:
    found = quotas(clock, {(("client-id", "c"),): {CONTROLLER_MUTATION_RATE: 2.0}})
    found.mutate("u", "c", 22, strict=True)
    assert found.mutation_throttle_ms("u", "c") == 0
    found.mutate("u", "c", 10, strict=True)
    assert found.mutation_throttle_ms("u", "c") == 5000
    with pytest.raises(KafkaError, match="THROTTLING_QUOTA_EXCEEDED"):
        found.mutate("u", "c", 1, strict=True)
    assert found.mutation_throttle_ms("u", "c") == 5000
    found.mutate("u", "c", 2, strict=False)
    assert found.mutation_throttle_ms("u", "c") == 6000
    clock.ms += 6000
    found.mutate("u", "c", 1, strict=True)
    clock.ms += 3_600_000
    found.mutate("u", "c", 22, strict=True)
    assert found.mutation_throttle_ms("u", "c") == 0
    found.mutate("someone", "else", 1000, strict=True)


def test_the_rate_of_connections_from_an_address_is_limited(clock: Clock) -> None:
    found = quotas(clock, {(("ip", None),): {CONNECTION_CREATION_RATE: 1.0}, (("ip", "::1"),): {
        CONNECTION_CREATION_RATE: 3.0}})  # fmt: skip
    assert [bool(found.count_connection("127.0.0.1")) for _ in range(12)] == [False] * 10 + [True] * 2
    assert [bool(found.count_connection("::1")) for _ in range(31)] == [False] * 30 + [True]
    clock.ms += 12_000
    assert found.count_connection("127.0.0.1") == 0
    assert quotas(clock, {}).count_connection("127.0.0.1") == 0


# --- throttle times in replies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
def test_a_directly_encoded_produce_reply_has_the_throttle_time(version: int) -> None:
    topic = b"\1" * 16 if version >= 13 else "t"
    reply = produce_reply(version, [(topic, [ProducedPartition(0, base_offset=7)])])
    found, _ = schemas.decode(0, version, Kind.RESPONSE, with_throttle_time(0, version, reply, 1234))
    assert milliseconds(found.throttle_time) == 1234
    assert found.responses[0].partition_responses[0].base_offset == 7


@pytest.mark.parametrize("version", range(4, 19))
def test_a_directly_encoded_fetch_reply_has_the_throttle_time(version: int) -> None:
    chunks = with_throttle_time(1, version, fetch_reply(version, (), session_id=9), 1234)
    found, _ = schemas.decode(1, version, Kind.RESPONSE, b"".join(chunks))
    assert milliseconds(found.throttle_time) == 1234


@pytest.mark.parametrize("version", range(2, 11))
def test_a_directly_encoded_commit_reply_has_the_throttle_time(version: int) -> None:
    reply = with_throttle_time(8, version, offset_commit_reply(version, [CommittedTopic("t", None, [0, 0])]), 1234)
    found, _ = schemas.decode(8, version, Kind.RESPONSE, reply)
    assert version < 3 or milliseconds(found.throttle_time) == 1234
    assert found.topics[0].partitions[0].error_code == 0


def test_mappings_get_the_throttle_time_and_other_encoded_replies_do_not_change() -> None:
    assert with_throttle_time(12, 4, {"error_code": 0}, 5) == {"error_code": 0, "throttle_time": 5}
    assert with_throttle_time(12, 4, b"packed", 5) == b"packed"
