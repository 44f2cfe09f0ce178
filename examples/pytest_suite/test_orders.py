"""Tests with the fixtures of odradek: ``pytest examples/pytest_suite``.

With ``-n 4``, pytest-xdist runs the tests in four processes, each with a broker of its own.
"""

from __future__ import annotations

from orders import write_invoices

import odradek
from odradek import TopicPartition


def count(broker: odradek.Broker, topic: str) -> int:
    """The number of records in a topic."""
    with odradek.Consumer(broker.bootstrap_servers) as consumer:
        return sum(consumer.end_offsets(consumer.partitions_for(topic)).values())


def test_each_order_gets_an_invoice(odradek_broker: odradek.Broker, orders: str) -> None:
    assert write_invoices(odradek_broker.bootstrap_servers, orders, f"{orders}-invoices", orders) == 20
    assert count(odradek_broker, f"{orders}-invoices") == 20


def test_a_second_run_has_nothing_to_do(odradek_broker: odradek.Broker, orders: str) -> None:
    assert write_invoices(odradek_broker.bootstrap_servers, orders, f"{orders}-invoices", orders) == 20
    assert write_invoices(odradek_broker.bootstrap_servers, orders, f"{orders}-invoices", orders) == 0


def test_the_offsets_survive_a_crash_of_the_broker(odradek_broker: odradek.Broker, orders: str) -> None:
    write_invoices(odradek_broker.bootstrap_servers, orders, f"{orders}-invoices", orders)
    odradek_broker.kill()
    odradek_broker.start()
    with odradek.Admin(odradek_broker.bootstrap_servers) as admin:
        committed = admin.list_group_offsets(orders)
    assert sum(one.offset for one in committed.values()) == 20


def test_a_refused_write_is_repeated(odradek_broker: odradek.Broker, orders: str) -> None:
    invoices = f"{orders}-invoices"
    odradek_broker.create_topic(invoices)
    odradek_broker.faults.error("Produce", "NOT_ENOUGH_REPLICAS", times=2, topic=invoices)
    assert write_invoices(odradek_broker.bootstrap_servers, orders, invoices, orders) == 20
    assert count(odradek_broker, invoices) == 20
    assert len(odradek_broker.faults.fired) == 2


def test_offsets_expire_after_a_week(odradek_broker: odradek.Broker, orders: str) -> None:
    write_invoices(odradek_broker.bootstrap_servers, orders, f"{orders}-invoices", orders)
    odradek_broker.clock.advance(days=8)
    with odradek.Admin(odradek_broker.bootstrap_servers) as admin:
        assert TopicPartition(orders, 0) not in admin.list_group_offsets(orders)
