"""Apache Kafka 4.3's tools and clients at a cluster of three brokers and a controller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import eventually
from support.jvm import KafkaTools

import odradek
from odradek.cli.main import run

pytestmark = pytest.mark.slow
TOOLS = "org.apache.kafka.tools."


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(3, racks=["a", "b", "c"]) as made:
        yield made


@pytest.fixture(params=["--bootstrap-server", "--bootstrap-controller"])
def where(request: pytest.FixtureRequest, cluster: odradek.Cluster) -> tuple[str, str]:
    is_server = request.param == "--bootstrap-server"
    return request.param, cluster.bootstrap_servers if is_server else cluster.bootstrap_controllers


def said(tools: KafkaTools, name: str, *words: str) -> str:
    done = tools.run(name, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quorum_is_described(cluster: odradek.Cluster, where: tuple[str, str], kafka_tools: KafkaTools) -> None:
    text = said(kafka_tools, f"{TOOLS}MetadataQuorumCommand", *where, "describe", "--status")
    lines = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    assert (lines["ClusterId"], lines["LeaderId"], lines["LeaderEpoch"]) == (cluster.cluster_id, "100", "1")
    endpoint = f"CONTROLLER://{cluster.bootstrap_controllers}"
    assert json.loads(lines["CurrentVoters"]) == [{"id": 100, "endpoints": [endpoint]}]
    assert sorted(one["id"] for one in json.loads(lines["CurrentObservers"])) == [1, 2, 3]
    rows = said(kafka_tools, f"{TOOLS}MetadataQuorumCommand", *where, "describe", "--replication").splitlines()[1:]
    assert sorted((row.split()[0], row.split()[-1]) for row in rows) == [
        ("1", "Observer"), ("100", "Leader"), ("2", "Observer"), ("3", "Observer")
    ]  # fmt: skip


def test_the_cluster_is_described(cluster: odradek.Cluster, where: tuple[str, str], kafka_tools: KafkaTools) -> None:
    tool = f"{TOOLS}ClusterTool"
    assert said(kafka_tools, tool, "cluster-id", *where).strip() == f"Cluster ID: {cluster.cluster_id}"
    rows = said(kafka_tools, tool, "list-endpoints", *where).splitlines()[1:]
    expected = ["1", "2", "3"] if where[0] == "--bootstrap-server" else ["100"]
    assert [row.split()[0] for row in rows] == expected
    levels = said(kafka_tools, f"{TOOLS}FeatureCommand", *where, "describe")
    assert re.search(r"metadata.version .*FinalizedVersionLevel: 4.3-IV0", levels)
    assert re.search(r"kraft.version .*FinalizedVersionLevel: 0", levels)


def test_settings_are_described_and_changed(
    cluster: odradek.Cluster, where: tuple[str, str], kafka_tools: KafkaTools
) -> None:
    """The settings of all brokers and of one: a broker answers for itself, the controller for any when it changes
    them, and for itself when it describes them, as in Apache Kafka."""
    configs, is_server = "kafka.admin.ConfigCommand", where[0] == "--bootstrap-server"
    brokers = ("--entity-type", "brokers")
    own = "1" if is_server else "100"
    asked = (where[0], cluster.address(1)) if is_server else where
    for name, entity in (("log.retention.ms", ("--entity-default",)), ("log.cleaner.threads", ("--entity-name", own))):
        said(kafka_tools, configs, *asked, "--alter", *brokers, *entity, "--add-config", f"{name}=2")
        assert f"{name}=2" in said(kafka_tools, configs, *asked, "--describe", *brokers, *entity)
        said(kafka_tools, configs, *asked, "--alter", *brokers, *entity, "--delete-config", name)
        assert f"{name}=2" not in said(kafka_tools, configs, *asked, "--describe", *brokers, *entity)
    assert "node.id" in said(kafka_tools, configs, *asked, "--describe", "--all", *brokers, "--entity-name", own)
    unknown = ("--alter", *brokers, "--entity-name", "77", "--add-config", "log.cleaner.threads=2")
    assert kafka_tools.run(configs, *asked, *unknown).returncode != 0


def test_topics_settings_groups_and_the_metadata_log(cluster: odradek.Cluster, kafka_tools: KafkaTools) -> None:
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    topic = f"{TOOLS}TopicCommand"
    said(kafka_tools, topic, *where, "--create", "--topic", "tools", "--partitions", "3")
    said(kafka_tools, topic, *where, "--alter", "--topic", "tools", "--partitions", "6")
    leaders = re.findall(
        r"Partition: \d+\tLeader: (\d)", said(kafka_tools, topic, *where, "--describe", "--topic", "tools")
    )
    assert len(leaders) == 6
    assert set(leaders) == {"1", "2", "3"}
    configs, of_topic = "kafka.admin.ConfigCommand", ("--entity-type", "topics", "--entity-name", "tools")
    said(kafka_tools, configs, *where, "--alter", *of_topic, "--add-config", "retention.ms=100000")
    assert "retention.ms=100000" in said(kafka_tools, configs, *where, "--describe", *of_topic)
    said(kafka_tools, f"{TOOLS}ConsoleProducer", *where, "--topic", "tools")
    with odradek.Producer(cluster.client_settings) as producer:
        for number in range(60):
            producer.send("tools", b"v", key=str(number).encode())
    read = ("--topic", "tools", "--group", "java", "--from-beginning", "--max-messages", "60", "--timeout-ms", "30000")
    assert said(kafka_tools, f"{TOOLS}consumer.ConsoleConsumer", *where, *read).count("v\n") == 60
    rows = said(kafka_tools, f"{TOOLS}consumer.group.ConsumerGroupCommand", *where, "--describe", "--group", "java")
    offsets = re.findall(r"^java\s+tools\s+(\d)\s+(\d+)\s+(\d+)\s+0\s", rows, re.MULTILINE)
    assert sum(int(committed) for _, committed, _ in offsets) == 60
    assert len(offsets) == 6
    for node in ("controller", "2"):
        log = min((cluster.data_dir / node / "__cluster_metadata-0").glob("*.log"))
        dump = said(kafka_tools, f"{TOOLS}DumpLogSegments", "--files", str(log), "--cluster-metadata-decoder")
        kinds = set(re.findall(r'payload: \{"type":"(\w+)"', dump))
        assert {"REGISTER_BROKER_RECORD", "TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD"} <= kinds
        assert "LeaderChange" in dump
        assert "isvalid: false" not in dump


def test_foreign_clients_use_topics_whose_leaders_are_spread(cluster: odradek.Cluster) -> None:
    """Each reads what all have sent, and commits. Java's client is in the test before."""
    import asyncio

    import aiokafka
    import confluent_kafka
    import kafka

    from odradek.client import NewTopic

    name, where, count = "spread", cluster.bootstrap_servers, 30
    with odradek.Admin(where) as admin:
        admin.create_topics([NewTopic(name, 6)])
        assert {one.leader for one in admin.describe_topics([name])[name].partitions} == {1, 2, 3}
    librdkafka = confluent_kafka.Producer({"bootstrap.servers": where})
    python = kafka.KafkaProducer(bootstrap_servers=where.split(","))
    for number in range(count):
        librdkafka.produce(name, f"librdkafka-{number}", partition=number % 6)
        python.send(name, f"python-{number}".encode(), partition=number % 6)
    assert librdkafka.flush(60) == 0
    python.flush(60)
    python.close()

    async def by_aiokafka() -> set[bytes]:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=where) as producer:
            for number in range(count):
                await producer.send_and_wait(name, f"aio-{number}".encode(), partition=number % 6)
        found: set[bytes] = set()
        consumer = aiokafka.AIOKafkaConsumer(
            name, bootstrap_servers=where, group_id="aio", auto_offset_reset="earliest", enable_auto_commit=False
        )
        async with consumer:
            while len(found) < 3 * count:
                found.add((await asyncio.wait_for(consumer.getone(), 60)).value or b"")
            await consumer.commit()
        return found

    sent = asyncio.run(by_aiokafka())
    assert len(sent) == 3 * count
    reader = kafka.KafkaConsumer(
        name, bootstrap_servers=where.split(","), group_id="python", auto_offset_reset="earliest",
        enable_auto_commit=False, consumer_timeout_ms=60_000,
    )  # fmt: skip
    found = {next(reader).value for _ in sent}
    reader.commit()
    reader.close()
    assert found == sent
    other = confluent_kafka.Consumer(
        {"bootstrap.servers": where, "group.id": "librdkafka", "auto.offset.reset": "earliest"}
    )
    other.subscribe([name])
    found = set()
    while len(found) < len(sent):
        record = other.poll(60)
        assert record is not None
        assert record.error() is None
        found.add(record.value())
    other.commit(asynchronous=False)
    other.close()
    assert found == sent
    with odradek.Admin(where) as admin:
        for group in ("aio", "python", "librdkafka"):
            assert sum(one.offset for one in admin.list_group_offsets(group).values()) == 3 * count


