"""Apache Kafka's administrative tools with the broker, and its tool that reads our metadata log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers import CONFIG, unique
from support.jvm import KafkaTools
from support.publish import create_topic, publish

from odradek.testing.process import BrokerProcess

Tool = Callable[..., str]


def tools(name: str) -> str:
    return f"org.apache.kafka.tools.{name}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("admin-tools"), config=CONFIG) as broker:
        yield broker


@pytest.fixture(scope="module")
def java_tool(kafka_tools: KafkaTools) -> Tool:
    def run(name: str, *arguments: str) -> str:
        done = kafka_tools.run(name, *arguments)
        assert done.returncode == 0, f"{name} {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def tool(running: BrokerProcess, java_tool: Tool) -> Tool:
    def run(name: str, *arguments: str) -> str:
        return java_tool(name, "--bootstrap-server", running.bootstrap, *arguments)

    return run


CONFIGS = "kafka.admin.ConfigCommand"


def test_topics_are_described_with_their_configs(tool: Tool) -> None:
    # --describe also sends ListPartitionReassignments and DescribeTopicPartitions.
    topic = unique("topic")
    tool(tools("TopicCommand"), "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=5000")
    described = tool(tools("TopicCommand"), "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert "retention.ms=5000" in described
    assert len(re.findall(r"Leader: 1\tReplicas: 1\tIsr: 1", described)) == 2


def test_quotas_are_changed_and_described(tool: Tool) -> None:
    client = unique("client")
    entity_options = ["--entity-type", "clients", "--entity-name", client]
    tool(CONFIGS, "--alter", *entity_options, "--add-config", "producer_byte_rate=1000,request_percentage=50")
    described = tool(CONFIGS, "--describe", *entity_options)
    assert "producer_byte_rate=1000.0" in described
    assert "request_percentage=50.0" in described
    tool(CONFIGS, "--alter", *entity_options, "--delete-config", "producer_byte_rate,request_percentage")
    assert "byte_rate" not in tool(CONFIGS, "--describe", *entity_options)


def test_settings_of_brokers_are_changed_and_loggers_described(tool: Tool) -> None:
    entity_options = ["--entity-type", "brokers", "--entity-name", "1"]
    tool(CONFIGS, "--alter", *entity_options, "--add-config", "log.cleaner.backoff.ms=10001")
    described = tool(CONFIGS, "--describe", *entity_options)
    assert (
        "DYNAMIC_BROKER_CONFIG:log.cleaner.backoff.ms=10001, DEFAULT_CONFIG:log.cleaner.backoff.ms=15000" in described
    )
    tool(CONFIGS, "--alter", *entity_options, "--delete-config", "log.cleaner.backoff.ms")
    assert len(re.findall(r"^  \S+=", tool(CONFIGS, "--describe", "--all", *entity_options), re.MULTILINE)) > 300
    assert "odradek.broker=" in tool(CONFIGS, "--describe", "--entity-type", "broker-loggers", "--entity-name", "1")


def test_log_directories_are_described_and_reassignments_change_nothing(
    running: BrokerProcess, tool: Tool, tmp_path: Path
) -> None:
    topic = unique("topic")
    create_topic(running.bootstrap, topic, 1)
    publish(running.bootstrap, topic, [b"x" * 100])
    described = json.loads(tool(tools("LogDirsCommand"), "--describe", "--topic-list", topic).splitlines()[-1])
    (directory,) = described["brokers"][0]["logDirs"]
    assert directory["logDir"] == str(running.data_dir)
    assert directory["partitions"][0]["size"] > 100
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]}))
    reassign = (tools("reassign.ReassignPartitionsCommand"), "--reassignment-json-file", str(plan))
    assert "Successfully started" in tool(*reassign, "--execute")
    assert f"{topic}-0 is completed" in tool(*reassign, "--verify")
    elected = tool(tools("LeaderElectionCommand"), "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "already elected" in elected


FEATURES = {
    "eligible.leader.replicas.version": ("0", "1", "1"),
    "group.version": ("0", "1", "1"),
    "kraft.version": ("0", "1", "0"),
    "metadata.version": ("3.3-IV3", "4.3-IV0", "4.3-IV0"),
    "share.version": ("0", "1", "1"),
    "streams.version": ("0", "1", "1"),
    "transaction.version": ("0", "2", "2"),
}
"""The levels of a newly formatted Apache Kafka 4.3, as the tool shows them: lowest, highest and finalized."""


def test_features_are_described_and_changed(tool: Tool) -> None:
    def described() -> dict[str, tuple[str, str, str]]:
        pattern = (
            r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)"
        )
        return {name: levels for name, *levels in re.findall(pattern, tool(command, "describe"))}

    command, feature = tools("FeatureCommand"), "transaction.version"
    assert {name: tuple(levels) for name, levels in described().items()} == FEATURES
    assert "was downgraded to 1" in tool(command, "downgrade", "--feature", f"{feature}=1")
    assert described()[feature][2] == "1"
    assert "was upgraded to 2" in tool(command, "upgrade", "--feature", f"{feature}=2")
    assert described()[feature][2] == "2"


def test_credentials_of_users_are_changed_and_described(tool: Tool) -> None:
    user = unique("user")
    entity_options = ["--entity-type", "users", "--entity-name", user]
    for credential in ("SCRAM-SHA-256=[iterations=8192,password=s3cr3t]", "SCRAM-SHA-512=[password=p]"):
        tool(CONFIGS, "--alter", *entity_options, "--add-config", credential)  # one per request, as with Kafka
    described = tool(CONFIGS, "--describe", *entity_options)
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    assert f"user-principal '{user}'" in tool(CONFIGS, "--describe", "--entity-type", "users")
    tool(CONFIGS, "--alter", *entity_options, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-512" in (left := tool(CONFIGS, "--describe", *entity_options))
    assert "SCRAM-SHA-256" not in left


REFUSED = {
    "ACLs": ([tools("AclCommand"), "--list"], "SecurityDisabledException"),
    "an ACL": (
        [tools("AclCommand"), "--add", "--allow-principal", "User:a", "--topic", "t", "--operation", "Read"],
        "SecurityDisabledException",
    ),
    "tokens": (
        [tools("DelegationTokenCommand"), "--describe", "--command-config", "/dev/null"],
        "UnsupportedByAuthenticationException",
    ),
    "voters": (
        [tools("MetadataQuorumCommand"), "remove-controller", "--controller-id", "1",
         "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ"],
        "UnsupportedVersionException",
    ),
    "a share group": (
        [tools("consumer.group.ShareGroupCommand"), "--describe", "--group", "g"], "UnsupportedVersionException",
    ),
    "a streams group": (
        [tools("streams.StreamsGroupCommand"), "--describe", "--group", "g"], "UnsupportedVersionException",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_tool_gets_an_error_for_an_unsupported_feature(
    running: BrokerProcess, kafka_tools: KafkaTools, what: str
) -> None:
    (name, *arguments), error = REFUSED[what]
    done = kafka_tools.run(name, "--bootstrap-server", running.bootstrap, *arguments)
    assert error in done.stdout + done.stderr
    assert "EOF" not in done.stdout + done.stderr


def test_the_quorum_is_this_broker(tool: Tool) -> None:
    status = tool(tools("MetadataQuorumCommand"), "describe", "--status")
    assert re.search(r"LeaderId: +1\n", status)
    assert re.search(r"MaxFollowerLag: +0\n", status)


@pytest.mark.claim(115, part="b")
def test_offset_commit_starts_at_version_2_and_no_tool_knows_zookeeper(tool: Tool, kafka_tools: KafkaTools) -> None:
    """Version 0 of OffsetCommit was for offsets in ZooKeeper, and version 1 for the first offsets topic."""
    versions = tool(tools("BrokerApiVersionsCommand"))
    assert re.search(r"\tOffsetCommit\(8\): 2 to 10 \[usable: 10\]", versions), versions
    for name in (tools("consumer.group.ConsumerGroupCommand"), tools("TopicCommand")):
        done = kafka_tools.run(name, "--zookeeper", "127.0.0.1:2181", "--list")
        assert done.returncode != 0
        assert "zookeeper is not a recognized option" in done.stdout + done.stderr


def test_kafka_reads_our_metadata_log(running: BrokerProcess, tool: Tool, java_tool: Tool) -> None:
    client = unique("client")
    tool(
        CONFIGS, "--alter", "--entity-type", "clients", "--entity-name", client, "--add-config", "producer_byte_rate=7"
    )
    user = unique("user")
    tool(
        CONFIGS,
        "--alter",
        "--entity-type",
        "users",
        "--entity-name",
        user,
        "--add-config",
        "SCRAM-SHA-256=[password=p]",
    )
    tool(tools("FeatureCommand"), "downgrade", "--feature", "share.version=0")
    segment = running.data_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    dump = java_tool(tools("DumpLogSegments"), "--cluster-metadata-decoder", "--files", str(segment))
    written = [json.loads(line.partition("payload: ")[2]) for line in dump.splitlines() if "payload: {" in line]
    quotas = [record["data"] for record in written if record["type"] == "CLIENT_QUOTA_RECORD"]
    entity = [{"entityType": "client-id", "entityName": client}]
    assert {"entity": entity, "key": "producer_byte_rate", "value": 7.0, "remove": False} in quotas
    features = [record["data"] for record in written if record["type"] == "FEATURE_LEVEL_RECORD"]
    assert {"name": "share.version", "featureLevel": 0} in features
    users = [record["data"] for record in written if record["type"] == "USER_SCRAM_CREDENTIAL_RECORD"]
    assert [(kept["mechanism"], kept["iterations"]) for kept in users if kept["name"] == user] == [(1, 4096)]
    assert "malformed" not in dump.lower()
