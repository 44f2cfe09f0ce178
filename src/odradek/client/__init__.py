"""A client for any Kafka cluster. Importing it loads neither numba, pyarrow nor pyspark."""

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
    Wakeup,
)
from odradek.client.model import EARLIEST, LATEST, MAX_TIMESTAMP, ListedOffset, NewTopic
from odradek.client.reader import PartitionReader, read_range
from odradek.core.ids import OffsetAndMetadata, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "Assignor",
    "ClientConfig",
    "CommitFailed",
    "FencedInstance",
    "IllegalState",
    "InvalidGroupId",
    "ListedOffset",
    "NewTopic",
    "NoOffsetForPartition",
    "OffsetAndMetadata",
    "PartitionReader",
    "RebalanceInProgress",
    "RetriableCommitFailed",
    "TopicPartition",
    "Wakeup",
    "read_range",
]
