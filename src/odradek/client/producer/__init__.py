"""``Producer``: settings, batches by partition, and the requests that send them."""

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.client.producer.config import ProducerConfig
    from odradek.client.producer.delivery import Delivery
    from odradek.client.producer.engine import BufferExhausted, DeliveryFailed, RecordMetadata
    from odradek.client.producer.producer import Producer
    from odradek.client.producer.shared_transaction import SharedTransaction

__all__ = [
    "BufferExhausted",
    "Delivery",
    "DeliveryFailed",
    "Producer",
    "ProducerConfig",
    "RecordMetadata",
    "SharedTransaction",
]

_HOMES = {
    "BufferExhausted": "odradek.client.producer.engine",
    "Delivery": "odradek.client.producer.delivery",
    "DeliveryFailed": "odradek.client.producer.engine",
    "ProducerConfig": "odradek.client.producer.config",
    "RecordMetadata": "odradek.client.producer.engine",
    "Producer": "odradek.client.producer.producer",
    "SharedTransaction": "odradek.client.producer.shared_transaction",
}
__getattr__ = loader(__name__, _HOMES)
