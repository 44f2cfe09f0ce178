"""The synchronous ``Admin``: topics, offsets, groups, transactions and settings of a Kafka cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, Unpack

from odradek.client import loop
from odradek.client.admin.calls import AdminCalls
from odradek.client.arguments import with_lists
from odradek.client.client_text import admin_text
from odradek.client.cluster import Cluster
from odradek.client.config import ClientConfig, as_config
from odradek.client.context_managers import Closeable
from odradek.client.model import ConfigEntry
from odradek.client.other_names import OtherNames

if TYPE_CHECKING:
    from odradek.client.settings.setting_types import ClientSettings

T = TypeVar("T")
P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[AdminCalls, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """Returns the method of ``Admin`` that runs a call and waits for its result."""

    @wraps(method)
    def call(self: Admin, /, *args: P.args, **named: P.kwargs) -> T:
        args, named = with_lists(args), with_lists(named)
        return self._run(lambda calls: method(calls, *args, **named))

    return call


class Admin(OtherNames, Closeable):
    """The synchronous admin client. Threads may share an instance; a forked child needs its own.

    ``Admin("host:port,host:port")``; keywords are further settings by Kafka's names (underscores for dots). A call
    retries retriable errors for at most ``default_api_timeout_ms``. It raises ``BrokerUnreachable``,
    ``RequestTimedOut``, or a ``KafkaError`` that is not retriable.

    >>> with Admin("127.0.0.1:9092") as admin:                              # doctest: +SKIP
    ...     admin.list_group_offsets("flight-lake")
    {TopicPartition(topic='flights', partition=0): OffsetAndMetadata(offset=5, leader_epoch=0, metadata='')}
    """

    def __init__(
        self,
        bootstrap_servers: ClientConfig | Mapping[str, object] | Sequence[str] | str,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.config = as_config(bootstrap_servers, **settings)
        self._calls = AdminCalls(self.config, Cluster(self.config))
        self._closed = False
        self._process = os.getpid()

    def __repr__(self) -> str:
        return admin_text(self.config.bootstrap_servers, is_closed=self._closed)

    def close(self) -> None:
        """Closes the connections; the instance cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            if self._process == os.getpid():
                loop.run(self._calls.close())

    def _run(self, begin: Callable[[AdminCalls], Coroutine[object, object, T]]) -> T:
        if self._closed:
            raise ValueError("this Admin is closed")
        if self._process != os.getpid():
            raise ValueError("this Admin belongs to its parent process: make a new Admin after a fork")
        return loop.run(begin(self._calls))

    topics = _blocking(AdminCalls.topics)
    describe_topics = _blocking(AdminCalls.describe_topics)
    create_topics = _blocking(AdminCalls.create_topics)
    delete_topics = _blocking(AdminCalls.delete_topics)
    create_partitions = _blocking(AdminCalls.create_partitions)
    describe_configs = _blocking(AdminCalls.describe_configs)
    alter_configs = _blocking(AdminCalls.alter_configs)
    describe_cluster = _blocking(AdminCalls.describe_cluster)
    describe_nodes = _blocking(AdminCalls.describe_nodes)
    unregister_broker = _blocking(AdminCalls.unregister_broker)
    elect_leaders = _blocking(AdminCalls.elect_leaders)
    delete_records = _blocking(AdminCalls.delete_records)
    partitions = _blocking(AdminCalls.partitions)
    list_offsets = _blocking(AdminCalls.list_offsets)
    epoch_ends = _blocking(AdminCalls.epoch_ends)
    list_groups = _blocking(AdminCalls.list_groups)
    describe_groups = _blocking(AdminCalls.describe_groups)
    coordinator = _blocking(AdminCalls.coordinator)
    list_group_offsets = _blocking(AdminCalls.list_group_offsets)
    group_commits = _blocking(AdminCalls.group_commits)
    alter_group_offsets = _blocking(AdminCalls.alter_group_offsets)
    delete_groups = _blocking(AdminCalls.delete_groups)
    delete_group_offsets = _blocking(AdminCalls.delete_group_offsets)
    list_transactions = _blocking(AdminCalls.list_transactions)
    describe_transactions = _blocking(AdminCalls.describe_transactions)
    describe_producers = _blocking(AdminCalls.describe_producers)
    fence_producers = _blocking(AdminCalls.fence_producers)
    abort_transaction = _blocking(AdminCalls.abort_transaction)
    find_hanging_transactions = _blocking(AdminCalls.find_hanging_transactions)

    def describe_topic_configs(self, names: Sequence[str]) -> dict[str, tuple[ConfigEntry, ...]]:
        """Returns all settings of the topics, by name, each with its source. Raises UnknownTopic."""
        return self.describe_configs("topic", names)

    def alter_topic_configs(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Changes settings of one topic; None resets a setting to its default. Raises INVALID_CONFIG, UnknownTopic."""
        self.alter_configs("topic", name, changes, validate_only=validate_only)
