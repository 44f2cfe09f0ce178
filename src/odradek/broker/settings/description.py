"""Rows of DescribeConfigs: each setting with its value and all its sources. Which settings may change at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from odradek.broker.settings.config import BrokerConfig, topic_default
from odradek.broker.settings.ignored import INTERNAL, WHILE_RUNNING
from odradek.broker.settings.keys import (
    ConfigKey,
    ConfigSource,
    broker_keys,
    dynamic_broker_key,
    inert_broker_keys,
    topic_keys,
)
from odradek.broker.settings.prefixes import base_of

_DYNAMIC = """
background.threads compression.gzip.level compression.lz4.level compression.type compression.zstd.level
config.providers cordoned.log.dirs follower.fetch.last.tiered.offset.enable
group.consumer.assignment.interval.ms group.coordinator.cached.buffer.max.bytes
group.share.assignment.interval.ms group.streams.assignment.interval.ms listener.security.protocol.map listeners
log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms
log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms
log.cleaner.threads log.cleanup.policy log.flush.interval.messages log.flush.interval.ms
log.index.interval.bytes log.index.size.max.bytes log.local.retention.bytes log.local.retention.ms
log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms log.message.timestamp.type
log.preallocate log.retention.bytes log.retention.ms log.roll.jitter.ms log.roll.ms log.segment.bytes
log.segment.delete.delay.ms max.connection.creation.rate max.connections max.connections.per.ip
max.connections.per.ip.overrides message.max.bytes metric.reporters min.insync.replicas num.io.threads
num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers principal.builder.class
producer.id.expiration.ms remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.follower.thread.pool.size
remote.log.reader.threads sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.mechanism.inter.broker.protocol share.coordinator.cached.buffer.max.bytes ssl.cipher.suites ssl.client.auth
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
ssl.truststore.type transaction.partition.verification.enable unclean.leader.election.enable
"""
_UNLISTED, _INTERNAL = (
    frozenset(row.split(" | ")[0] for row in table.split("\n") if row) for table in (WHILE_RUNNING, INTERNAL)
)
_HIDDEN_WITH_EFFECT = {
    "group.consumer.regex.refresh.interval.ms", "producer.id.expiration.check.interval.ms",
    "unclean.leader.election.interval.ms",
}  # fmt: skip
HIDDEN = _UNLISTED | _INTERNAL | _HIDDEN_WITH_EFFECT
"""Broker settings that DescribeConfigs leaves out while they are not set."""
DYNAMIC = frozenset(_DYNAMIC.split()) | _UNLISTED
"""Broker settings, with or without effect, that Kafka allows to change dynamically."""


class ConfigRow(NamedTuple):
    """One row of DescribeConfigs. ``synonyms``: (name, value, source); an earlier one overrides the later ones."""

    key: ConfigKey
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: tuple[tuple[str, str, ConfigSource], ...]

    def __repr__(self) -> str:
        shown = "[hidden]" if self.key.sensitive else repr(self.value)
        return f"ConfigRow({self.key.name!r}, {shown}, {self.source.name})"


def describe_broker(
    broker: BrokerConfig, names: Iterable[str] | None = None, options: Mapping[str, str] | None = None
) -> list[ConfigRow]:
    """Returns all broker settings, or those of ``names`` that exist. Leaves out unset settings of ``HIDDEN``.

    ``options``: settings that the broker derives from its start options, for example the log directory.
    """
    keys = broker_keys() | inert_broker_keys()
    set_names = {name for texts, _ in broker.layers() for name in texts} - keys.keys()
    keys |= {name: dynamic_broker_key(name) for name in sorted(set_names)}
    chosen = keys if names is None else [name for name in dict.fromkeys(names) if name in keys]
    given = options or {}
    described = []
    for name in chosen:
        if name in HIDDEN and not broker.is_set(name):
            continue
        synonyms, value = _synonyms(broker, _families().get(name, (name,)), name), broker.text(name)
        if name in given:
            value = given[name]
            synonyms = (
                (name, value, ConfigSource.STATIC_BROKER),
                *(row for row in synonyms if row[2] is ConfigSource.DEFAULT),
            )
        source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT
        described.append(ConfigRow(keys[name], value, source, base_of(name) not in DYNAMIC, synonyms))
    return described


def describe_topic(broker: BrokerConfig, own: Mapping[str, str], names: Iterable[str] | None = None) -> list[ConfigRow]:
    """Returns all settings of a topic, or those of ``names`` that exist.

    Unset settings that begin with "internal." are in the result only if ``names`` has them.
    """
    keys = topic_keys()
    chosen = keys if names is None else [name for name in dict.fromkeys(names) if name in keys]
    described = []
    for name in chosen:
        key = keys[name]
        if name.startswith("internal.") and name not in own and names is None:
            continue
        fallbacks = key.falls_back
        synonyms = _synonyms(broker, fallbacks, fallbacks[0]) if fallbacks else ()
        if name in own:
            synonyms = ((name, own[name], ConfigSource.TOPIC), *synonyms)
        source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT
        value = own[name] if name in own else topic_default(broker, key)
        described.append(ConfigRow(key, value, source, False, synonyms))
    return described


@cache
def _families() -> dict[str, tuple[str, ...]]:
    """Returns, for each name of a broker setting with several names (ms, minutes, hours), all these names."""
    return {name: key.falls_back for key in topic_keys().values() if len(key.falls_back) > 1 for name in key.falls_back}


def _synonyms(broker: BrokerConfig, names: Iterable[str], first: str) -> tuple[tuple[str, str, ConfigSource], ...]:
    """Returns (name, value, source) rows of these names, without the rows before the first row of ``first``."""
    names = tuple(names)
    rows = [(name, texts[name], source) for texts, source in broker.layers() for name in names if name in texts]
    for name in names:
        default = broker.default(name)
        if default is not None:
            rows.append((name, default, ConfigSource.DEFAULT))
    start = next((at for at, row in enumerate(rows) if row[0] == first), len(rows))
    return tuple(rows[start:])
