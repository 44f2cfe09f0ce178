"""Whole brokers of a cluster in a simulated world: starts, partitions, restarts, snapshots, and refusals."""

from __future__ import annotations

import pytest
from support.cluster_nodes import LEFT, NONE, SESSION_MS, SHORT, Nodes, commit, logs_of, produce
from support.simulated_brokers import SimulatedBroker
from support.simulated_node import HOME

from odradek.broker.node.cluster_member import MembershipEnded
from odradek.cluster.nodes.lifecycle import LifecycleState
from odradek.core.errors import ErrorCode, StorageError
from odradek.storage.disk import checkpoints


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_each_broker_serves_the_partitions_that_it_leads_and_has_no_other_logs(nodes: Nodes) -> None:
    first, second = nodes.brokers.values()
    nodes.create("t", 1, 2, 1)
    nodes.settle()
    assert [produce(first, "t", at) for at in range(4)] == [NONE, LEFT, NONE, ErrorCode.unknown_topic_or_partition]
    assert [produce(second, "t", at) for at in range(3)] == [LEFT, NONE, LEFT]
    assert (logs_of(first), logs_of(second)) == ({"t-0", "t-2"}, {"t-1"})
    nodes.grow("t", 2, 1)
    nodes.settle()
    assert (produce(second, "t", 3), produce(first, "t", 4)) == (NONE, NONE)
    nodes.check_images()
    nodes.delete("t")
    nodes.check_images()
    assert (logs_of(first), logs_of(second)) == (set(), set())
    assert produce(first, "t", 0) is ErrorCode.unknown_topic_or_partition


def test_groups_are_at_the_leaders_of_the_offsets_topic(nodes: Nodes) -> None:
    nodes.create("t", 1)
    nodes.create("__consumer_offsets", 1, 2, 1, 2)
    nodes.settle()
    codes = {group: [commit(one, group, "t") for one in nodes.brokers.values()] for group in ("a", "b", "c", "d", "e")}
    assert sorted(map(tuple, codes.values()), key=str) != []
    for answered in codes.values():
        assert sorted(answered) == sorted([NONE, ErrorCode.not_coordinator])
    assert len({tuple(answered) for answered in codes.values()}) == 2, "both brokers have groups"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_serves_its_partitions_again_after_a_restart(nodes: Nodes, how: str) -> None:
    first, second = nodes.brokers.values()
    nodes.create("t", 1, 2)
    nodes.settle()
    assert produce(first, "t", 0) is NONE
    epoch = first.role.membership.lifecycle.epoch
    getattr(first, how)()
    stopped_ms = nodes.world.now_ms
    if how == "stop":
        assert checkpoints.read_clean_epoch(HOME, first.files) == epoch
        assert nodes.controller.broker.catalog.topic("t").partitions[0].leader == -1
    assert produce(second, "t", 1) is NONE
    first.begin()
    first.run_until_joined()
    assert nodes.world.now_ms - stopped_ms >= SESSION_MS - 500, "the session ends before another one begins"
    assert first.role.membership.lifecycle.epoch > epoch
    nodes.settle()
    assert produce(first, "t", 0) is NONE
    partition = first.broker.partition("t", 0)
    assert partition is not None
    assert partition.log_end_offset == 6
    assert partition.leader_epoch == nodes.controller.broker.catalog.topic("t").partitions[0].leader_epoch > 0
    nodes.check_images()


def test_changes_during_the_absence_of_a_broker_are_made_at_its_start(nodes: Nodes) -> None:
    first = nodes.brokers[1]
    for name in ("gone", "kept", "again"):
        nodes.create(name, 1, 2)
    nodes.settle()
    assert [produce(first, name, 0) for name in ("gone", "kept", "again")] == [NONE] * 3
    first.stop()
    del nodes.brokers[1]
    nodes.delete("gone")
    nodes.delete("again")
    nodes.create("again", 2)
    nodes.set_retention("kept", "77000")
    first.begin()
    first.run_until_joined()
    nodes.brokers[1] = first
    nodes.check_images()
    assert logs_of(first) == {"kept-0"}
    partition = first.broker.partition("kept", 0)
    assert partition is not None
    assert (partition.log_end_offset, partition.log.config.retention_ms) == (3, 77_000)


