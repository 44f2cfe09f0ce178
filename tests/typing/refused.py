"""Settings and arguments that type checkers refuse, one in each line that ends with ``# refused``.

``test_settings_types`` reads this file.
"""

from __future__ import annotations

import odradek
import odradek.aio


def clients(servers: str) -> None:
    odradek.Consumer(bootstrap_serverz=servers)  # refused
    odradek.Consumer(servers, max_poll_records="lots")  # refused
    odradek.Consumer(servers, enable_auto_commit="no")  # refused
    odradek.Producer(servers, linger_mss=20)  # refused
    odradek.Producer(servers, batch_size="16k")  # refused
    odradek.Admin(servers, request_timeout_ms="1s")  # refused
    odradek.Admin(servers, group_id="g")  # refused
    odradek.aio.Consumer(servers, group="g")  # refused
    odradek.aio.Producer(servers, acks=None)  # refused
    odradek.aio.Admin(servers, client=1)  # refused


def limits(consumer: odradek.Consumer) -> None:
    consumer.commit(timeout="1")  # refused
    consumer.close(5)  # refused
