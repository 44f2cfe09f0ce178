"""A client for any Kafka cluster: its parts, what it returns and what it raises, by name.

Importing it loads neither numba, pyarrow nor pyspark.
"""

from odradek.client.admin import Admin
from odradek.client.assignors import Assignor
from odradek.client.config import ClientConfig
from odradek.client.consumer_errors import (
    CommitFailed,
    FencedInstance,
    IllegalState,
    InvalidGroupId,
    NoOffsetForPartition,
    RebalanceInProgress,
    RetriableCommitFailed,
    UnreleasedInstance,
    Wakeup,
)
from odradek.client.consumer_records import Polled, Record
from odradek.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    GroupIdNotFound,
    GroupNotEmpty,
    LogTruncated,
    OffsetOutOfRange,
    RecordsWithheld,
    RequestTimedOut,
    TopicRecreated,
    UnknownTopic,
    UnsupportedVersion,
)
from odradek.client.model import EARLIEST, LATEST, MAX_TIMESTAMP, ListedOffset, NewTopic
from odradek.client.producer_engine import BufferExhausted, DeliveryFailed, RecordMetadata
from odradek.client.reader import PartitionReader, read_range
from odradek.core.errors import ConfigError, CorruptRecord, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import OffsetAndMetadata, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "Assignor",
    "BrokerUnreachable",
    "BufferExhausted",
    "ClientConfig",
    "CommitFailed",
    "ConfigError",
    "ConnectionLost",
    "CorruptRecord",
    "DeliveryFailed",
    "ErrorCode",
    "FencedInstance",
    "GroupIdNotFound",
    "GroupNotEmpty",
    "IllegalState",
    "InvalidGroupId",
    "KafkaError",
    "ListedOffset",
    "LogTruncated",
    "NewTopic",
    "NoOffsetForPartition",
    "OdradekError",
    "OffsetAndMetadata",
    "OffsetOutOfRange",
    "PartitionReader",
    "Polled",
    "RebalanceInProgress",
    "Record",
    "RecordMetadata",
    "RecordsWithheld",
    "RequestTimedOut",
    "RetriableCommitFailed",
    "TopicPartition",
    "TopicRecreated",
    "UnknownTopic",
    "UnreleasedInstance",
    "UnsupportedVersion",
    "Wakeup",
    "read_range",
]
