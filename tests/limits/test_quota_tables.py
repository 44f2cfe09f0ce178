"""Quotas: work and memory in the broker for clients that use a new client id with each request."""

from __future__ import annotations

import pytest
from counters import bytes_kept, lines_run

from odradek.broker.limits.quotas import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    Quotas,
)
from odradek.broker.settings.config import BrokerConfig
from odradek.core.errors import KafkaError

CLIENTS = 12_000
ENTRIES_KEPT = 10_000


class Clock:
    ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def limited(clock: Clock) -> Quotas:
    quotas = Quotas(BrokerConfig(), clock)
    quotas.replace(
        {
            (("client-id", None),): {PRODUCER_BYTE_RATE: 1e6, CONTROLLER_MUTATION_RATE: 10.0},
            (("ip", None),): {CONNECTION_CREATION_RATE: 10.0},
        }
    )
    return quotas


def entries(quotas: Quotas) -> tuple[int, int, int]:
    return len(quotas.rates), len(quotas.permits), len(quotas.bindings)


@pytest.mark.parametrize("known", [5_000, CLIENTS])
def test_the_work_for_a_new_client_is_independent_of_the_number_of_clients(known: int) -> None:
    clock = Clock()
    quotas = limited(clock)

    def ask(name: str) -> None:
        quotas.record(PRODUCER_BYTE_RATE, "u", name, 100)
        quotas.mutate("u", name, 1, strict=True)
        quotas.count_connection(name)

    alone = lines_run(lambda: ask("first"))
    for number in range(known):
        ask(f"client-{number}")
    clock.ms += 1
    assert max(lines_run(lambda name=f"later-{n}": ask(name)) for n in range(20)) < alone + 200
    clock.ms += 3_600_000  # the entries of all these clients have expired
    assert max(lines_run(lambda name=f"last-{n}": ask(name)) for n in range(20)) < alone + 200


def test_all_tables_are_limited_and_the_first_entries_to_expire_are_removed() -> None:
    clock = Clock()
    quotas = limited(clock)
    quotas.mutate("u", "debtor", 1_000_000, strict=False)
    for number in range(CLIENTS):
        clock.ms += number % 2
        quotas.record(PRODUCER_BYTE_RATE, "u", f"client-{number}", 1e6)
        quotas.mutate("u", f"client-{number}", 1, strict=True)
    assert max(entries(quotas)) <= ENTRIES_KEPT
    with pytest.raises(KafkaError, match="THROTTLING_QUOTA_EXCEEDED"):
        quotas.mutate("u", "debtor", 1, strict=True)
    # The use of the last clients still counts. The entries of the first clients were removed.
    assert quotas.record(PRODUCER_BYTE_RATE, "u", f"client-{CLIENTS - 1}", 1e7) > 0
    assert quotas.record(PRODUCER_BYTE_RATE, "u", "client-0", 1e7) == 0


def test_each_new_client_removes_a_few_inactive_ones() -> None:
    clock = Clock()
    quotas = limited(clock)
    for number in range(8_000):
        quotas.record(PRODUCER_BYTE_RATE, "u", f"client-{number}", 1)
    clock.ms += 60_000
    for number in range(4_000):
        quotas.record(PRODUCER_BYTE_RATE, "u", f"other-{number}", 1)
    assert len(quotas.rates) <= 4_000


def test_a_rate_in_use_stays_while_others_expire() -> None:
    clock = Clock()
    quotas = limited(clock)
    quotas.record(PRODUCER_BYTE_RATE, "u", "steady", 9e6)
    for number in range(3 * ENTRIES_KEPT):
        if number % 100 == 0:
            clock.ms += 200
            quotas.record(PRODUCER_BYTE_RATE, "u", "steady", 2e5)
        quotas.record(PRODUCER_BYTE_RATE, "u", f"client-{number}", 1)
    assert quotas.record(PRODUCER_BYTE_RATE, "u", "steady", 2e6) > 0


def test_the_memory_of_long_client_ids_is_limited() -> None:
    clock = Clock()
    quotas = limited(clock)

    def ask() -> None:
        for number in range(2_000):
            name = f"{number:05}" * 6_000  # 30 KB, 60 MB in all
            quotas.record(PRODUCER_BYTE_RATE, "u", name, 1)
            quotas.mutate("u", name, 1, strict=True)

    assert bytes_kept(ask) < 4 << 20
    name = "00001" * 6_000
    quotas.record(PRODUCER_BYTE_RATE, "u", name, 2e7)
    assert quotas.record(PRODUCER_BYTE_RATE, "u", name, 0) > 0  # each name is a different client
    assert quotas.record(PRODUCER_BYTE_RATE, "u", "00002" * 6_000, 0) == 0
