"""Apache Kafka 4.3's tools and clients at a cluster whose nodes and clients use TLS and logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import Authority
from support.jvm import KafkaTools
from support.secured_cluster import (
    AUTHORIZER,
    NODE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    SECRET,
    SecuredCluster,
    first_user,
    plain_login,
    scram_login,
    stores,
)

pytestmark = pytest.mark.slow
TOOLS = "org.apache.kafka.tools."


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredCluster]:
    home = tmp_path_factory.mktemp("secured")
    settings = {
        **stores(authority, "controller"), **stores(authority, "inner"), **stores(authority, "outer"),
        **scram_login("controller"), **plain_login("inner"), **plain_login("outer"), **AUTHORIZER,
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256", "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }  # fmt: skip
    protocols = dict.fromkeys(("CONTROLLER", "INNER", "OUTER"), "SASL_SSL")
    with SecuredCluster(home, protocols, settings, first_users=first_user(home)) as made:
        yield made


@pytest.fixture(params=["--bootstrap-server", "--bootstrap-controller"])
def where(
    request: pytest.FixtureRequest, cluster: SecuredCluster, authority: Authority, tmp_path: Path
) -> tuple[str, ...]:
    """The words of a tool: an address, and the file with its TLS and login."""
    is_server = request.param == "--bootstrap-server"
    mechanism, module = ("PLAIN", PLAIN_MODULE) if is_server else ("SCRAM-SHA-256", SCRAM_MODULE)
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.pem}\n"
        f'sasl.mechanism={mechanism}\nsasl.jaas.config={module} username="{NODE}" password="{SECRET}";\n'
    )
    address = cluster.outer[1] if is_server else cluster.controller.bootstrap
    return request.param, address, "--command-config", str(file)


def said(tools: KafkaTools, name: str, *words: str) -> str:
    done = tools.run(name, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quorum_and_the_cluster_are_described(where: tuple[str, ...], kafka_tools: KafkaTools) -> None:
    option, address, _, file = where
    quorum = said(kafka_tools, f"{TOOLS}MetadataQuorumCommand", *where, "describe", "--status")
    assert "LeaderId:" in quorum
    config = ("--config", file)
    rows = said(kafka_tools, f"{TOOLS}ClusterTool", "list-endpoints", option, address, *config).splitlines()
    assert [row.split()[0] for row in rows if row[:1].isdigit()] == (
        ["1", "2"] if option == "--bootstrap-server" else ["100"]
    )


def test_topics_records_and_groups(
    cluster: SecuredCluster, kafka_tools: KafkaTools, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.pem}\n"
        f'sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN_MODULE} username="{NODE}" password="{SECRET}";\n'
    )
    where = ("--bootstrap-server", cluster.outer[2], "--command-config", str(file))
    said(kafka_tools, f"{TOOLS}TopicCommand", *where, "--create", "--topic", "t", "--partitions", "4")
    assert "PartitionCount: 4" in said(kafka_tools, f"{TOOLS}TopicCommand", *where, "--describe", "--topic", "t")
    lines = "".join(f"line-{number}\n" for number in range(20))
    at = ("--bootstrap-server", cluster.outer[1])
    done = kafka_tools.run(f"{TOOLS}ConsoleProducer", *at, "--topic", "t", "--command-config", str(file), stdin=lines)
    assert done.returncode == 0, done.stdout + done.stderr
    words = ("--topic", "t", "--group", "g", "--from-beginning", "--max-messages", "20", "--timeout-ms", "40000")
    read = kafka_tools.run(f"{TOOLS}consumer.ConsoleConsumer", *at, *words, "--command-config", str(file))
    assert sorted(read.stdout.split()) == sorted(lines.split()), read.stderr[-2000:]
    groups = said(kafka_tools, f"{TOOLS}consumer.group.ConsumerGroupCommand", *where, "--describe", "--group", "g")
    rows = [row.split() for row in groups.splitlines() if row.startswith("g ")]
    assert sum(int(row[3]) for row in rows) == 20
    acl = ("--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "t")
    said(kafka_tools, "org.apache.kafka.tools.AclCommand", *where, *acl)
    listed = said(kafka_tools, "org.apache.kafka.tools.AclCommand", *where, "--list")
    assert "principal=User:alice" in listed
