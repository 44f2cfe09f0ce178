"""Settings that public programs and files set, one by one: the codes are those of Apache Kafka 4.3.0.

The settings are those of Terraform's providers for Kafka, Aiven, Confluent and Yandex, Strimzi's KafkaTopic resources,
Cruise Control, kafka-reassign-partitions, kafka-configs in Confluent's manual, and run books. Kafka's codes were
recorded with a broker of the defaults, by IncrementalAlterConfigs. Each accepted setting was reset before the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers import Wire

import odradek
from odradek.wire.api_keys import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
# name | value | code
OF_TOPICS = """
cleanup.policy | 'delete' | 0
cleanup.policy | 'compact,delete' | 0
cleanup.policy | 'delete, compact' | 0
cleanup.policy | 'Delete' | 40
cleanup.policy | 'CLEANUP_POLICY_COMPACT' | 40
cleanup.policy | '' | 0
compression.type | 'producer' | 0
compression.type | 'uncompressed' | 0
compression.type | 'none' | 40
compression.type | 'Producer' | 40
compression.type | 'zstd' | 0
compression.gzip.level | '9' | 0
compression.gzip.level | '0' | 40
compression.zstd.level | '-5' | 0
compression.lz4.level | '17' | 0
delete.retention.ms | '86400000' | 0
file.delete.delay.ms | '60000' | 0
flush.messages | '9223372036854775807' | 0
flush.messages | '0' | 40
flush.ms | '10' | 0
follower.replication.throttled.replicas | '' | 0
follower.replication.throttled.replicas | '*' | 0
follower.replication.throttled.replicas | '0:1,1:1' | 0
follower.replication.throttled.replicas | 'none' | 40
leader.replication.throttled.replicas | '0:1' | 0
leader.replication.throttled.replicas | '0' | 40
index.interval.bytes | '4096' | 0
max.message.bytes | '2097164' | 0
max.message.bytes | '1MB' | 40
message.downconversion.enable | 'true' | 40
message.format.version | '3.0-IV1' | 40
message.format.version | '2.3' | 40
message.timestamp.after.max.ms | '9223372036854775807' | 0
message.timestamp.before.max.ms | '3600000' | 0
message.timestamp.difference.max.ms | '9223372036854775807' | 40
message.timestamp.type | 'CreateTime' | 0
message.timestamp.type | 'LogAppendTime' | 0
message.timestamp.type | 'createtime' | 40
min.cleanable.dirty.ratio | '0' | 0
min.cleanable.dirty.ratio | '0.05' | 0
min.cleanable.dirty.ratio | '1.5' | 40
min.compaction.lag.ms | '0' | 0
max.compaction.lag.ms | '0' | 40
max.compaction.lag.ms | '604800000' | 0
min.insync.replicas | '1' | 0
min.insync.replicas | '2' | 0
min.insync.replicas | '0' | 40
preallocate | 'false' | 0
preallocate | '0' | 40
retention.bytes | '-1' | 0
retention.bytes | '-2' | 0
retention.ms | '-1' | 0
retention.ms | '604800000.0' | 40
retention.ms | ' 604800000 ' | 0
retention.ms | '7d' | 40
retention.ms | '' | 40
segment.bytes | '1073741824' | 0
segment.bytes | '14' | 40
segment.bytes | '1048576' | 0
segment.bytes | '2147483648' | 40
segment.index.bytes | '10485760' | 0
segment.index.bytes | '4' | 0
segment.jitter.ms | '0' | 0
segment.ms | '100' | 0
segment.ms | '0' | 40
unclean.leader.election.enable | 'true' | 0
unclean.leader.election.enable | 'True' | 0
unclean.leader.election.enable | 'yes' | 40
remote.storage.enable | 'false' | 0
remote.storage.enable | 'true' | 40
remote.log.copy.disable | 'true' | 0
remote.log.delete.on.disable | 'true' | 0
local.retention.ms | '-2' | 0
local.retention.ms | '86400000' | 0
local.retention.bytes | '-2' | 0
local.retention.bytes | '-3' | 40
confluent.value.schema.validation | 'true' | 40
confluent.tier.enable | 'true' | 40
retention.hours | '72' | 40
retention_ms | '604800000' | 40
log.retention.ms | '604800000' | 40
errors.deadletterqueue.topic.enable | 'true' | 40
"""
# name | value | code of one broker | code of all brokers
OF_BROKERS = """
log.cleaner.threads | '2' | 0 | 0
log.cleaner.threads | '100' | 42 | 42
log.cleaner.io.max.bytes.per.second | '10000000' | 0 | 0
log.cleaner.dedupe.buffer.size | '67108864' | 0 | 0
log.cleaner.backoff.ms | '15000' | 0 | 0
log.cleaner.min.cleanable.ratio | '0.2' | 0 | 0
background.threads | '8' | 0 | 0
background.threads | '100' | 42 | 42
num.io.threads | '9' | 0 | 0
num.io.threads | '40' | 42 | 42
num.network.threads | '5' | 0 | 0
num.network.threads | '1' | 0 | 0
num.replica.fetchers | '2' | 0 | 0
num.recovery.threads.per.data.dir | '2' | 0 | 0
log.retention.ms | '86400000' | 0 | 0
log.retention.minutes | '60' | 42 | 42
log.retention.hours | '24' | 42 | 42
log.retention.bytes | '1073741824' | 0 | 0
log.retention.check.interval.ms | '1000' | 42 | 42
log.segment.bytes | '1073741824' | 0 | 0
log.roll.ms | '3600000' | 0 | 0
log.roll.hours | '24' | 42 | 42
log.roll.jitter.ms | '0' | 0 | 0
message.max.bytes | '2097164' | 0 | 0
replica.fetch.max.bytes | '2097164' | 42 | 42
auto.create.topics.enable | 'false' | 42 | 42
delete.topic.enable | 'true' | 42 | 42
unclean.leader.election.enable | 'true' | 0 | 0
min.insync.replicas | '1' | 40 | 0
min.insync.replicas | '3' | 40 | 0
compression.type | 'zstd' | 0 | 0
log.cleanup.policy | 'compact' | 0 | 0
log.preallocate | 'false' | 0 | 0
log.flush.interval.messages | '10000' | 0 | 0
log.flush.interval.ms | '1000' | 0 | 0
log.index.interval.bytes | '4096' | 0 | 0
log.index.size.max.bytes | '10485760' | 0 | 0
log.segment.delete.delay.ms | '60000' | 0 | 0
log.message.timestamp.type | 'LogAppendTime' | 0 | 0
log.message.timestamp.before.max.ms | '3600000' | 0 | 0
log.message.timestamp.difference.max.ms | '3600000' | 0 | 0
log.message.format.version | '2.3' | 0 | 0
log.message.downconversion.enable | 'true' | 0 | 0
log.local.retention.ms | '-2' | 0 | 0
log.local.retention.bytes | '-2' | 0 | 0
remote.log.manager.copier.thread.pool.size | '5' | 0 | 0
remote.log.manager.thread.pool.size | '5' | 42 | 42
remote.log.index.file.cache.total.size.bytes | '1073741824' | 0 | 0
remote.fetch.max.wait.ms | '500' | 0 | 0
remote.list.offsets.request.timeout.ms | '30000' | 0 | 0
leader.replication.throttled.rate | '104857600' | 0 | 0
follower.replication.throttled.rate | '50000000' | 0 | 0
follower.replication.throttled.rate | '-1' | 42 | 42
replica.alter.log.dirs.io.max.bytes.per.second | '10000000' | 0 | 0
max.connections | '1000' | 0 | 0
max.connections.per.ip | '100' | 0 | 0
max.connections.per.ip.overrides | '127.0.0.1:200' | 0 | 0
max.connections.per.ip.overrides | 'nohost' | 42 | 42
connections.max.idle.ms | '600000' | 42 | 42
socket.send.buffer.bytes | '102400' | 42 | 42
metric.reporters | '' | 0 | 0
metric.reporters | 'io.confluent.Reporter' | 42 | 42
listeners | 'PLAINTEXT://127.0.0.1:9999' | 42 | 42
advertised.listeners | 'PLAINTEXT://other:9999' | 42 | 42
ssl.keystore.location | '/tmp/k.jks' | 42 | 42
ssl.truststore.password | 'secret' | 42 | 42
ssl.client.auth | 'none' | 0 | 42
listener.name.internal.ssl.keystore.location | '/tmp/k.jks' | 0 | 42
listener.name.plaintext.ssl.keystore.location | '/tmp/k.jks' | 0 | 42
listener.name.plaintext.ssl.keystore.password | 'secret' | 0 | 42
listener.name.plaintext.ssl.keystore.key | 'x' | 0 | 42
listener.name.plaintext.ssl.truststore.type | 'JKS' | 0 | 42
listener.name.plaintext.ssl.client.auth | 'none' | 0 | 42
listener.name.plaintext.ssl.enabled.protocols | 'TLSv1.3' | 0 | 42
listener.name.plaintext.connections.max.reauth.ms | '5' | 0 | 42
ssl.keystore.key | 'x' | 42 | 42
ssl.principal.mapping.rules | 'DEFAULT' | 42 | 42
sasl.kerberos.service.name | 'kafka' | 0 | 42
sasl.mechanism.inter.broker.protocol | 'PLAIN' | 0 | 42
sasl.kerberos.min.time.before.relogin | '58000' | 0 | 42
sasl.kerberos.principal.to.local.rules | 'DEFAULT' | 0 | 42
sasl.login.refresh.window.factor | '0.8' | 0 | 42
ssl.enabled.protocols | 'TLSv1.2,TLSv1.3' | 0 | 42
authorizer.class.name | 'org.apache.kafka.metadata.authorizer.StandardAuthorizer' | 42 | 42
principal.builder.class | 'org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder' | 0 | 42
offsets.retention.minutes | '10080' | 42 | 42
offsets.topic.replication.factor | '1' | 42 | 42
num.partitions | '6' | 42 | 42
default.replication.factor | '1' | 42 | 42
group.max.session.timeout.ms | '1800000' | 42 | 42
group.initial.rebalance.delay.ms | '0' | 42 | 42
group.coordinator.append.linger.ms | '5' | 42 | 42
group.consumer.session.timeout.ms | '45000' | 42 | 42
transaction.partition.verification.enable | 'false' | 0 | 0
transaction.state.log.min.isr | '1' | 42 | 42
producer.id.expiration.ms | '86400000' | 0 | 0
max.incremental.fetch.session.cache.slots | '1000' | 42 | 42
zookeeper.connect | 'localhost:2181' | 0 | 0
broker.id | '1' | 42 | 42
node.id | '2' | 42 | 42
log.dirs | '/data' | 42 | 42
cordoned.log.dirs | '*' | 0 | 42
process.roles | 'broker' | 42 | 42
inter.broker.protocol.version | '3.0' | 0 | 0
password.encoder.secret | 'x' | 0 | 0
confluent.balancer.throttle.bytes.per.second | '1000' | 0 | 0
foo.bar | '1' | 0 | 0
auto.leader.rebalance.enable | 'false' | 42 | 42
queued.max.requests | '500' | 42 | 42
log.retention.ms | '-2' | 0 | 0
log.retention.ms | 'abc' | 42 | 42
log.roll.ms | '0' | 42 | 42
share.group.max | '5' | 0 | 0
quota.window.num | '11' | 42 | 42
"""
# Kafka stores them. Here they would protect nothing, and limits.md says so.
PROTECTING = """
max.connection.creation.rate | '100'
listener.name.plaintext.max.connections | '100'
listener.name.plaintext.max.connection.creation.rate | '50'
listener.name.internal.max.connections | '100'
listener.name.plaintext.ssl.client.auth | 'required'
listener.name.internal.ssl.client.auth | 'required'
sasl.enabled.mechanisms | 'PLAIN'
sasl.jaas.config | 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
super.users | 'User:admin'
"""


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(" | ")] for line in table.strip().splitlines()]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with odradek.Broker(in_thread=True) as broker:
        broker.create_topic("settings", partitions=1)
        with Wire(broker.bootstrap_servers) as wire:
            yield wire


def alter(wire: Wire, kind: int, resource: str, name: str, value: str | None) -> int:
    """Sets or resets one setting. Returns the error code."""
    row = {"name": name, "config_operation": SET if value is not None else DELETE, "value": value}
    request = {"resources": [{"resource_type": kind, "resource_name": resource, "configs": [row]}]}
    reply = wire.call(INCREMENTAL_ALTER_CONFIGS, 1, request | {"validate_only": False})
    return int(reply.responses[0].error_code)


def answer(wire: Wire, kind: int, resource: str, name: str, value: str) -> int:
    """Sets one setting, resets it if it was accepted, and returns the error code."""
    code = alter(wire, kind, resource, name, value)
    if code == 0:
        alter(wire, kind, resource, name, None)
    return code


def test_settings_of_topics(wire: Wire) -> None:
    found, expected = {}, {}
    for name, value, code in cells(OF_TOPICS):
        found[name, value] = answer(wire, TOPIC, "settings", name, value[1:-1])
        expected[name, value] = int(code)
    assert found == expected


@pytest.mark.parametrize(("resource", "column"), [("1", 2), ("", 3)])
def test_settings_of_brokers(wire: Wire, resource: str, column: int) -> None:
    found, expected = {}, {}
    for row in cells(OF_BROKERS):
        found[row[0], row[1]] = answer(wire, BROKER, resource, row[0], row[1][1:-1])
        expected[row[0], row[1]] = int(row[column])
    assert found == expected


def test_what_would_protect_nothing_is_refused(wire: Wire) -> None:
    for name, value in cells(PROTECTING):
        assert answer(wire, BROKER, "1", name, value[1:-1]) == 42, name


def test_settings_of_topics_by_the_older_request(wire: Wire) -> None:
    found, expected = {}, {}
    for name, value, code in cells(OF_TOPICS):
        row = {"name": name, "value": value[1:-1]}
        request = {"resources": [{"resource_type": TOPIC, "resource_name": "settings", "configs": [row]}]}
        reply = wire.call(ALTER_CONFIGS, 2, request | {"validate_only": True})
        found[name, value] = int(reply.responses[0].error_code)
        expected[name, value] = int(code)
    assert found == expected


def test_threads_are_at_most_doubled_or_halved(wire: Wire) -> None:
    """By the value in effect: that of one broker hides that of all brokers."""
    for resource, value, code in (
        ("1", "16", 0), ("1", "33", 42), ("1", "32", 0), ("1", "15", 42), ("1", "16", 0), ("", "100", 0), ("", None, 0),
        ("1", None, 0), ("1", "4", 0), ("1", "8", 0), ("1", None, 0), ("1", "3", 42), ("", "17", 42),
    ):  # fmt: skip
        assert alter(wire, BROKER, resource, "num.io.threads", value) == code, (resource, value)


def test_a_setting_of_a_plugin_is_stored_and_hidden_as_in_kafka(wire: Wire) -> None:
    for resource in ("1", ""):
        assert alter(wire, BROKER, resource, "my.plugin.secret", "open-sesame") == 0
        asked = {"resource_type": BROKER, "resource_name": resource, "configuration_keys": ["my.plugin.secret"]}
        options = {"include_synonyms": True, "include_documentation": True}
        (row,) = wire.call(32, 4, {"resources": [asked]} | options).results[0].configs
        assert (row.name, row.value, row.is_sensitive, int(row.config_type)) == ("my.plugin.secret", None, True, 0)
        assert [one.value for one in row.synonyms] == [None]
        assert alter(wire, BROKER, resource, "my.plugin.secret", None) == 0
        assert wire.call(32, 4, {"resources": [asked]} | options).results[0].configs == ()
