"""The types of a consumer's settings, for editors and type checkers (``client/settings``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from odradek.client.group.assignors import Assignor


class ConsumerSettings(TypedDict, total=False):
    """The settings of ``Consumer``. Times in milliseconds, sizes in bytes."""

    bootstrap_servers: str | list[str] | tuple[str, ...]
    group_id: str | None
    group_instance_id: str | None
    client_id: str
    client_rack: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    isolation_level: str
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    group_protocol: str
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Assignor | type[Assignor] | Iterable[str | Assignor | type[Assignor]]
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    buffer_memory: int
    check_crcs: bool
    request_timeout_ms: int
    default_api_timeout_ms: int
    bootstrap_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    allow_auto_create_topics: bool
    receive_message_max_bytes: int
    columns: tuple[str, ...]