def test_a_controller_that_restarts_fences_no_broker_and_changes_follow(nodes: Nodes) -> None:
    nodes.create("t", 1, 2)
    nodes.settle()
    epochs = [one.role.membership.lifecycle.epoch for one in nodes.brokers.values()]
    nodes.controller.node.kill()
    nodes.world.advance(10 * SESSION_MS)
    assert [produce(one, "t", at) for at, one in enumerate(nodes.brokers.values())] == [NONE, NONE]
    nodes.controller.begin()
    nodes.world.advance(2 * SESSION_MS)
    nodes.create("u", 2)
    nodes.check_images()
    assert [one.role.membership.lifecycle.epoch for one in nodes.brokers.values()] == epochs
    assert {one.is_fenced for one in nodes.controller.broker.catalog.state.nodes.brokers.values()} == {False}


def test_a_broker_that_is_cut_off_is_fenced_and_leads_again_afterwards(nodes: Nodes) -> None:
    first = nodes.brokers[1]
    nodes.create("t", 1)
    nodes.settle()
    nodes.network.cut_off.add(1)
    nodes.world.advance(3 * SESSION_MS)
    topic = nodes.controller.broker.catalog.topic("t")
    assert topic is not None
    assert topic.partitions[0].leader == -1
    nodes.network.cut_off.clear()
    nodes.world.advance(3 * SESSION_MS)
    nodes.settle()
    assert first.role.membership.lifecycle.state is LifecycleState.RUNNING
    assert produce(first, "t", 0) is NONE
    nodes.check_images()


SNAPSHOTS = {
    "metadata_log_max_record_bytes_between_snapshots": "2000", "metadata_max_retention_bytes": "3000",
    "metadata_log_segment_bytes": "8388608", "metadata_max_idle_interval_ms": "0",
}  # fmt: skip


@pytest.mark.parametrize("is_down", [False, True])
def test_a_snapshot_changes_what_differs(is_down: bool) -> None:
    """A broker that has missed records which are only in a snapshot now, while it runs and at its start."""
    nodes = Nodes(**SNAPSHOTS)
    first = nodes.brokers[1]
    for name in ("gone", "kept", "again", "grown"):
        nodes.create(name, 1)
    nodes.settle()
    for name in ("gone", "kept", "again", "grown"):
        assert produce(first, name, 0) is NONE
    before = first.role.copy.applied.end_offset
    if is_down:
        first.stop()
    else:
        nodes.network.cut_off.add(1)
        nodes.world.advance(3 * SESSION_MS)
    del nodes.brokers[1]
    nodes.delete("gone")
    nodes.delete("again")
    nodes.create("again", 2)
    while nodes.controller.broker.metadata_log.start_offset <= before:
        for number in range(8):
            nodes.create(f"x{nodes.world.now_ms}-{number}", 2)
        nodes.set_retention("kept", str(nodes.world.now_ms))
        nodes.world.advance(200)
    if is_down:
        first.begin()
        first.run_until_joined()
    else:
        nodes.network.cut_off.clear()
        nodes.world.advance(3 * SESSION_MS)
    nodes.brokers[1] = first
    nodes.check_images()
    assert first.role.membership.observer.snapshots == 1
    assert logs_of(first) == {"kept-0", "grown-0"}
    kept = first.broker.partition("kept", 0)
    assert kept is not None
    assert kept.log_end_offset == 3
    topic_settings = nodes.controller.broker.catalog.topic_configs("kept")
    assert kept.log.config.retention_ms == int(topic_settings["retention.ms"])
    nodes.grow("grown", 1)
    nodes.check_images()
    assert produce(first, "grown", 1) is NONE
    if not is_down:
        assert "again-0" not in logs_of(first)
        assert first.broker.dismissal == ""


def test_the_snapshots_of_a_broker_are_those_of_what_it_has_applied() -> None:
    nodes = Nodes()
    first = nodes.new_broker(3, **{"metadata.log.max.record.bytes.between.snapshots": "1000"})
    first.run_until_joined()
    nodes.brokers[3] = first
    for number in range(60):
        nodes.create(f"t{number}", 3, 1)
        nodes.world.advance(20)
    nodes.check_images()
    assert first.broker.metadata_log.snapshots
    first.kill()
    nodes.world.advance(3 * SESSION_MS)
    first.begin()
    assert first.role.copy.applied.end_offset > 0, "the start reads the snapshot"
    first.run_until_joined()
    nodes.check_images()
    assert produce(first, "t59", 0) is NONE


def test_the_second_process_with_a_node_id_waits_and_the_first_stays(nodes: Nodes) -> None:
    twin = nodes.new_broker(1, **{"initial.broker.registration.timeout.ms": "5000"})
    with pytest.raises(MembershipEnded, match=r"timeout\.ms=5000: it answers duplicate_broker_registration"):
        twin.run_until_joined()
    nodes.create("t", 1)
    nodes.settle()
    assert produce(nodes.brokers[1], "t", 0) is NONE


