"""The types of a producer's settings, for editors and type checkers (``client/settings``)."""

from __future__ import annotations

from odradek.client.settings import ClientSettings


class ProducerSettings(ClientSettings, total=False):
    """The settings of ``Producer``. Times in milliseconds, sizes in bytes."""

    acks: str | int
    enable_idempotence: bool
    compression_type: str
    batch_size: int
    linger_ms: int
    retries: int
    delivery_timeout_ms: int
    max_in_flight_requests_per_connection: int
    max_block_ms: int
    buffer_memory: int
    max_request_size: int
    transactional_id: str | None
    transaction_timeout_ms: int
