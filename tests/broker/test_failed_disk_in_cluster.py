"""A disk that fails stops a broker of a cluster: its leaders move, it is fenced, and it ends with one line."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers import eventually
from support.faulty_process import FaultyProcess

import odradek

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the hook finds the names of files in /proc"),
]
SETTINGS = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 300, "min.insync.replicas": 2}
REPLICAS = {"t": [2, 3, 1], "other": [3, 2, 1]}


def send(cluster: odradek.Cluster, number: int) -> int:
    """Sends a number with acks=all, until it is acknowledged. Returns its offset."""
    found: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
    producer.produce("t", str(number), on_delivery=lambda error, sent: found.append(-1 if error else sent.offset()))
    assert producer.flush(120) == 0
    return found[0]


def read(cluster: odradek.Cluster, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


def has_left(cluster: odradek.Cluster, failed: int) -> bool:
    """Whether a broker is fenced, leads nothing and is in no ISR."""
    with odradek.Admin(cluster.address(1)) as admin:
        topics = admin.describe_topics(REPLICAS)
        parts = [topics[name].partitions[0] for name in REPLICAS]
        fenced = {one.node_id for one in admin.describe_nodes().nodes if one.is_fenced}
        return failed in fenced and all(one.leader in {1, 2, 3} - {failed} and failed not in one.isr for one in parts)


@pytest.mark.usefixtures("plain_broker")  # the hook acts at the start of a Python process
def test_a_disk_that_fails_takes_its_broker_out_of_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the disk of the leader, then that of a follower. What is acknowledged stays."""
    faulty = FaultyProcess(tmp_path)
    for name, value in faulty.variables.items():
        monkeypatch.setenv(name, value)
    with odradek.Cluster(3, config=SETTINGS, data_dir=tmp_path / "nodes") as cluster:
        made = [NewTopic(name, 1, replica_assignment=[brokers]) for name, brokers in REPLICAS.items()]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for created in admin.create_topics(made).values():
            created.result()
        sent = [send(cluster, 0)]
        for number, failed in ((1, 2), (2, 3)):
            start = cluster.log_sizes()[failed]
            faulty.fail(("writev", errno.EIO, str(cluster.data_dir / str(failed) / "t-0")))
            sent.append(send(cluster, number))
            eventually(lambda failed=failed: failed in cluster.failed(), within_s=60, what="the broker does not end")
            eventually(lambda failed=failed: has_left(cluster, failed), within_s=60, what="the broker does not leave")
            text = cluster.log_tail(failed, start)
            (line,) = [line for line in text.splitlines() if "the broker ends" in line]
            assert "t-0 is offline because append failed: " in line
            assert "Input/output error" in line
            assert line.endswith("; the next start checks the logs")
            faulty.fail()
            cluster.start(failed)
            cluster.wait_until_in_sync()
            with odradek.Admin(cluster.bootstrap_servers) as elections:
                elections.elect_leaders("preferred")
        assert sent == [0, 1, 2]
        assert read(cluster, 3) == [b"0", b"1", b"2"]
