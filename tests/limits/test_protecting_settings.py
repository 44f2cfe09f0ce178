"""The broker refuses a setting that asks for a protection which the broker does not have."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import Wire

from odradek.broker.front_end.bound_sockets import BoundSockets
from odradek.broker.limits.host_limits import is_loopback
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.description import DYNAMIC
from odradek.broker.settings.keys import ConfigType, inert_broker_keys
from odradek.broker.settings.protection import protections_by_setting
from odradek.catalog.state import BROKER, AlterConfigs
from odradek.core.errors import ConfigError
from odradek.testing.process import BrokerProcess

INVALID_REQUEST = 42
PROTOCOLS = ("SSL", "SASL_SSL", "PLAINTEXT", "SASL_PLAINTEXT")
OF_BROKERS = ("inter.broker.listener.name", "security.inter.broker.protocol")
# Kafka 4.3.0 stores these for a listener without TLS and SASL, and for one that is not there.
OF_ABSENT_TLS = (
    "listener.name.plaintext.ssl.keystore.location", "listener.name.plaintext.ssl.keystore.type",
    "listener.name.plaintext.ssl.truststore.location", "listener.name.plaintext.ssl.cipher.suites",
    "listener.name.plaintext.connections.max.reauth.ms", "listener.name.other.ssl.keystore.location",
)  # fmt: skip
AUTHORIZER_SETTINGS = {
    "super.users",
    "allow.everyone.if.no.acl.found",
}  # Kafka's tables of settings do not contain them

# Settings that the broker can ignore safely, by reason. A new setting without effect belongs here or in PROTECTIONS.
HARMLESS = {
    "The login of a node at other nodes has no callbacks.": "sasl.client.callback.handler.class",
    "They belong to Kerberos; a listener with Kerberos is refused.": """
        sasl.kerberos.kinit.cmd sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
    """,
    "No client can use the feature: requests for it are refused.": """
        group.coordinator.rebalance.protocols group.share.assignment.interval.ms group.share.assignors
        group.share.delivery.count.limit group.share.heartbeat.interval.ms group.share.max.assignment.interval.ms
        group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
        group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
        group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
        group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
        group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
        group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
        group.share.partition.max.record.locks group.share.record.lock.duration.ms group.share.session.timeout.ms
        group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
        group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
        group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
        group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
        group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
        group.streams.num.standby.replicas group.streams.session.timeout.ms
        share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
        share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
        share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
        share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
        share.coordinator.state.topic.segment.bytes share.coordinator.threads share.coordinator.write.timeout.ms
        share.fetch.purgatory.purge.interval.requests
    """,
    "They have an effect only if remote.log.storage.system.enable is true, which is refused.": """
        follower.fetch.last.tiered.offset.enable log.local.retention.bytes log.local.retention.ms
        remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
        remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
        remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
        remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
        remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
        remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
        remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
        remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
        remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
        remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
        remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
    """,
    "One broker has no other nodes; a topic with more replicas than one is refused when it is created.": """
        controller.quorum.append.linger.ms controller.quorum.auto.join.enable
        controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
        controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
        controller.quorum.fetch.snapshot.max.bytes
        controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
        controller.socket.timeout.ms metadata.log.dir
        alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
        controlled.shutdown.enable cordoned.log.dirs
        follower.replication.throttled.rate
        leader.replication.throttled.rate log.dir.failure.timeout.ms num.replica.alter.log.dirs.threads
        replica.alter.log.dirs.io.max.bytes.per.second replica.socket.receive.buffer.bytes
        replication.quota.window.num replication.quota.window.size.seconds
    """,
    "It only allows requests that the broker does not serve.": "transaction.two.phase.commit.enable",
    "They change only the speed. queued.max.request.bytes and limits per connection replace their limits.": """
        background.threads delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests
        num.io.threads num.network.threads producer.purgatory.purge.interval.requests queued.max.requests
        socket.connection.setup.timeout.max.ms socket.receive.buffer.bytes socket.send.buffer.bytes
        log.cleaner.io.buffer.size
        group.coordinator.append.linger.ms group.coordinator.background.threads
        group.coordinator.cached.buffer.max.bytes group.coordinator.threads
        offsets.load.buffer.size transaction.state.log.load.buffer.size
        add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
        num.recovery.threads.per.data.dir compression.lz4.level log.preallocate
    """,
    "No metrics of the broker or of clients are collected.": """
        kafka.metrics.polling.interval.secs kafka.metrics.reporters metric.reporters metrics.num.samples
        metrics.recording.level metrics.sample.window.ms telemetry.max.bytes
    """,
    "The start refuses it in favour of --data-dir.": "log.dir",
    "Kafka keeps them for its own tests.": """
        controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
        group.share.initialize.retry.interval.ms group.share.persister.class.name
        internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
        internal.metadata.max.batch.size.in.bytes log.initial.task.delay.ms
        remote.log.index.file.cache.ttl.ms
        remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
        remote.log.manager.task.retry.jitter server.max.startup.time.ms
        share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.state.topic.prune.interval.ms
        unstable.api.versions.enable unstable.feature.versions.enable
    """,
}

# The text that an operator would write, and the name of the refused setting.
PROTECTED_VALUES = {
    "early.start.listeners": "PLAINTEXT",
    "ssl.client.auth": "required",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "inter.broker.listener.name": "SSL",
    "security.inter.broker.protocol": "SSL",
    "super.users": "User:admin",
    "listener.name.plaintext.ssl.client.auth": "required",
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config": "secret",
    "create.topic.policy.class.name": "com.example.Policy",
    "max.connection.creation.rate": "10",
    "remote.log.storage.system.enable": "true",
}


def kafkas_defaults() -> dict[str, str | None]:
    """The defaults of Apache Kafka 4.3, as it reported them for unset settings."""
    trace = Path(__file__).parent.parent / "oracle" / "traces" / "configs.json"
    (broker,) = json.loads(trace.read_text())["all_settings"][0]["reply"]["results"]
    found = {}
    for row in broker["configs"]:
        defaults = [twin["value"] for twin in row["synonyms"] if twin["source"] == 5]
        found[row["name"]] = defaults[0] if defaults else None
    return found


def measures() -> list[str]:
    """The times, sizes, shares and switches of absent mechanisms: none of them protects anything alone."""
    plain = (ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.SHORT, ConfigType.DOUBLE)
    names = [name for name in protections_by_setting() if getattr(inert_broker_keys().get(name), "type", "") in plain]
    return sorted(set(names) - PROTECTED_VALUES.keys() | {"allow.everyone.if.no.acl.found"})


def protecting() -> list[str]:
    return sorted((protections_by_setting().keys() | PROTECTED_VALUES.keys()) - set(measures()))


def other_value(name: str) -> str:
    """A valid value other than the default."""
    key = inert_broker_keys().get(name)
    if name == "allow.everyone.if.no.acl.found":
        return "true"
    if name in PROTECTED_VALUES or key is None:
        return PROTECTED_VALUES[name]
    if key.type is ConfigType.BOOLEAN:
        return "false" if key.default == "true" else "true"
    if key.type in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT):
        return str(int(key.default or 6) + 1)
    return "0.7" if key.type is ConfigType.DOUBLE else "other"


def test_every_setting_without_effect_is_classified() -> None:
    harmless = [name for names in HARMLESS.values() for name in names.split()]
    assert len(harmless) == len(set(harmless))
    assert not protections_by_setting().keys() & set(harmless)
    assert protections_by_setting().keys() | set(harmless) == inert_broker_keys().keys() | AUTHORIZER_SETTINGS
    assert len(protections_by_setting()) > 40


@pytest.mark.parametrize("name", protecting())
def test_a_protecting_setting_prevents_the_start(name: str) -> None:
    # Without listeners, these two choose the only listener, as in Kafka.
    listeners = {"listeners": "PLAINTEXT://:9092"} if name in OF_BROKERS else {}
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(listeners | {name: other_value(name)})
    line = str(refused.value)
    assert name in line
    assert "leave it out" in line
    assert "\n" not in line
    assert other_value(name) not in line or len(other_value(name)) < 6, "a value may be a secret"


def test_kafkas_defaults_are_accepted() -> None:
    defaults = kafkas_defaults()
    kafkas = {name: defaults[name] for name in protections_by_setting().keys() - AUTHORIZER_SETTINGS}
    assert len(kafkas) > 40
    BrokerConfig({name: text for name, text in kafkas.items() if text is not None})
    numbers = (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT)
    unset = [name for name, text in kafkas.items() if not text and inert_broker_keys()[name].type not in numbers]
    assert len(unset) > 10
    BrokerConfig(dict.fromkeys(unset, ""))
    BrokerConfig({"allow.everyone.if.no.acl.found": "false", "super.users": ""})


def test_times_and_sizes_of_absent_mechanisms_are_accepted() -> None:
    assert len(measures()) > 10
    assert {"sasl.kerberos.min.time.before.relogin", "sasl.login.connect.timeout.ms"} < set(measures())
    assert not {"max.connection.creation.rate", "remote.log.storage.system.enable"} & set(measures())
    BrokerConfig({name: other_value(name) for name in measures()})
    with pytest.raises(ConfigError, match="Value must be no more than 86400"):
        BrokerConfig({"sasl.oauthbearer.assertion.claim.exp.seconds": "86401"})


@pytest.mark.parametrize(
    "settings",
    [
        {"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,HOST:plaintext"},
        {"listener.security.protocol.map": ",".join(f"{name}:{name}" for name in PROTOCOLS)},
        {"advertised.listeners": "HOST://127.0.0.1:9092", "listener.security.protocol.map": "HOST:PLAINTEXT"},
        {"inter.broker.listener.name": "PLAINTEXT", "controller.listener.names": "CONTROLLER"},
        {"security.inter.broker.protocol": "PLAINTEXT", "ssl.client.auth": "none"},
        {"ssl.endpoint.identification.algorithm": ""},
        {"listeners": "PLAINTEXT://:9092", "ssl.enabled.protocols": "TLSv1.2", "ssl.protocol": "TLSv1.2"},
        {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384", "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/"},
        {"ssl.truststore.location": "/no/trust.p12", "ssl.truststore.type": "PKCS12", "ssl.truststore.password": "p"},
        {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "p", "ssl.key.password": "p"},
        {"ssl.keystore.location": "/no/such.p12", "listeners": "PLAINTEXT://:9092"},
        {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c", "ssl.keystore.type": "PEM"},
        {"listener.name.plaintext.ssl.keystore.location": "/no/such.p12", "ssl.truststore.certificates": "c"},
        {"listener.name.plaintext.ssl.client.auth": "none", "listener.name.plaintext.ssl.protocol": "TLSv1.2"},
        {"listener.name.absent.ssl.truststore.location": "/no/such.p12"},
        {"listener.name.plaintext.connections.max.reauth.ms": "5", "listener.name.plaintext.num.network.threads": "8"},
        {"listener.name.plaintext.ssl.endpoint.identification.algorithm": ""},
        {"sasl.mechanism.inter.broker.protocol": "PLAIN", "sasl.kerberos.service.name": "kafka"},
        {"controller.listener.names": "CONTROLLER", "listener.name.controller.ssl.client.auth": "required"},
        {"controller.listener.names": "CONTROLLER", "listener.name.controller.sasl.enabled.mechanisms": "PLAIN"},
    ],
)
def test_common_settings_of_plaintext_brokers_are_accepted(settings: dict[str, str]) -> None:
    BrokerConfig(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"advertised.listeners": "PLAINTEXT://127.0.0.1:9092,SASL_PLAINTEXT://127.0.0.1:9093"},
        {"advertised.listeners": "sasl_ssl://127.0.0.1:9092"},
        {"inter.broker.listener.name": "SASL_SSL", "listener.security.protocol.map": "HOST:PLAINTEXT"},
    ],
)
def test_one_protected_listener_among_others_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"is no listener|is not supported"):
        BrokerConfig(settings)


def test_a_misspelt_listener_is_named_if_another_has_the_mechanism() -> None:
    users = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
    secured = {
        "listeners": "OUTER://:9093",
        "listener.security.protocol.map": "OUTER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.outer.plain.sasl.jaas.config": users,
    }
    BrokerConfig(secured | {"listener.name.ouster.ssl.keystore.location": "/no/such.p12"})
    with pytest.raises(ConfigError, match="no listener has this name; the listeners are outer"):
        BrokerConfig(secured | {"listener.name.ouster.connections.max.reauth.ms": "5"})


def test_settings_with_the_same_missing_protection_are_named_together() -> None:
    with pytest.raises(ConfigError, match=r"^ssl\.engine\.factory\.class, ssl\.provider: "):
        BrokerConfig({"ssl.engine.factory.class": "x", "num.partitions": "2", "ssl.provider": "y"})


# --- the broker -------------------------------------------------------------------------------------------------


BARE, SERVE = ("-m", "odradek.broker"), ("-c", "from odradek.cli.main import main; main()", "serve")


def starts(*arguments: str, program: tuple[str, ...] = BARE) -> tuple[int, str]:
    """The exit code and the stderr of a broker that should end at once."""
    command = [sys.executable, *program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "name",
    ["super.users", "ssl.client.auth", "sasl.enabled.mechanisms", "listener.name.plaintext.ssl.client.auth"],
)  # fmt: skip
def test_the_broker_reports_in_one_line_why_it_does_not_start(tmp_path: Path, name: str) -> None:
    code, written = starts(str(tmp_path / "data"), "127.0.0.1:0", f"{name}={PROTECTED_VALUES[name]}")
    assert code == 2
    assert written.count("\n") == 1
    assert name in written
    assert not (tmp_path / "data").exists()


def test_the_serve_command_reports_in_one_line_why_it_does_not_start(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path / "data"), "--listen")
    for more, complaint in (
        (("127.0.0.1:0", "--config", "ssl.client.auth=required"), "ssl.client.auth: "),
        (("SASL_SSL://127.0.0.1:0",), "such a listener is PLAINTEXT"),
    ):
        code, written = starts(*place, *more, program=SERVE)
        assert (code, written.count("\n")) == (2, 1)
        assert complaint in written


def alter(wire: Wire, api_key: int, name: str, settings: dict[str, str]) -> tuple[int, str]:
    rows = [{"name": key, "value": value} for key, value in settings.items()]
    if api_key == 44:
        rows = [row | {"config_operation": 0} for row in rows]
    resource = {"resource_type": BROKER, "resource_name": name, "configs": rows}
    version = {33: 2, 44: 1}[api_key]
    row = wire.call(api_key, version, {"resources": [resource], "validate_only": False}).responses[0]
    return int(row.error_code), row.error_message or ""


def set_while_running(wire: Wire) -> dict[str, str | None]:
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    rows = wire.call(32, 4, message).results[0].configs
    return {row.name: row.value for row in rows if row.config_source in (2, 3)}


def test_a_running_broker_refuses_protecting_settings(tmp_path: Path) -> None:
    names = [name for name in protecting() if name not in AUTHORIZER_SETTINGS]
    assert len([name for name in names if name in DYNAMIC]) > 9, "Kafka can change many of them at run time"
    with BrokerProcess(tmp_path) as running:
        with Wire(running.bootstrap) as wire:
            before = set_while_running(wire)
            for name in names:
                for api_key, resource in ((44, "1"), (44, ""), (33, "1")):
                    code, text = alter(wire, api_key, resource, {name: other_value(name)})
                    assert code == INVALID_REQUEST, (name, api_key, resource)
                    assert name in text
            for name in sorted(AUTHORIZER_SETTINGS):
                assert alter(wire, 44, "1", {name: other_value(name)})[0] == INVALID_REQUEST
            # librdkafka's suite sets the first time to 58000.
            harmless = {name: other_value(name) for name in measures() if name in DYNAMIC} | {"ssl.client.auth": "none"}
            harmless |= dict.fromkeys(OF_ABSENT_TLS, "5")
            assert "sasl.kerberos.min.time.before.relogin" in harmless
            assert alter(wire, 44, "1", harmless) == (0, "")
            for api_key in (44, 33):  # AlterConfigs removes min.insync.replicas, too; Kafka tests that later
                code, text = alter(wire, api_key, "", {"sasl.kerberos.min.time.before.relogin": "58000"})
                assert (code, "broker id must be specified" in text) == (INVALID_REQUEST, True)
            assert set_while_running(wire) == before | harmless
        running.stop()
        running.start()
        with Wire(running.bootstrap) as wire:
            assert set_while_running(wire) == before | harmless


def test_a_protecting_setting_from_an_older_broker_prevents_the_start_until_it_is_deleted(tmp_path: Path) -> None:
    asyncio.run(store(tmp_path / "data", {"ssl.client.auth": "required", "log.retention.ms": "7"}))
    arguments = [str(tmp_path / "data"), "127.0.0.1:0"]
    code, written = starts(*arguments)
    assert code == 2
    assert written.count("\n") == 1
    assert "ssl.client.auth" in written
    assert "--delete-config" in written

    class Deleting(BrokerProcess):
        def command_line(self) -> list[str]:
            return [*super().command_line(), "--delete-config=ssl.client.auth"]

    for kind in (Deleting, BrokerProcess):  # one start with the option is enough
        with kind(tmp_path) as running, Wire(running.bootstrap) as wire:
            kept = set_while_running(wire)
            assert "ssl.client.auth" not in kept
            assert kept["log.retention.ms"] == "7"


async def store(directory: Path, settings: dict[str, str]) -> None:
    """Stores settings without the checks of a request, like an older broker."""
    broker = BrokerServer(BrokerConfig(), directory, ("127.0.0.1", 0))
    await broker.start()
    broker.role.stored.apply(AlterConfigs(BROKER, "1", settings))
    await broker.stop()


# --- listeners --------------------------------------------------------------------------------------------------


def test_loopback_addresses_are_recognised() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%lo", "128.0.0.1")))


@pytest.mark.parametrize(("host", "lines"), [("0.0.0.0", 1), ("127.0.0.1", 0), ("localhost", 0)])
def test_a_listener_beyond_the_loopback_is_a_warning(caplog: pytest.LogCaptureFixture, host: str, lines: int) -> None:
    """The warning is one line. The test closes the socket at once, so it accepts no connection."""
    with caplog.at_level(logging.WARNING, logger="odradek.broker"):
        sockets = BoundSockets(50)
        sockets.bind(BrokerConfig().listeners_at((host, 0)))
        sockets.release()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"listening on {host}"] * lines
