"""Settings of the broker and its topics: parsing, checks, defaults, and the source of each value.

A text is a value as Kafka writes it (``86400000`` in ``retention.ms=86400000``). ``BrokerConfig`` has the parsed values
as typed attributes (``config.num_partitions``). A topic's effective value is its own. If that is unset, it is the
broker's; if that is unset, too, it is the default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from odradek.broker.settings.keys import (
    ConfigKey,
    ConfigSource,
    UnknownConfig,
    broker_keys,
    dynamic_broker_key,
    find_broker_key,
    find_topic_key,
    topic_keys,
)
from odradek.broker.settings.listener import Listener
from odradek.broker.settings.pairs import OVERRIDES, host_counts
from odradek.broker.settings.table import BrokerConfigTable
from odradek.core.errors import ConfigError
from odradek.security.protocols import PLAINTEXT
from odradek.storage.config import LogConfig

if TYPE_CHECKING:
    from odradek.broker.settings.roles import NodeRoles

_NO_HOST = f"max.connections.per.ip can be set to zero only if {OVERRIDES} property is set."
MIN_ISR = "min.insync.replicas"
_SELECTOR = "replica.selector.class"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_OF_LISTENERS = (
    "listener", "advertised.listeners", "sasl.", "ssl.", "inter.broker.listener.name", "security.inter.broker.protocol",
)  # fmt: skip
"""The beginnings of the names of settings that ``listeners`` checks."""
_OF_ROLES = ("process.roles", "controller.quorum.voters", "controller.quorum.bootstrap.servers")
"""The settings with which ``roles`` has something to check."""
IN_A_CLUSTER = {"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "3"}
"""Kafka's defaults for which a lone broker has others: it cannot have three replicas."""
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def start_texts(settings: Collection[str], file: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the settings of a start: those of the command line (``name=value``) override those of ``file``.

    Variables in their values are replaced (``text/config_providers``). Dynamic settings have none: a client could read
    the broker's files by them. Raises ConfigError, also for a secret on the command line.
    """
    texts = dict(file or {})
    if settings:
        from odradek.broker.settings.command_line import pairs

        texts |= pairs(settings)
    if any("${" in text or name.startswith("config.providers") for name, text in texts.items()):
        from odradek.text.config_providers import with_values

        return with_values(texts, lambda name: "")
    return texts


class BrokerConfig(BrokerConfigTable):
    """A broker's settings: typed attributes for all settings with an effect, ``texts`` for those set at the start.

    Raises ConfigError for an unknown name, an invalid value, or values that contradict each other.
    """

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self.texts = dict(texts or {})
        self.eligible_leaders = True
        """Whether the feature ``eligible.leader.replicas.version`` is on.

        With it, Kafka stores ``min.insync.replicas`` as a dynamic setting of all brokers.
        """
        self.dynamic: Mapping[str, str] = {}
        """Dynamic settings of this broker (IncrementalAlterConfigs). They override ``cluster_wide`` and ``texts``."""
        self.cluster_wide: Mapping[str, str] = {}
        """Dynamic settings of all brokers. They override ``texts``."""
        self.ignored: dict[str, str] = {}
        """Stored dynamic settings that are invalid, with the fault. An earlier version of the broker accepted
        them, or the settings of the start have changed."""
        self.roles: NodeRoles | None = None
        """The roles of a node of a cluster; None for a lone broker."""
        self._both_roles: NodeRoles | None = None
        if "broker.id" in self.texts:
            self._take_broker_id()
        self._check_each()
        for name in ("log.dirs", "log.dir"):
            if name in self.texts:
                raise ConfigError(f"{name} must be set by --data-dir, not by --config")
        self._apply()
        self._check_together()
        self._check_roles()
        self.check_listeners()

    @classmethod
    def parse(cls, settings: Collection[str], file: Mapping[str, str] | None = None) -> BrokerConfig:
        """Parses settings of the form ``name=value`` (``start_texts``). Raises ConfigError."""
        return cls(start_texts(settings, file))

    def _take_broker_id(self) -> None:
        older = self.texts["broker.id"].strip()
        if self.texts.setdefault("node.id", older).strip() != older:
            raise ConfigError(f"broker.id: {older} is not node.id={self.texts['node.id']}: leave broker.id out")

    def _check_each(self) -> None:
        """Checks each setting of the start by itself. Raises ConfigError."""
        if self.texts.keys() - broker_keys().keys():
            from odradek.broker.settings.protection import check

            check(self.texts)
        if self.texts.get("authorizer.class.name"):
            from odradek.broker.settings.protection import check_authorizer

            check_authorizer(self.texts)
        selector = self.texts.get(_SELECTOR, "").strip()
        if selector not in ("", RACK_AWARE_SELECTOR):
            raise ConfigError(
                f"{_SELECTOR}: this broker has no class {selector!r}; set {RACK_AWARE_SELECTOR} or leave it out"
            )
        for name, text in self.texts.items():
            try:
                find_broker_key(name).parse(text)
            except UnknownConfig as error:
                raise ConfigError(error.with_hint()) from None

    def _apply(self) -> None:
        for name, key in broker_keys().items():
            text = self.text(name)
            setattr(self, name.replace(".", "_"), None if text is None else key.parse(text))

    def _check_together(self) -> None:
        """Checks that involve several settings: values that topics inherit must be valid for topics, and some settings
        depend on each other.

        Raises ConfigError.
        """
        for name in topic_keys():
            topic_value(self, {}, name)
        if not topic_value(self, {}, "retention.ms"):
            raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
        if self.log_cleaner_dedupe_buffer_size < self.log_cleaner_threads << 20:
            raise ConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
        self._check_connections()
        self._check_groups()

    def value(self, name: str) -> Any:  # of the setting's type
        """Returns the value of a setting by its name."""
        return getattr(self, name.replace(".", "_"))

    def after(self, changes: Mapping[str, str | None], *, cluster_wide: bool) -> BrokerConfig:
        """Returns the settings after a change of dynamic settings; ``None`` resets a setting.

        Raises ConfigError for an invalid value, and if the settings contradict each other.
        """
        for name, text in changes.items():
            if text is not None:
                _check_while_running(name, text)
        changed = BrokerConfig(self.texts)
        changed.eligible_leaders = self.eligible_leaders
        layers = [dict(self.dynamic), dict(self.cluster_wide)]
        layers[cluster_wide] |= changes  # type: ignore[arg-type]  # the next lines remove None
        changed.set_dynamic(*({name: text for name, text in layer.items() if text is not None} for layer in layers))
        for name, fault in changed.ignored.items():
            if name not in self.ignored or changes.get(name) is not None:
                raise ConfigError(fault)
        changed._check_together()
        changed.check_listeners()
        return changed

    def _check_connections(self) -> None:
        host_counts(self.max_connections_per_ip_overrides)
        if not self.max_connections_per_ip and not self.max_connections_per_ip_overrides:
            raise ConfigError(_NO_HOST)
        is_low = 0 < self.queued_max_request_bytes < self.socket_request_max_bytes
        if is_low and self.is_set("queued.max.request.bytes"):  # one request may exceed the default
            raise ConfigError("queued.max.request.bytes must be larger or equal to socket.request.max.bytes")

    def _check_groups(self) -> None:
        for setting in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
            name, least, most = (f"group.consumer.{end}{setting}" for end in ("", "min.", "max."))
            low, value, high = map(self.value, (least, name, most))
            if not low <= value <= high:
                raise ConfigError(f"{name} of {value} must be between {least} ({low}) and {most} ({high})")
        policy = self.value("group.consumer.migration.policy")
        if policy.lower() not in MIGRATION_POLICIES:
            raise ConfigError(f"group.consumer.migration.policy must be one of {MIGRATION_POLICIES}, not {policy!r}")

    def _check_roles(self) -> None:
        """Raises ConfigError for the node of a cluster that cannot work."""
        if any(name in self.texts for name in _OF_ROLES):
            from odradek.broker.settings import roles

            node = roles.read(self.texts, self.node_id if self.is_set("node.id") else None)
            roles.check(node)
            self._both_roles = node if node.may_be_combined else None
            if not node.is_lone:
                self._take_roles(node)

    def _take_roles(self, node: NodeRoles) -> None:
        self.roles = node
        self._apply()

    @property
    def has_controller(self) -> bool:
        """Whether the node is the controller of a cluster."""
        return self.roles is not None and self.roles.is_controller

    @property
    def may_be_combined(self) -> bool:
        """Whether the node has both roles, and a listener for the brokers that join it: if its directory is formatted,
        it is a node of a cluster, and no lone broker."""
        return self._both_roles is not None

    def use_both_roles(self) -> None:
        """Makes the node one of a cluster. Raises ConfigError for settings that a lone broker may have."""
        from odradek.broker.settings import roles

        assert self._both_roles is not None
        roles.check_node(self._both_roles)
        self._take_roles(self._both_roles)
        self.check_listeners()

    def check_listeners(self) -> None:
        """Raises ConfigError for listeners that cannot work, and for settings that would protect nothing."""
        if any(name.startswith(_OF_LISTENERS) for texts, _ in self.layers() for name in texts):
            from odradek.broker.settings import listener_settings

            listener_settings.check(self)
            if secured := listener_settings.secured(self):
                from odradek.broker.settings.tls_settings import server_tls

                for settings in secured:
                    server_tls(settings)
            if by_token := listener_settings.with_tokens(self):
                from odradek.broker.settings import oauth

                for settings in by_token:
                    oauth.check(settings)
            if self.roles is not None and self.has_secured_listener():
                from odradek.broker.settings.tls_settings import check_node

                check_node(self)

    def has_secured_listener(self) -> bool:
        """Whether the settings name TLS or SASL, for a listener of this node or of another one."""
        names = ("listener.security.protocol.map", "listeners", "security.inter.broker.protocol")
        return any("SSL" in text.upper() or "SASL" in text.upper() for name in names if (text := self.texts.get(name)))

    def listeners_at(self, listen: tuple[str, int] | None) -> tuple[Listener, ...]:
        """Returns the listeners. ``listen``: the address of the only one, unless the settings name listeners.

        Raises ConfigError."""
        if listen is not None and not any(name.startswith(_OF_LISTENERS) for name in self.texts):
            return (Listener(PLAINTEXT, PLAINTEXT, *listen),)
        from odradek.broker.settings import listener_settings

        return listener_settings.read(self, listen)

    def set_dynamic(self, texts: Mapping[str, str], cluster_wide: Mapping[str, str] | None = None) -> None:
        """Replaces the dynamic settings of this broker and of all brokers.

        Values that a running broker cannot accept go to ``ignored`` and have no effect.
        """
        self.ignored = {}
        self.dynamic = self._valid(texts)
        every_broker = {MIN_ISR: self.texts.get(MIN_ISR, "1")} if self.eligible_leaders else {}
        self.cluster_wide = every_broker | self._valid(cluster_wide or {})
        self._apply()
        if not self.max_connections_per_ip and not self.max_connections_per_ip_overrides:
            name = "max.connections.per.ip"
            self.ignored[name] = _NO_HOST
            self.dynamic, self.cluster_wide = (
                {other: text for other, text in layer.items() if other != name}
                for layer in (self.dynamic, self.cluster_wide)
            )
            self._apply()

    def _valid(self, texts: Mapping[str, str]) -> dict[str, str]:
        valid = {}
        for name, text in texts.items():
            try:
                _check_while_running(name, text)
                valid[name] = text
            except ConfigError as error:
                self.ignored[name] = str(error)
        return valid

    def layers(self) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
        """Returns the settings of each source; an earlier one overrides the later ones."""
        return (
            (self.dynamic, ConfigSource.DYNAMIC_BROKER),
            (self.cluster_wide, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.texts, ConfigSource.STATIC_BROKER),
        )

    def text(self, name: str) -> str | None:
        """Returns the value in effect, as text."""
        for texts, _ in self.layers():
            if name in texts:
                return texts[name]
        return self.default(name)

    def default(self, name: str) -> str | None:
        """Returns the value of a setting that is not set, as text."""
        if self.roles is not None and name in IN_A_CLUSTER:
            return IN_A_CLUSTER[name]
        return dynamic_broker_key(name).default

    def is_set(self, name: str) -> bool:
        return any(name in texts for texts, _ in self.layers())

    def source(self, name: str) -> ConfigSource:
        return next((source for texts, source in self.layers() if name in texts), ConfigSource.DEFAULT)


def _check_while_running(name: str, text: str) -> None:
    """Raises ConfigError for a value that a running broker cannot accept."""
    value = dynamic_broker_key(name).parse(text)
    if name == OVERRIDES:
        host_counts(value)
    if name == "max.connections" and value < 1:
        raise ConfigError(f"Invalid {name} {value}: no client could connect, not even to change the setting")


# --- topics -----------------------------------------------------------------------------------------------------

_RETENTION_TIMES = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_TO_MS = {"hours": 3_600_000, "minutes": 60_000}


def _scaled(name: str, text: str) -> str:
    """Converts a value of a broker's setting, for example ``log.retention.hours``, to the topic's unit."""
    factor = _TO_MS.get(name.rpartition(".")[2], 1)
    if name in _RETENTION_TIMES and int(text) < 0:
        return "-1"  # the broker's setting allows any negative time for "no limit", the topic's only -1
    return text if factor == 1 else str(int(text) * factor)


def topic_default(broker: BrokerConfig, key: ConfigKey) -> str | None:
    """Returns the value that a topic has if it does not set its own."""
    for name in key.falls_back:
        if broker.is_set(name):
            return _scaled(name, broker.text(name) or "")
    return key.default


def topic_text(broker: BrokerConfig, own: Mapping[str, str], name: str) -> str | None:
    """Returns a topic's value in effect, as text."""
    text = own.get(name)
    return text if text is not None else topic_default(broker, find_topic_key(name))


def topic_value(broker: BrokerConfig, own: Mapping[str, str], name: str) -> Any:
    text = topic_text(broker, own, name)
    return None if text is None else find_topic_key(name).parse(text)


def check_topic_configs(
    settings: Mapping[str, str | None], broker: BrokerConfig | None = None, stored: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Checks a topic's own settings, each by itself and together. Returns them; raises ConfigError.

    ``stored``: the topic's current settings. A stored ``internal.segment.bytes`` below ``LEAST_SEGMENT_BYTES`` stays
    valid: earlier versions did not check it.
    """
    checked = {}
    for name, text in settings.items():
        key = find_topic_key(name)
        if text is None:
            raise ConfigError(f"Null value not supported for topic configs: {name}")
        value = key.parse(text)
        if name == "internal.segment.bytes" and value < LEAST_SEGMENT_BYTES and text != (stored or {}).get(name):
            raise ConfigError(
                f"Invalid value {text} for configuration {name}: Value must be at least {LEAST_SEGMENT_BYTES}"
            )
        checked[name] = text
    _check_together(broker or BrokerConfig(), checked)
    return checked


def _check_together(broker: BrokerConfig, own: Mapping[str, str]) -> None:
    if not own.keys() & _COMPARED:
        return
    least, most = (topic_value(broker, own, f"{end}.compaction.lag.ms") for end in ("min", "max"))
    if least > most:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if topic_value(broker, own, "remote.storage.enable"):
        raise ConfigError("Tiered Storage functionality is disabled in the broker. Topic cannot be configured with it.")


_COMPARED = {"min.compaction.lag.ms", "max.compaction.lag.ms", "remote.storage.enable"}
# The least internal.segment.bytes. Any client may set it, and smaller segments would mean too many files, three each.
LEAST_SEGMENT_BYTES = 512
_LOG_FIELDS = (
    "segment.ms",
    "segment.jitter.ms",
    "segment.index.bytes",
    "index.interval.bytes",
    "max.message.bytes",
    "retention.ms",
    "retention.bytes",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "flush.messages",
    "flush.ms",
    "delete.retention.ms",
    "min.cleanable.dirty.ratio",
    "file.delete.delay.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "compression.type",
    "compression.gzip.level",
    "compression.zstd.level",
    "message.timestamp.type",
)


def log_config(broker: BrokerConfig, own: Mapping[str, str]) -> LogConfig:
    """Returns the settings of a topic's logs."""
    values = {name.replace(".", "_"): topic_value(broker, own, name) for name in _LOG_FIELDS}
    internal = topic_value(broker, own, "internal.segment.bytes")
    return LogConfig(
        **values,
        segment_bytes=topic_value(broker, own, "segment.bytes") if internal is None else internal,
        cleanup_policy=frozenset(topic_value(broker, own, "cleanup.policy")),
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
        transaction_partition_verification_enable=broker.transaction_partition_verification_enable,
        min_isr=topic_value(broker, own, MIN_ISR),
    )
