"""A controller that is started on an older copy of its folder, on processes: it ends, or the brokers end, with a line.

The older copy begins a leader epoch that the brokers know already, with other records.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import eventually

import odradek
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.client import NewTopic
from odradek.testing.process import BrokerFailed

SETTINGS = {
    "broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200, "metadata.max.idle.interval.ms": 100,
    "default.replication.factor": 1,
}  # fmt: skip
LOG = f"{DIRECTORY}/00000000000000000000.log"
REMEDY = "Stop all nodes, and put back its newest folder, or the copies of all folders that were made at the same stop"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[odradek.Cluster]:
    with odradek.Cluster(2, config=SETTINGS, data_dir=tmp_path / "cluster") as made:
        create(made, "kept")
        yield made


def create(cluster: odradek.Cluster, topic: str) -> None:
    """Returns when each broker has the topic's records: one that lacks them has no reason to end later."""
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    for broker in cluster.brokers:
        with odradek.Admin(cluster.address(broker)) as admin:
            eventually(lambda admin=admin: topic in admin.topics(), within_s=60, what=f"{topic} at broker {broker}")


def folder(cluster: odradek.Cluster) -> Path:
    return Path(cluster.data_dir) / "controller"


def copied(cluster: odradek.Cluster) -> Path:
    """Copies the folder of the controller, which does not run."""
    copy = Path(cluster.data_dir).parent / "copy"
    shutil.copytree(folder(cluster), copy)
    return copy


def put_back(cluster: odradek.Cluster, copy: Path) -> None:
    shutil.rmtree(folder(cluster))
    shutil.copytree(copy, folder(cluster))


def last_line(cluster: odradek.Cluster, node: int | str) -> str:
    eventually(lambda: not cluster.running(node), within_s=30, what=f"{node} does not end")
    return cluster.log_tail(node).splitlines()[-1]


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_brokers_that_were_stopped_meet_an_older_copy(cluster: odradek.Cluster) -> None:
    """The same leader epoch begins a second time, and the log is shorter than those of the brokers."""
    cluster.stop()
    copy = copied(cluster)
    cluster.start()
    create(cluster, "lost")
    cluster.stop()
    put_back(cluster, copy)
    cluster.start("controller")
    before = (Path(cluster.data_dir) / "1" / LOG).read_bytes()
    with pytest.raises(BrokerFailed, match="has other records than this broker has copied from it"):
        cluster.start(1)
    line = last_line(cluster, "controller")
    assert line.startswith(
        f"odradek broker: the controller ends: {folder(cluster) / DIRECTORY} is an older copy: node 1 "
    )
    assert REMEDY in line
    assert (Path(cluster.data_dir) / "1" / LOG).read_bytes() == before, "the witness is gone"
    with pytest.raises(BrokerFailed):  # the second attempt is refused, too
        cluster.start("controller").start(1)


def test_running_brokers_meet_an_older_copy_of_an_earlier_epoch(cluster: odradek.Cluster) -> None:
    cluster.kill("controller")
    copy = copied(cluster)
    for _ in range(2):
        cluster.start("controller")
        create(cluster, f"lost-{cluster.pid('controller')}")
        cluster.kill("controller")
    put_back(cluster, copy)

    def all_have_ended() -> bool:
        """The broker that comes first ends the controller, and a supervisor would start that again."""
        if not any(map(cluster.running, cluster.brokers)):
            return True
        if not cluster.running("controller"):
            cluster.start("controller")
        return False

    eventually(all_have_ended, within_s=60)
    for broker in cluster.brokers:
        line = last_line(cluster, broker)
        assert "odradek broker: the broker ends: the leader of the metadata log, node 100, " in line
        assert REMEDY in line
    said = cluster.log_tail("controller")
    assert f"the controller ends: {folder(cluster) / DIRECTORY} is an older copy: node " in said
    assert REMEDY in said


@pytest.mark.parametrize("restarts", [False, True])
def test_an_older_copy_whose_new_records_have_overtaken_the_old_end(cluster: odradek.Cluster, restarts: bool) -> None:
    """Offsets and epochs alone would fit: only the records differ."""
    cluster.kill("controller")
    copy = copied(cluster)
    cluster.start("controller")
    create(cluster, "lost")
    for broker in cluster.brokers:
        if restarts:
            cluster.stop(broker)
        else:
            cluster.isolate(broker)
    cluster.kill("controller")
    put_back(cluster, copy)
    ends = {broker: size(Path(cluster.data_dir) / str(broker) / LOG) for broker in cluster.brokers}
    cluster.start("controller")
    eventually(lambda: size(folder(cluster) / LOG) > max(ends.values()) + 2_000, within_s=60)
    if restarts:
        with pytest.raises(BrokerFailed, match="has other records than this broker has copied from it"):
            cluster.start(1)
        return
    cluster.heal()
    for broker in cluster.brokers:
        line = last_line(cluster, broker)
        assert "node 100, has other records than this broker has copied from it, from offset " in line
        assert REMEDY in line


def test_brokers_follow_a_controller_that_has_kept_all(cluster: odradek.Cluster) -> None:
    for _ in range(3):
        cluster.kill("controller")
        cluster.start("controller")
        create(cluster, f"t-{cluster.pid('controller')}")
    cluster.kill(1)
    cluster.start(1)
    assert cluster.running()
