"""The types of the settings of all clients but ``Consumer``, for editors and type checkers.

``client/config.ClientConfig`` has the defaults and checks the values at run time. A test holds both to the same names
and types.
"""

from __future__ import annotations

from odradek.client.security_types import SecuritySettings


class ClientSettings(SecuritySettings, total=False):
    """The settings of ``Admin``, and of the connections of a ``Producer`` or a ``PartitionReader``.

    Times in milliseconds, sizes in bytes."""

    client_id: str
    """Name of the client in requests; brokers apply quotas by it and write it into their logs."""
    request_timeout_ms: int
    """Longest time of one request. After it the connection is closed and the request is sent again."""
    default_api_timeout_ms: int
    """Longest time of a call with its retries, unless the call has a `timeout`."""
    bootstrap_timeout_ms: int
    """Not in Kafka. Longest time until the first connection opens; 0: each address gets one attempt."""
    socket_connection_setup_timeout_ms: int
    """Longest time of each attempt to open a connection."""
    retry_backoff_ms: int
    """Wait before the first retry of a failed request. Each further wait is longer."""
    retry_backoff_max_ms: int
    """The longest wait before a retry."""
    metadata_max_age_ms: int
    """Age at which the topics' partitions and leaders are looked up again."""
    max_partition_fetch_bytes: int
    """Most bytes of records of one partition in a fetch. Only for a `PartitionReader`."""
    fetch_max_wait_ms: int
    """Time that the broker may wait for the first byte of records. Only for a `PartitionReader`."""
    check_crcs: bool
    """Whether the checksums of fetched batches are checked. Only for a `PartitionReader`."""
    client_rack: str
    """Rack of the client: it reads from a replica in the same rack where brokers allow it. Only for a
    `PartitionReader`."""
    allow_auto_create_topics: bool | None
    """Whether a lookup may create a topic, on a broker with `auto.create.topics.enable`. None: true for a `Producer`,
    as in Java, and false for an `Admin`."""
    receive_message_max_bytes: int
    """Not in Kafka, but in librdkafka. Largest reply; the default grows with the limit of a fetch."""
