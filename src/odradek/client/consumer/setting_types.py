"""The types of a consumer's settings, for editors and type checkers; ``ConsumerConfig`` checks the values."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.client.group.assignors import Assignor
from odradek.client.settings.setting_types import ConnectionSettings


class ConsumerSettings(ConnectionSettings, total=False):
    """The settings of ``Consumer``. Times in milliseconds, sizes in bytes."""

    bootstrap_servers: str | list[str] | tuple[str, ...]
    """Addresses, `host:port`, from which the client learns the cluster: a text with commas, or a list."""
    group_id: str | None
    """Name of the consumer group. None: no group. Then use `assign`, not `subscribe`; commits are not possible."""
    group_instance_id: str | None
    """Name of a static member: a restart within `session_timeout_ms` gets the same partitions without a rebalance."""
    client_rack: str
    """Rack of the client: it reads from a replica in the same rack where brokers allow it."""
    enable_auto_commit: bool
    """Whether a poll commits, every `auto_commit_interval_ms`, the positions after the records of earlier polls, and
    `close` commits the last positions."""
    auto_commit_interval_ms: int
    """Time between two automatic commits."""
    auto_offset_reset: str
    """Where reading begins in a partition without a committed offset, or with one that is out of range: `earliest`,
    `latest`, `none` (an error) or `by_duration:PT1H`."""
    isolation_level: str
    """`read_committed` leaves out records of open and aborted transactions; `read_uncommitted` returns them."""
    max_poll_records: int
    """Most records that one `poll` returns."""
    max_poll_interval_ms: int
    """Longest time between two polls. After a longer time the member leaves the group."""
    session_timeout_ms: int
    """Time without a heartbeat after which the coordinator removes the member. Only with `group_protocol=classic`."""
    heartbeat_interval_ms: int
    """Time between two heartbeats. Only with `group_protocol=classic`."""
    group_protocol: str
    """`classic`, or `consumer` for the protocol of KIP-848, in which the coordinator assigns partitions."""
    group_remote_assignor: str | None
    """Assignor of the coordinator: `uniform` or `range`. None: it chooses. Only with `group_protocol=consumer`."""
    partition_assignment_strategy: str | Assignor | type[Assignor] | Iterable[str | Assignor | type[Assignor]]
    """Assignors of a classic group, most preferred first: `range`, `roundrobin`, `sticky`, `cooperative-sticky`,
    Java's class names, or your own `Assignor`."""
    fetch_min_bytes: int
    """Bytes of records for which the broker waits before it replies to a fetch, at most `fetch_max_wait_ms`."""
    fetch_max_bytes: int
    """Most bytes of records in one reply to a fetch. A first batch that is larger is returned, too."""
    fetch_max_wait_ms: int
    """Time that the broker may wait for `fetch_min_bytes`."""
    max_partition_fetch_bytes: int
    """Most bytes of records of one partition in a fetch."""
    buffer_memory: int
    """Not in Kafka. Most bytes of fetched records that no poll has returned yet. Records that are decoded ahead may
    need a third more."""
    check_crcs: bool
    """Whether the checksums of fetched batches are checked."""
    allow_auto_create_topics: bool
    """Whether a lookup may create a topic, on a broker with `auto.create.topics.enable`. Java's default is true."""
    offsets_storage: str
    """Where committed offsets are: `kafka`, or `zookeeper`, as with Kafka's consumers up to 1.1."""
    dual_commit_enabled: bool
    """Whether commits go to Kafka first and then to ZooKeeper. Only with `offsets_storage=kafka`."""
    zookeeper_connect: str | None
    """Addresses of ZooKeeper's nodes with an optional chroot, `host:port,host:port/chroot`. Needed by
    `offsets_storage=zookeeper` and by `dual_commit_enabled`."""
    zookeeper_session_timeout_ms: int
    """Time without a connection after which ZooKeeper ends the consumer's session; the consumer then owns no
    partition."""
    zookeeper_config: str | None
    """Not in Kafka. A properties file with `zookeeper.login` and `zookeeper.ssl.*`. By default the file that the
    environment variable ODRADEK_ZOOKEEPER_CONFIG names, if any."""
    columns: tuple[str, ...]
    """Not in Kafka. Columns of the Arrow batches; `offset` is required. `headers` is left out by default."""
