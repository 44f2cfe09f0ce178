"""The types of the settings of every client, for editors and type checkers.

``client/config.ClientConfig`` has the defaults and checks the values at run time. A test holds both to the same names
and types.
"""

from __future__ import annotations

from typing import TypedDict


class ClientSettings(TypedDict, total=False):
    """The settings of ``Admin``, and of the connections of a ``Producer``. Times in milliseconds, sizes in bytes."""

    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    bootstrap_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    max_partition_fetch_bytes: int
    fetch_max_wait_ms: int
    check_crcs: bool
    client_rack: str
    allow_auto_create_topics: bool | None
    receive_message_max_bytes: int