def test_an_unregistered_broker_ends_with_one_line(nodes: Nodes) -> None:
    first = nodes.brokers[1]
    ended: list[str] = []
    first.broker.on_failure = lambda: ended.append(first.broker.dismissal)
    first.node.process.is_alive = False  # a pause, in which its session ends and it is removed
    nodes.world.advance(2 * SESSION_MS)
    assert nodes.controller.connect().call(64, 0, {"broker_id": 1}).error_code is NONE
    first.node.process.is_alive = True
    first.node.loop.run(first.role.membership.set_ready)
    first.node.loop.run(first.role.membership._drive)
    nodes.world.advance(4 * SESSION_MS)
    assert len(ended) == 1
    assert "broker 1 with the broker epoch" in ended[0]


def test_a_broker_of_another_cluster_is_refused() -> None:
    nodes = Nodes()
    other = SimulatedBroker(nodes.network, 4, SHORT | {"initial.broker.registration.timeout.ms": "3000"})
    other.kill()
    properties = checkpoints.read_meta_properties(HOME, other.files)
    checkpoints.write_meta_properties(HOME, properties | {"cluster.id": "x" * 21 + "A"}, other.files)
    other.begin()
    with pytest.raises(MembershipEnded, match="inconsistent_cluster_id"):
        other.run_until_joined()


def test_the_directory_of_a_lone_broker_is_refused(nodes: Nodes) -> None:
    from odradek.broker.metadata_log import mark

    other = nodes.brokers[1]
    other.kill()
    properties = checkpoints.read_meta_properties(HOME, other.files)
    own = mark.MetadataMark(5, "1", properties["cluster.id"], properties["directory.id"])
    mark.write(HOME, other.files, own)
    with pytest.raises(StorageError, match="is the directory of a lone broker or of a controller"):
        other.begin()


def test_a_stop_without_a_controller_ends_after_a_session(nodes: Nodes) -> None:
    first = nodes.brokers[1]
    nodes.create("t", 1)
    nodes.settle()
    assert produce(first, "t", 0) is NONE
    nodes.controller.node.kill()
    begun_ms = nodes.world.now_ms
    first.stop()
    assert SESSION_MS <= nodes.world.now_ms - begun_ms <= 2 * SESSION_MS
    assert first.files.exists(HOME / checkpoints.CLEAN_SHUTDOWN)


def test_directories_are_set_aside_only_after_the_broker_has_caught_up(nodes: Nodes) -> None:
    """The broker's copy of the metadata log is lost: before it has the log again, it knows no topic."""
    first = nodes.brokers[1]
    nodes.create("t", 1)
    nodes.create("stray", 1)
    nodes.settle()
    assert [produce(first, name, 0) for name in ("t", "stray")] == [NONE, NONE]
    first.stop()
    for name in first.files.list(HOME / "__cluster_metadata-0"):
        first.files.remove(HOME / "__cluster_metadata-0" / name)
    first.files.rename(HOME / "stray-0", HOME / "other-0")
    nodes.controller.node.kill()
    first.begin()
    nodes.world.advance(3 * SESSION_MS)
    assert logs_of(first) == {"t-0", "other-0"}
    nodes.controller.begin()
    first.run_until_joined()
    nodes.check_images()
    assert logs_of(first) == {"t-0", "stray-0"}
    assert [name for name in first.files.list(HOME) if name.startswith("other-0.") and name.endswith("-stray")]
    partition = first.broker.partition("t", 0)
    assert partition is not None
    assert partition.log_end_offset == 3


def test_only_a_log_that_was_there_is_reported_as_missing(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    """Topics that are made while a broker is away, before its session ends, are no loss."""
    first = nodes.brokers[1]
    nodes.create("old", 1)
    nodes.create("other", 2)
    nodes.settle()
    first.kill()
    nodes.create("new", 1)
    for name in (
        "partition.metadata",
        *(one for one in first.files.list(HOME / "old-0") if one != "partition.metadata"),
    ):
        first.files.remove(HOME / "old-0" / name)
    first.files.remove(HOME / "old-0")
    first.begin()
    first.run_until_joined()
    nodes.settle()
    assert logs_of(first) == {"old-0", "new-0"}
    lines = [line for line in caplog.messages if "directory is missing" in line]
    assert len(lines) == 1
    assert lines[0].startswith("old-0: its directory is missing: all records")
