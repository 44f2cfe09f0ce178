"""Apache Kafka's administrative tools against the broker: topics, configs, quotas, log directories, leaders, quorum."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from brokers import CONFIG, unique
from publish import create_topic, publish

from odradek.testing.cluster import BrokerProcess

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("admin-tools"), config=CONFIG) as broker:
        yield broker


@pytest.fixture(scope="module")
def java_tool(kafka_cp: str) -> Tool:
    from bench.apache import java

    def run(name: str, *arguments: str) -> str:
        command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", kafka_cp, name]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{name} {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def tool(running: BrokerProcess, java_tool: Tool) -> Tool:
    def run(name: str, *arguments: str) -> str:
        return java_tool(name, "--bootstrap-server", running.bootstrap, *arguments)

    return run


def tools(name: str) -> str:
    return f"org.apache.kafka.tools.{name}"


CONFIGS = "kafka.admin.ConfigCommand"


def test_topics_are_described_with_their_configs(tool: Tool) -> None:
    # Describing asks ListPartitionReassignments and DescribeTopicPartitions as well.
    topic = unique("topic")
    tool(tools("TopicCommand"), "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=5000")
    described = tool(tools("TopicCommand"), "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert "retention.ms=5000" in described
    assert len(re.findall(r"Leader: 1\tReplicas: 1\tIsr: 1", described)) == 2


def test_quotas(tool: Tool) -> None:
    client = unique("client")
    who = ["--entity-type", "clients", "--entity-name", client]
    tool(CONFIGS, "--alter", *who, "--add-config", "producer_byte_rate=1000,request_percentage=50")
    described = tool(CONFIGS, "--describe", *who)
    assert "producer_byte_rate=1000.0" in described
    assert "request_percentage=50.0" in described
    tool(CONFIGS, "--alter", *who, "--delete-config", "producer_byte_rate,request_percentage")
    assert "byte_rate" not in tool(CONFIGS, "--describe", *who)


def test_settings_of_brokers_and_loggers(tool: Tool) -> None:
    who = ["--entity-type", "brokers", "--entity-name", "1"]
    tool(CONFIGS, "--alter", *who, "--add-config", "log.cleaner.backoff.ms=10001")
    described = tool(CONFIGS, "--describe", *who)
    assert (
        "DYNAMIC_BROKER_CONFIG:log.cleaner.backoff.ms=10001, DEFAULT_CONFIG:log.cleaner.backoff.ms=15000" in described
    )
    tool(CONFIGS, "--alter", *who, "--delete-config", "log.cleaner.backoff.ms")
    assert len(re.findall(r"^  \S+=", tool(CONFIGS, "--describe", "--all", *who), re.MULTILINE)) > 300
    assert "odradek.broker=" in tool(CONFIGS, "--describe", "--entity-type", "broker-loggers", "--entity-name", "1")


def test_log_directories_and_reassignments_that_change_nothing(
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


def test_the_quorum_is_this_broker(tool: Tool) -> None:
    status = tool(tools("MetadataQuorumCommand"), "describe", "--status")
    assert re.search(r"LeaderId: +1\n", status)
    assert re.search(r"MaxFollowerLag: +0\n", status)


def test_kafka_reads_our_metadata_log(running: BrokerProcess, tool: Tool, java_tool: Tool) -> None:
    client = unique("client")
    tool(
        CONFIGS, "--alter", "--entity-type", "clients", "--entity-name", client, "--add-config", "producer_byte_rate=7"
    )
    segment = running.data_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    dump = java_tool(tools("DumpLogSegments"), "--cluster-metadata-decoder", "--files", str(segment))
    written = [json.loads(line.partition("payload: ")[2]) for line in dump.splitlines() if "payload: {" in line]
    quotas = [record["data"] for record in written if record["type"] == "CLIENT_QUOTA_RECORD"]
    entity = [{"entityType": "client-id", "entityName": client}]
    assert {"entity": entity, "key": "producer_byte_rate", "value": 7.0, "remove": False} in quotas
    assert "malformed" not in dump.lower()
