"""A client for Kafka clusters: its classes, results and errors.

The import loads neither numba, pyarrow nor pyspark, and each class loads on first use: Spark starts a planner for each
query, and a planner needs no producer.
"""

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.batches.row_sets import ColumnsMissing, RowBatch, TimeOutOfRange
    from odradek.client.admin import Admin
    from odradek.client.config import ClientConfig
    from odradek.client.consumer.records import Polled, Record
    from odradek.client.errors import (
        AuthenticationFailed,
        BrokerUnreachable,
        ConnectionLost,
        GroupIdNotFound,
        GroupNotEmpty,
        IllegalState,
        LogTruncated,
        OffsetOutOfRange,
        OffsetStoreUnreachable,
        RecordsWithheld,
        ReplyTooLarge,
        RequestTimedOut,
        TopicRecreated,
        UnknownTopic,
        UnsupportedVersion,
    )
    from odradek.client.group.assignors import Assignor
    from odradek.client.group.errors import (
        CommitFailed,
        FencedInstance,
        InvalidGroupId,
        NoOffsetForPartition,
        OffsetStoreBehind,
        PartitionOwned,
        RebalanceInProgress,
        RetriableCommitFailed,
        UnreleasedInstance,
        Wakeup,
    )
    from odradek.client.log_tails import LogReplaced
    from odradek.client.model import ListedOffset, NewTopic
    from odradek.client.producer.delivery import Delivery
    from odradek.client.producer.engine import BufferExhausted, DeliveryFailed, RecordMetadata
    from odradek.client.producer.errors import ProducerFenced, TransactionAbortable, TransactionFatal
    from odradek.client.reader import PartitionReader, read_range
    from odradek.client.settings.settings_file import connection_settings
    from odradek.core.errors import ConfigError, CorruptRecord, ErrorCode, KafkaError, OdradekError
    from odradek.core.ids import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        ProducerIdentity,
        TopicPartition,
    )

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "Assignor",
    "AuthenticationFailed",
    "BrokerUnreachable",
    "BufferExhausted",
    "ClientConfig",
    "ColumnsMissing",
    "CommitFailed",
    "ConfigError",
    "ConnectionLost",
    "ConsumerGroupMetadata",
    "CorruptRecord",
    "Delivery",
    "DeliveryFailed",
    "ErrorCode",
    "FencedInstance",
    "GroupIdNotFound",
    "GroupNotEmpty",
    "IllegalState",
    "InvalidGroupId",
    "KafkaError",
    "ListedOffset",
    "LogReplaced",
    "LogTruncated",
    "NewTopic",
    "NoOffsetForPartition",
    "OdradekError",
    "OffsetAndMetadata",
    "OffsetOutOfRange",
    "OffsetStoreBehind",
    "OffsetStoreUnreachable",
    "PartitionOwned",
    "PartitionReader",
    "Polled",
    "ProducerFenced",
    "ProducerIdentity",
    "RebalanceInProgress",
    "Record",
    "RecordMetadata",
    "RecordsWithheld",
    "ReplyTooLarge",
    "RequestTimedOut",
    "RetriableCommitFailed",
    "RowBatch",
    "TimeOutOfRange",
    "TopicPartition",
    "TopicRecreated",
    "TransactionAbortable",
    "TransactionFatal",
    "UnknownTopic",
    "UnreleasedInstance",
    "UnsupportedVersion",
    "Wakeup",
    "connection_settings",
    "read_range",
]

_NAMES = {
    "odradek.client.admin.admin": "Admin",
    "odradek.client.group.assignors": "Assignor",
    "odradek.client.config": "ClientConfig",
    "odradek.client.group.errors": """
        CommitFailed FencedInstance InvalidGroupId NoOffsetForPartition OffsetStoreBehind PartitionOwned
        RebalanceInProgress RetriableCommitFailed UnreleasedInstance Wakeup
    """,
    "odradek.client.consumer.records": "Polled Record",
    "odradek.client.errors": """
        AuthenticationFailed BrokerUnreachable ConnectionLost GroupIdNotFound GroupNotEmpty IllegalState LogTruncated
        OffsetOutOfRange OffsetStoreUnreachable RecordsWithheld ReplyTooLarge RequestTimedOut TopicRecreated
        UnknownTopic UnsupportedVersion
    """,
    "odradek.client.log_tails": "LogReplaced",
    "odradek.client.model": "ListedOffset NewTopic",
    "odradek.client.producer.delivery": "Delivery",
    "odradek.client.producer.engine": "BufferExhausted DeliveryFailed RecordMetadata",
    "odradek.client.producer.errors": "ProducerFenced TransactionAbortable TransactionFatal",
    "odradek.batches.row_sets": "ColumnsMissing RowBatch TimeOutOfRange",
    "odradek.client.reader": "PartitionReader read_range",
    "odradek.client.settings.settings_file": "connection_settings",
    "odradek.core.errors": "ConfigError CorruptRecord ErrorCode KafkaError OdradekError",
    "odradek.core.ids": """
        ConsumerGroupMetadata EARLIEST LATEST MAX_TIMESTAMP OffsetAndMetadata ProducerIdentity TopicPartition
    """,
}
__getattr__ = loader(__name__, {name: home for home, names in _NAMES.items() for name in names.split()})