def test_our_command_describes_apache_kafka(kafka_cp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from support.jvm import kafka_java_options

    from bench.apache import ApacheBroker

    node = ApacheBroker(tmp_path / "kafka", {}, cp=kafka_cp, heap="300m", java_options=kafka_java_options())
    node.start(120)
    try:
        assert run(["cluster", "describe", "-b", node.bootstrap, "--json"]) == 0
    finally:
        node.kill()
    (found,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (found["roles"], found["fenced"], found["lag"]) == (["broker", "controller"], False, 0)
    assert f"{found['host']}:{found['port']}" == node.bootstrap


def test_replicas_are_described_and_leaders_elected(
    cluster: odradek.Cluster, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    """kafka-topics with its filters, and kafka-leader-election, while a broker is away."""
    topics, elections = f"{TOOLS}TopicCommand", f"{TOOLS}LeaderElectionCommand"
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    name = "r"
    settings = ("--config", "min.insync.replicas=2")
    said(kafka_tools, topics, *where, "--create", "--topic", name, "--replica-assignment", "3:1:2,1:2:3", *settings)

    def described(*options: str) -> list[str]:
        text = said(kafka_tools, topics, *where, "--describe", "--topic", name, *options)
        return [line.strip() for line in text.splitlines() if "\tPartition: " in line]

    rows = described()
    assert re.search(r"Partition: 0\s+Leader: 3\s+Replicas: 3,1,2\s+Isr: 3,1,2\s+Elr:\s+LastKnownElr:", rows[0]), rows
    filters = "--under-replicated-partitions", "--under-min-isr-partitions", "--at-min-isr-partitions"
    filters = (*filters, "--unavailable-partitions")
    assert [len(described(option)) for option in filters] == [0, 0, 0, 0]
    cluster.stop(3)
    assert [len(described(option)) for option in filters] == [2, 0, 2, 0]
    assert re.search(r"Partition: 0\s+Leader: 1\s", described()[0])
    one = ("--election-type", "preferred", "--topic", name, "--partition", "0")
    refused = kafka_tools.run(elections, *where, *one)
    assert refused.returncode != 0
    assert "The preferred leader was not available" in refused.stdout + refused.stderr
    cluster.start(3)
    eventually(lambda: described(filters[0]) == [], within_s=60, what="broker 3 in sync")
    text = said(kafka_tools, elections, *where, "--election-type", "preferred", "--all-topic-partitions")
    assert re.search(rf"completed leader election \(PREFERRED\) for partitions .*\b{name}-0\b", text), text
    assert re.search(r"Partition: 0\s+Leader: 3\s", described()[0])
    text = said(kafka_tools, elections, *where, "--election-type", "unclean", "--topic", name, "--partition", "1")
    assert "Valid replica already elected for partitions r-1" in text


def test_brokers_are_unregistered(kafka_tools: KafkaTools) -> None:
    """Brokers that are stopped for good, by a broker and by the controller. One that comes back registers again."""
    tool = f"{TOOLS}ClusterTool"
    with odradek.Cluster(3, config={"broker.session.timeout.ms": 3000}) as cluster:
        for number, where in (
            (3, ("--bootstrap-server", cluster.address(1))),
            (2, ("--bootstrap-controller", cluster.bootstrap_controllers)),
        ):
            cluster.stop(number)
            endpoints = ("list-endpoints", "--bootstrap-server", cluster.address(1), "--include-fenced-brokers")
            assert str(number) in [row.split()[0] for row in said(kafka_tools, tool, *endpoints).splitlines()[1:]]
            text = said(kafka_tools, tool, "unregister", *where, "--id", str(number))
            assert text.strip() == f"Broker {number} is no longer registered."
            left = [row.split()[0] for row in said(kafka_tools, tool, *endpoints).splitlines()[1:]]
            assert left == [str(one) for one in range(1, number)]
            again = kafka_tools.run(tool, "unregister", *where, "--id", str(number))
            assert again.returncode != 0
            assert "BrokerIdNotRegisteredException" in again.stdout + again.stderr
        cluster.start()
        rows = said(kafka_tools, tool, "list-endpoints", "--bootstrap-server", cluster.address(1)).splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["1", "2", "3"]
