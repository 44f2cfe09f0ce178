"""Settings have Kafka's names, defaults and limits. An unknown name or an invalid value is refused with one clear
line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from odradek.broker.coordinators.group_coordinator import GROUPS
from odradek.broker.limits.quotas import Quotas
from odradek.broker.settings import config
from odradek.broker.settings import keys as config_keys
from odradek.broker.settings import table as config_table
from odradek.broker.settings.config import BrokerConfig, check_topic_configs, log_config
from odradek.broker.settings.description import DYNAMIC, describe_broker, describe_topic
from odradek.broker.settings.keys import ConfigSource, ConfigType, broker_keys
from odradek.catalog.state import MAX_PARTITIONS_PER_REQUEST, check_partition_count
from odradek.core.errors import ConfigError
from odradek.core.state_machines.declared_settings import setting
from odradek.groups import config as groups_config
from odradek.groups.config import GroupConfig
from odradek.transactions.config import TransactionConfig


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("num.partition=3", "did you mean 'num.partitions'"),
        ("offsets.retention.minute=3", "did you mean 'offsets.retention.minutes'"),
        ("ssl.keystore.locatoin=x", "did you mean 'ssl.keystore.location'"),
        ("num.partitions", "expected NAME=VALUE"),
        ("=3", "expected NAME=VALUE"),
        ("num.partitions=x", "Not a number of type INT"),
        ("num.partitions=0", "at least 1"),
        ("num.partitions=3000000000", "Not a number of type INT"),
        ("auto.create.topics.enable=yes", "true or false"),
        ("compression.type=lzo", "String must be one of: uncompressed, zstd"),
        ("log.cleanup.policy=compact,drop", "String must be one of: compact, delete"),
        ("offsets.topic.compression.codec=9", "no more than 4"),
        ("advertised.listeners=PLAINTEXT://nowhere", "PLAINTEXT://host:port"),
        ("log.dirs=/x", "set by --data-dir"),
        ("background.threads=many", "Not a number of type INT"),
    ],
)
def test_invalid_settings_are_refused(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        BrokerConfig.parse([setting])


def test_the_offsets_topic_may_have_as_many_partitions_as_one_request_may_create() -> None:
    name = "offsets.topic.num.partitions"
    spec = GROUPS.topic_spec(BrokerConfig({name: str(MAX_PARTITIONS_PER_REQUEST)}))
    check_partition_count(spec.partition_count)
    with pytest.raises(ConfigError, match=f"{name}: Value must be no more than {MAX_PARTITIONS_PER_REQUEST}"):
        BrokerConfig({name: str(MAX_PARTITIONS_PER_REQUEST + 1)})


def test_the_offsets_topic_can_be_created_with_the_least_settings() -> None:
    """A value that a start accepts and the controller refuses would leave groups without a coordinator."""
    least = {"num.partitions": 1, "replication.factor": 1, "segment.bytes": 1 << 20}
    for name, number in least.items():
        with pytest.raises(ConfigError, match=f"offsets.topic.{name}: Value must be at least {number}"):
            BrokerConfig({f"offsets.topic.{name}": str(number - 1)})
    config = BrokerConfig({f"offsets.topic.{name}": str(number) for name, number in least.items()})
    spec = GROUPS.topic_spec(config)
    assert (spec.partition_count, spec.replication_factor) == (1, 1)
    assert check_topic_configs(spec.configs, config) == spec.configs


def test_every_default_is_valid_and_has_its_attribute() -> None:
    broker = BrokerConfig()
    for name, key in (config_keys.broker_keys() | config_keys.inert_broker_keys() | config_keys.topic_keys()).items():
        if key.default is not None:
            key.parse(key.default)
        if name in config_keys.broker_keys():
            assert hasattr(broker, name.replace(".", "_"))


@pytest.mark.claim(15, 89, part="b")
def test_the_cleaner_and_the_offsets_topic_have_kafkas_defaults() -> None:
    broker = BrokerConfig()
    assert (broker.log_cleaner_backoff_ms, log_config(broker, {}).min_cleanable_dirty_ratio) == (15_000, 0.5)
    assert broker.offsets_topic_segment_bytes == 104_857_600


def test_each_name_is_in_one_table_only() -> None:
    assert not config_keys.broker_keys().keys() & config_keys.inert_broker_keys().keys()
    own = [name.replace("_", ".") for name in vars(config_table.BrokerConfigTable) if not name.startswith("__")]
    rows = [*GroupConfig.rows(), *TransactionConfig.rows()]
    assert sorted([*own, *(row.partition(" |")[0] for row in rows)]) == sorted(config_keys.broker_keys())
    assert config_keys.broker_keys().keys() | config_keys.inert_broker_keys().keys() >= DYNAMIC


@dataclass(slots=True, frozen=True)
class MorePatient(GroupConfig):
    """The settings of groups and one additional setting."""

    patience_ms: int = setting(
        "group.patience.minutes | int | 7 | 1.. | The time without messages.", lambda minutes: minutes * 60_000
    )


@pytest.fixture
def one_more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cached = (config_keys.broker_keys, config_keys.topic_keys)
    with monkeypatch.context() as patch:
        patch.setattr(groups_config, "GroupConfig", MorePatient)
        for one in cached:
            one.cache_clear()
        yield
    for one in cached:
        one.cache_clear()


@pytest.mark.usefixtures("one_more")
def test_one_declaration_is_enough_for_a_group_setting() -> None:
    broker = BrokerConfig.parse(["group.patience.minutes=9"])
    assert MorePatient.of(broker.value).patience_ms == 9 * 60_000
    assert MorePatient.of(BrokerConfig().value) == MorePatient()
    assert MorePatient().patience_ms == 7 * 60_000
    with pytest.raises(ConfigError, match="at least 1"):
        BrokerConfig.parse(["group.patience.minutes=0"])
    broker.set_dynamic({"group.patience.minutes": "3"})
    assert MorePatient.of(broker.value).patience_ms == 3 * 60_000
    (row,) = (row for row in describe_broker(broker) if row.key.name == "group.patience.minutes")
    assert (row.value, row.key.default, row.key.doc) == ("3", "7", "The time without messages.")


def test_groups_and_the_broker_have_the_same_defaults() -> None:
    assert GroupConfig.of(BrokerConfig().value) == GroupConfig()
    with pytest.raises(ConfigError, match="unknown config"):
        BrokerConfig.parse(["group.patience.minutes=9"])


def test_every_setting_has_an_effect_or_the_reason_why_not() -> None:
    for key in config_keys.broker_keys().values():
        assert key.doc
    for key in config_keys.inert_broker_keys().values():
        assert key.inert
    for key in config_keys.topic_keys().values():
        assert key.doc or key.inert, key.name


@pytest.mark.claim(78, part=True)
def test_embedded_defaults_that_differ_from_kafkas_are_listed() -> None:
    # Kafka's offsets.topic.replication.factor is 3, which one broker cannot meet
    for name in ("offsets.topic.replication.factor", "group.initial.rebalance.delay.ms", "node.id"):
        assert "Kafka" in config_keys.broker_keys()[name].doc


def test_a_node_of_a_cluster_has_kafkas_replication_factors_of_internal_topics() -> None:
    names = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    node = {
        "process.roles": "broker", "node.id": "1", "controller.quorum.voters": "9@c:1", "listeners": "PLAINTEXT://b:9",
        "controller.listener.names": "CONTROLLER",
    }  # fmt: skip
    for name in names:
        for settings, wanted in (({}, "1"), (node, "3"), (node | {name: "2"}, "2"), ({name: "2"}, "2")):
            config = BrokerConfig(settings)
            assert (config.text(name), config.value(name)) == (wanted, int(wanted))
            config.set_dynamic({"log.retention.ms": "5"})
            assert config.value(name) == int(wanted)
    (row,) = describe_broker(BrokerConfig(node), names[:1])
    assert (row.value, row.source, row.synonyms) == (
        "3",
        ConfigSource.DEFAULT,
        ((names[0], "3", ConfigSource.DEFAULT),),
    )


def test_a_topic_uses_its_own_value_then_the_brokers_then_the_default() -> None:
    broker = BrokerConfig.parse(["log.retention.hours=2", "log.segment.bytes=2097152"])
    assert log_config(broker, {}).retention_ms == 7_200_000
    assert log_config(broker, {"retention.ms": "5"}).retention_ms == 5
    assert log_config(broker, {}).segment_bytes == 2_097_152
    assert log_config(BrokerConfig(), {}).retention_ms == 604_800_000


def test_the_smallest_unit_has_precedence() -> None:
    settings = ["log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4"]
    assert [log_config(BrokerConfig.parse(settings[:n]), {}).retention_ms for n in (1, 2, 3)] == [7_200_000, 180_000, 4]
    assert log_config(BrokerConfig.parse(["log.retention.hours=-1"]), {}).retention_ms == -1


def test_settings_changed_at_run_time_have_precedence_and_can_be_removed() -> None:
    broker = BrokerConfig.parse(["log.retention.ms=4"])
    broker.set_dynamic({"log.retention.ms": "9"})
    assert log_config(broker, {}).retention_ms == 9
    assert broker.source("log.retention.ms") is ConfigSource.DYNAMIC_BROKER
    broker.set_dynamic({})
    assert log_config(broker, {}).retention_ms == 4


def test_descriptions_have_the_source_of_each_value() -> None:
    broker = BrokerConfig.parse(["message.max.bytes=99"])
    (row,) = describe_topic(broker, {"max.message.bytes": "7"}, ["max.message.bytes"])
    assert (row.value, row.source) == ("7", ConfigSource.TOPIC)
    assert row.synonyms == (
        ("max.message.bytes", "7", ConfigSource.TOPIC),
        ("message.max.bytes", "99", ConfigSource.STATIC_BROKER),
        ("message.max.bytes", "1048588", ConfigSource.DEFAULT),
    )
    (row,) = describe_topic(broker, {}, ["max.message.bytes", "no.such.setting"])
    assert (row.value, row.source) == ("99", ConfigSource.STATIC_BROKER)
    by_name = {row.key.name: row for row in describe_broker(broker)}
    assert by_name["num.partitions"].read_only
    assert not by_name["log.retention.ms"].read_only


def test_broker_id_is_an_older_name_of_node_id() -> None:
    assert BrokerConfig.parse(["broker.id=7"]).node_id == 7


def test_the_advertised_address_comes_from_advertised_listeners() -> None:
    bound = ("127.0.0.1", 9092)
    assert BrokerConfig().listeners_at(bound)[0].advertised is None
    config = BrokerConfig.parse(["advertised.listeners=PLAINTEXT://kafka.test:9093"])
    assert config.listeners_at(bound)[0].advertised == ("kafka.test", 9093)


def test_every_topic_setting_defaults_to_the_broker_setting() -> None:
    """The test sets each broker setting that is the default of a topic setting, in the unit of the broker setting, at
    the start and at run time."""
    other = {"boolean": "true", "int": "1500000", "long": "1500000", "double": "0.25", "list": "compact"}
    checked = 0
    for name, key in config_keys.topic_keys().items():
        for twin in key.falls_back:
            text = {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"}.get(name)
            text = text or ("7" if "level" in name or "replicas" in name else other[key.type.name.lower()])
            factor = 3_600_000 if twin.endswith("hours") else 60_000 if twin.endswith("minutes") else 1
            text = "7" if factor > 1 else text
            expected = key.parse(str(int(text) * factor) if factor > 1 else text)
            at_start, running = BrokerConfig({twin: text}), BrokerConfig()
            running.set_dynamic({twin: text})
            for broker in (at_start, running):
                assert config.topic_value(broker, {}, name) == expected, (name, twin)
                assert config.topic_value(broker, {name: key.default or "1"}, name) != expected, (name, twin)
            checked += 1
    assert checked >= 25


def test_topic_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
        config.check_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
        config.check_topic_configs(
            {"min.compaction.lag.ms": "10"}, BrokerConfig({"log.cleaner.max.compaction.lag.ms": "5"})
        )
    with pytest.raises(ConfigError, match="Tiered Storage"):
        config.check_topic_configs({"remote.storage.enable": "true"})
    with pytest.raises(ConfigError, match="wildcard"):
        config.check_topic_configs({"leader.replication.throttled.replicas": "0:1,x"})
    for fine in ("", "*", "0:1,1:1"):
        config.check_topic_configs({"leader.replication.throttled.replicas": fine})


def test_settings_of_one_broker_have_precedence_over_those_of_all_brokers() -> None:
    broker = BrokerConfig.parse(["log.retention.ms=4"])
    broker.set_dynamic({"log.retention.ms": "9"}, {"log.retention.ms": "8", "log.roll.ms": "7"})
    (row,) = describe_broker(broker, ["log.retention.ms"])
    assert (row.value, row.source) == ("9", ConfigSource.DYNAMIC_BROKER)
    assert [synonym[1:] for synonym in row.synonyms[:3]] == [
        ("9", ConfigSource.DYNAMIC_BROKER),
        ("8", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("4", ConfigSource.STATIC_BROKER),
    ]
    assert log_config(broker, {}).segment_ms == 7


def test_quota_windows_follow_their_settings() -> None:
    settings = ["quota.window.num=3", "quota.window.size.seconds=2"]
    quotas = Quotas(BrokerConfig.parse(settings), lambda: 0)
    quotas.replace({(("client-id", None),): {"consumer_byte_rate": 100.0}})
    assert quotas.most_in_window("consumer_byte_rate", "u", "c") == 400
    assert quotas.record("consumer_byte_rate", "u", "c", 800) == 4000
    settings = ["controller.quota.window.num=3", "controller.quota.window.size.seconds=2"]
    quotas = Quotas(BrokerConfig.parse(settings), lambda: 0)
    quotas.replace({(("client-id", None),): {"controller_mutation_rate": 1.0}})
    quotas.mutate("u", "c", 8, strict=False)
    assert quotas.mutation_throttle_ms("u", "c") == 2000


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("log.roll.ms=0", "at least 1"),
        ("log.retention.ms=0", "unlimited"),
        ("log.retention.hours=0", "unlimited"),
        ("log.flush.interval.ms=-1", "at least 0"),
        ("log.cleaner.dedupe.buffer.size=1000", "1MB per cleaner thread"),
        ("num.io.threads=0", "at least 1"),
        ("compression.gzip.level=0", "between 1 and 9 or equal to -1"),
        ("num.partitions=1_000", "Not a number of type INT"),
        ("log.cleaner.min.cleanable.ratio=nan", "Not a number of type DOUBLE"),
        ("log.cleaner.io.max.bytes.per.second=1_0", "Not a number of type DOUBLE"),
    ],
)
def test_values_that_kafka_refuses_at_the_start_are_refused_at_run_time(setting: str, complaint: str) -> None:
    """The broker refuses such a value before it stores the change. A stored value that is invalid only for topics
    would prevent new topics and a restart of the broker."""
    with pytest.raises(ConfigError, match=complaint):
        BrokerConfig.parse([setting])
    name, _, value = setting.partition("=")
    for cluster_wide in (False, True):
        with pytest.raises(ConfigError, match=complaint):
            BrokerConfig().after({name: value}, cluster_wide=cluster_wide)


def test_numbers_are_read_as_java_reads_them() -> None:
    ratio = config_keys.broker_keys()["log.cleaner.min.cleanable.ratio"]
    assert [ratio.parse(text) for text in ("0.5f", "1d", " .25 ", "5e-1D")] == [0.5, 1.0, 0.25, 0.5]
    assert config_keys.topic_keys()["compression.gzip.level"].parse("-1") == -1
    assert log_config(BrokerConfig.parse(["log.retention.ms=-5"]), {}).retention_ms == -1


def test_settings_that_depend_on_each_other_are_checked_at_run_time() -> None:
    broker = BrokerConfig()
    broker.set_dynamic({}, {"log.cleaner.threads": "2"})
    with pytest.raises(ConfigError, match="1MB per cleaner thread"):
        broker.after({"log.cleaner.dedupe.buffer.size": "1500000"}, cluster_wide=False)
    broker.after({"log.cleaner.dedupe.buffer.size": "2500000"}, cluster_wide=False)
    broker.after({"log.cleaner.threads": None, "log.cleaner.dedupe.buffer.size": "1500000"}, cluster_wide=True)
    with pytest.raises(ConfigError, match=r"group\.consumer\.assignment\.interval\.ms"):
        broker.after({"group.consumer.assignment.interval.ms": "99999"}, cluster_wide=True)
    assert broker.cluster_wide == {"min.insync.replicas": "1", "log.cleaner.threads": "2"}


def test_settings_for_kafkas_tests_are_accepted_and_listed_only_if_set() -> None:
    names = {row.key.name for row in describe_broker(BrokerConfig.parse(["log.initial.task.delay.ms=0"]))}
    assert "log.initial.task.delay.ms" in names
    assert "unstable.api.versions.enable" not in names
    assert "log.initial.task.delay.ms" not in DYNAMIC
    settings = ["group.consumer.regex.refresh.interval.ms=10000"]
    assert GroupConfig.of(BrokerConfig.parse(settings).value).consumer_regex_refresh_interval_ms == 10_000
    with pytest.raises(ConfigError, match="at least 10000"):
        BrokerConfig.parse(["group.consumer.regex.refresh.interval.ms=5"])


TYPES = {
    ConfigType.BOOLEAN: bool, ConfigType.STRING: str, ConfigType.INT: int, ConfigType.SHORT: int, ConfigType.LONG: int,
    ConfigType.DOUBLE: float, ConfigType.LIST: tuple[str, ...], ConfigType.CLASS: str, ConfigType.PASSWORD: str,
}  # fmt: skip


def test_the_types_of_attributes_are_those_of_the_parser() -> None:
    """A type checker takes the types of the attributes from the kinds of the table."""
    kinds = [one for one in vars(config_table).values() if isinstance(one, config_table.SettingKind)]
    assert len(kinds) == len(TYPES)
    for kind in kinds:
        assert kind.__orig_class__.__args__ == (TYPES[ConfigType[kind.name.upper()]],)
    config = BrokerConfig()
    for key in broker_keys().values():
        kind = TYPES[key.type]
        expected = type(None) if key.default is None else tuple if kind == tuple[str, ...] else kind
        assert type(config.value(key.name)) is expected
