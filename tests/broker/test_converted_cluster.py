"""The directory of a lone broker becomes that of broker 1 of a cluster, on processes, also after kill -9."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import odradek
from odradek.cli.main import run
from odradek.client import NewTopic
from odradek.storage.disk import checkpoints

RECORDS = [b"record %d" % number for number in range(100)]
KILLED = """
import os, signal, sys
from odradek.storage.disk.files import OsFiles
left = [int(sys.argv[1])]
def counted(change):
    def changed(*given, **options):
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return change(*given, **options)
    return changed
OsFiles.rename, OsFiles.write = counted(OsFiles.rename), counted(OsFiles.write)
from odradek.cli.main import run
run(["cluster", "convert", "--data-dir", sys.argv[2]])
"""


def use(broker: odradek.Broker) -> None:
    """Makes topics, records, a commit and a setting."""
    with odradek.Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 3, configs={"retention.ms": "-1"})])
    with odradek.Producer(broker.bootstrap_servers) as producer:
        for number, value in enumerate(RECORDS):
            producer.send("orders", value, partition=number % 3)
    with odradek.Consumer(broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        assert sorted(read(consumer, len(RECORDS))) == sorted(RECORDS)
        consumer.commit()


def read(consumer: odradek.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        some = [record.value or b"" for record in consumer.poll(20.0).records()]
        assert some, f"{len(found)} of {count} records"
        found += some
    return found


def check(home: Path) -> None:
    """Runs the cluster: everything is there, new topics use both brokers, and the group goes on."""
    settings = {"broker.session.timeout.ms": 3_000, "offsets.topic.replication.factor": 1}
    with odradek.Cluster(brokers=2, data_dir=home, config=settings) as cluster:
        with odradek.Admin(cluster.bootstrap_servers) as admin:
            orders = admin.describe_topics(["orders"])["orders"]
            assert {part.leader for part in orders.partitions} == {1}
            admin.create_topics([NewTopic("new", 4)])
            assert {part.leader for part in admin.describe_topics(["new"])["new"].partitions} == {1, 2}
        with odradek.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([("orders", number) for number in range(3)])
            assert sorted(read(consumer, len(RECORDS))) == sorted(RECORDS)
        with odradek.Producer(cluster.bootstrap_servers) as producer:
            assert producer.send("orders", b"later", partition=0).result().offset == 34
        with odradek.Consumer(cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            assert read(consumer, 1) == [b"later"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_topics_records_and_commits_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str) -> None:
    with odradek.Broker(data_dir=tmp_path / "lone") as broker:
        use(broker)
        getattr(broker, how)()
    (tmp_path / "c").mkdir()
    (tmp_path / "lone").rename(tmp_path / "c" / "1")
    assert run(["cluster", "convert", "--data-dir", str(tmp_path / "c" / "1")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path}/c/1 is the directory of broker 1 of the cluster ")
    assert said.endswith(f"; {tmp_path}/c/controller is that of its controller with 2 topics\n")
    check(tmp_path / "c")


@pytest.mark.parametrize("changes", [5, 10])
def test_a_killed_conversion_leaves_a_lone_broker_or_is_finished(tmp_path: Path, changes: int) -> None:
    home = tmp_path / "c"
    with odradek.Broker(data_dir=home / "1") as broker:
        use(broker)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(changes), str(home / "1")], check=False)
    assert killed.returncode == -signal.SIGKILL
    if not (home / "1" / checkpoints.CONVERSION).exists():
        assert changes == 5
        with odradek.Broker(data_dir=home / "1") as broker, odradek.Admin(broker.bootstrap_servers) as admin:
            assert len(admin.describe_topics(["orders"])["orders"].partitions) == 3
        assert run(["cluster", "convert", "--data-dir", str(home / "1")]) == 0
    else:
        assert changes > 5
        with pytest.raises(odradek.testing.process.BrokerFailed, match="odradek cluster convert"):
            odradek.Broker(data_dir=home / "1").start()
    check(home)


def test_a_wrong_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "convert", "--data-dir", str(tmp_path / "none")]) == 2
    with odradek.Broker(data_dir=tmp_path / "b" / "1", in_thread=True):
        assert run(["cluster", "convert", "--data-dir", str(tmp_path / "b" / "1")]) == 2
    assert run(["cluster", "convert", "--data-dir", str(tmp_path / "b" / "1"), "--controller-id", "1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/none does not exist" in lines[0]
    assert f"{tmp_path}/b/1 is held by another broker" in lines[1]
    assert lines[2] == f"odradek: {tmp_path}/b/1 belongs to node 1: give the controller another number"
