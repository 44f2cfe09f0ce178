"""The types of a producer's settings, for editors and type checkers (``client/settings/setting_types``)."""

from __future__ import annotations

from odradek.client.settings.setting_types import ClientSettings


class ProducerSettings(ClientSettings, total=False):
    """The settings of ``Producer``. Times in milliseconds, sizes in bytes."""

    acks: str | int
    """`all`: a batch is delivered when all in-sync replicas have it; `1`: when the leader has it; `0`: when it is
    written to a connection."""
    enable_idempotence: bool
    """Whether the broker drops repeated batches, so that each record is in the log once and in order. Needs
    `acks=all`."""
    compression_type: str
    """Codec of batches: `none`, `gzip`, `snappy`, `lz4` or `zstd`."""
    batch_size: int
    """Size of a batch at which it is sent without a wait for `linger_ms`."""
    linger_ms: int
    """Time for which a batch waits for further records."""
    retries: int
    """How often a batch is sent again within `delivery_timeout_ms`."""
    delivery_timeout_ms: int
    """Time from `send` until a record is delivered or given up."""
    max_in_flight_requests_per_connection: int
    """Most unanswered batches of one partition, 1 to 5."""
    max_block_ms: int
    """Longest wait of `send` for memory, and of each call of a transaction."""
    buffer_memory: int
    """Memory for records that are not delivered yet. `send` waits while it is full."""
    max_request_size: int
    """Size of the largest record."""
    transactional_id: str | None
    """Name of a transactional producer. A new producer with the name ends the transaction of the earlier one and takes
    its place."""
    transaction_timeout_ms: int
    """Age at which the broker aborts an open transaction."""
