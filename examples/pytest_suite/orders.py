"""The service under test: it reads orders as a consumer group and writes an invoice for each one."""

from __future__ import annotations

from odradek import Consumer, Producer


def write_invoices(bootstrap_servers: str, orders: str, invoices: str, group: str) -> int:
    """Writes an invoice for each order that the group has not read yet. Returns the number of invoices."""
    settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    count = 0
    with Producer(bootstrap_servers) as producer, Consumer(bootstrap_servers, **settings) as consumer:
        consumer.subscribe([orders])
        while not consumer.assignment() or any(consumer.lag().values()):
            polled = consumer.poll(0.5)
            for record in polled.records():
                producer.send(invoices, b"invoice for " + (record.value or b""), key=record.key)
                count += 1
            producer.flush()  # invoices first, then offsets: a crash between them repeats invoices and loses none
            consumer.commit(polled.next_offsets)
    return count
