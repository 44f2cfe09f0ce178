"""A consumer's settings, with Kafka's names and the defaults of Kafka 4.3's Java consumer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from odradek.batches.columns import DEFAULT_COLUMNS, check_columns
from odradek.client.config import (
    SECURITY,
    ClientConfig,
    ConnectionConfig,
    check_whole,
    convert,
    parse_addresses,
    read_settings,
    reply_bytes,
)
from odradek.client.group.assignors import DEFAULT_STRATEGY, Assignor, make_assignors
from odradek.core.errors import ConfigError
from odradek.core.ids import EARLIEST, LATEST
from odradek.text.units import duration_ms

logger = logging.getLogger("odradek.consumer")

_CHOICES = {
    "isolation_level": ("read_uncommitted", "read_committed"),
    "group_protocol": ("classic", "consumer"),
    "offsets_storage": ("kafka", "zookeeper"),
}
_NOT_SERVERS = " (the first argument has the brokers' addresses; topics go to subscribe)"
# Under group_protocol=consumer the coordinator decides these.
_CLASSIC_ONLY = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")
_MAY_BE_ZERO = frozenset({"auto_commit_interval_ms", "fetch_min_bytes", "fetch_max_wait_ms", "retry_backoff_ms",
                          "retry_backoff_max_ms", "metadata_max_age_ms", "bootstrap_timeout_ms"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ConnectionConfig):
    """The settings of a consumer. Times in milliseconds, sizes in bytes.

    ``buffer_memory`` limits fetched records that no poll has returned; records that are decoded ahead may need a third
    more.

    ``columns`` are the columns of RecordBatches. Unlike in Java, ``allow_auto_create_topics`` is false by default.

    Under ``group_protocol`` consumer (KIP-848) the coordinator makes the assignment, with ``group_remote_assignor`` if
    that is set. ``partition_assignment_strategy``, ``session_timeout_ms`` and ``heartbeat_interval_ms`` belong to the
    classic protocol.

    ``offsets_storage`` zookeeper keeps the committed offsets in ZooKeeper, as Kafka's consumers up to 1.1 did. With
    ``dual_commit_enabled`` and ``offsets_storage`` kafka they are in Kafka and in ZooKeeper. Offsets in ZooKeeper need
    ``zookeeper_connect``: ``host:port,…/chroot``. ``zookeeper_config`` names a properties file with a login and TLS.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: str = "latest"
    isolation_level: str = "read_uncommitted"
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    partition_assignment_strategy: Any = DEFAULT_STRATEGY
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    buffer_memory: int = 67_108_864
    allow_auto_create_topics: bool = False
    offsets_storage: str = "kafka"
    dual_commit_enabled: bool = False
    zookeeper_connect: str | None = None
    zookeeper_session_timeout_ms: int = 6_000
    zookeeper_config: str | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    assignors: tuple[Assignor, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        parse_addresses(self.bootstrap_servers, self.security.protocol)
        object.__setattr__(self, "group_protocol", str(self.group_protocol).lower())
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}: {' or '.join(choices)}, not {getattr(self, name)!r}")
        for one in fields(self):
            if one.type == "int":
                check_whole(one.name, getattr(self, one.name), 0 if one.name in _MAY_BE_ZERO else 1)
        _ = self.max_reply_bytes
        reset_timestamp(self.auto_offset_reset, 0)
        try:
            check_columns(self.columns)
        except ValueError as error:
            raise ConfigError(f"columns: {error}") from error
        if "offset" not in self.columns:
            raise ConfigError("columns: add offset, from which positions come")
        if self.group_id == "":
            raise ConfigError("group_id: expected a name, not an empty text; leave it out to read without a group")
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigError("group_instance_id needs a group_id")
        if self.group_remote_assignor and self.group_protocol == "classic":
            raise ConfigError(
                "group_remote_assignor names an assignor of the coordinator: it needs group_protocol=consumer"
            )
        object.__setattr__(self, "assignors", tuple(make_assignors(self.partition_assignment_strategy)))
        self._check_heartbeat()
        self._check_storage()

    def _check_storage(self) -> None:
        if self.dual_commit_enabled and self.offsets_storage == "zookeeper":
            raise ConfigError(
                "dual_commit_enabled commits to Kafka first and then to ZooKeeper: it needs offsets_storage=kafka"
            )
        if not self.uses_zookeeper:
            return
        chosen = "dual_commit_enabled" if self.dual_commit_enabled else "offsets_storage=zookeeper"
        if not self.zookeeper_connect:
            raise ConfigError(f"{chosen} needs zookeeper_connect, for example 127.0.0.1:2181/kafka")
        if self.group_id is None:
            raise ConfigError(f"{chosen} needs a group_id")

    @property
    def uses_zookeeper(self) -> bool:
        """Whether this consumer's commits go to ZooKeeper, alone or after Kafka."""
        return self.offsets_storage == "zookeeper" or self.dual_commit_enabled

    def _check_heartbeat(self) -> None:
        beat, session = self.heartbeat_interval_ms, self.session_timeout_ms
        if beat >= session:
            raise ConfigError(f"heartbeat_interval_ms ({beat}) must be less than session_timeout_ms ({session})")
        if beat * 3 > session:
            logger.warning(
                "heartbeat_interval_ms %d is more than a third of session_timeout_ms %d: "
                "two lost heartbeats end the membership",
                beat,
                session,
            )

    @property
    def auto_commit(self) -> bool:
        """Whether the consumer commits automatically: ``enable_auto_commit`` with a ``group_id``."""
        return self.enable_auto_commit and self.group_id is not None

    @property
    def max_reply_bytes(self) -> int:
        """The maximum size of a reply. Raises ConfigError."""
        return reply_bytes(self.receive_message_max_bytes, "fetch_max_bytes", self.fetch_max_bytes)

    def client(self) -> ClientConfig:
        """Returns the settings of the connections."""
        names = {one.name for one in fields(ClientConfig)}
        settings = {one.name: getattr(self, one.name) for one in fields(self) if one.name in names}
        return ClientConfig(**settings | {"receive_message_max_bytes": self.max_reply_bytes})

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ConsumerConfig:
        """Makes a config from Kafka's names. Raises the errors of ``read_settings``."""
        kinds = {one.name: str(one.type) for one in fields(cls) if one.name not in ("assignors", SECURITY)}
        values = read_settings(settings, kinds, _convert, _NOT_SERVERS)
        made = cls(**values)
        refused = [name for name in _CLASSIC_ONLY if name in values and made.group_protocol == "consumer"]
        if refused:
            raise ConfigError(
                f"{' and '.join(refused)} cannot be set with group_protocol=consumer: the coordinator decides"
                + ("; group_remote_assignor chooses its assignor" if _CLASSIC_ONLY[0] in refused else "")
            )
        return made


def _convert(name: str, kind: str, value: Any) -> Any:
    if kind.startswith("str"):
        if not isinstance(value, str) and not (value is None and "None" in kind):
            raise ConfigError(f"{name}: expected text, not {value!r}")
        return value
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)
    return value if kind == "Any" else convert(name, kind, value)


def reset_timestamp(policy: str, now_ms: int) -> int | None:
    """Returns the timestamp of ListOffsets for ``auto_offset_reset``; None for the policy none. Raises ConfigError."""
    plain = {"earliest": EARLIEST, "latest": LATEST, "none": None}
    if policy in plain:
        return plain[policy]
    kind, colon, text = policy.partition(":")
    if kind == "by_duration" and colon:
        try:
            back_ms = duration_ms(text)
        except ValueError as error:
            raise ConfigError(f"auto_offset_reset: by_duration:{error}") from None
        if back_ms < 0:
            raise ConfigError(f"auto_offset_reset: {policy!r} is in the future")
        return max(0, now_ms - back_ms)
    raise ConfigError(
        f"auto_offset_reset: earliest, latest, none or by_duration:<ISO 8601, as PT1H30M>, not {policy!r}"
    )
