"""Settings that type checkers accept (test_settings_types)."""

from __future__ import annotations

from typing import Any

import odradek
import odradek.aio
from odradek.client.consumer.setting_types import ConsumerSettings

SETTINGS: ConsumerSettings = {"group_id": "g", "max_poll_records": 100}


def clients(servers: str, unknown: dict[str, Any]) -> None:
    odradek.Consumer(bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    odradek.Consumer({"bootstrap.servers": servers, "max.poll.records": "100"})
    odradek.Consumer(servers, **SETTINGS)
    odradek.Consumer(servers, **unknown)
    odradek.Consumer([servers], partition_assignment_strategy=["range", "cooperative-sticky"])
    odradek.Producer(servers, acks=1, linger_ms=20, compression_type="zstd", client_id="p")
    odradek.Admin(servers, request_timeout_ms=1_000)
    odradek.aio.Consumer(bootstrap_servers=servers, isolation_level="read_committed")
    odradek.aio.Producer(servers, transactional_id="t")
    odradek.aio.Admin(servers, client_id="a")


def limits(consumer: odradek.Consumer) -> None:
    consumer.commit(timeout=1.5)
    consumer.close(timeout=2)
