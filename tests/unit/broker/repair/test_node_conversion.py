"""A lone broker's directory becomes that of a broker of a cluster: after a crash at any step it is one or the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from support.memory_files import Crash, MemoryFiles

from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import conversion
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.mark import MetadataMark
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.node_conversion import ConvertedNode, convert_node
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import BROKER, AlterConfigs, CreateTopic, DeleteTopic
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.core.errors import StorageError
from odradek.storage.disk import checkpoints

HOME, CONTROLLER_HOME, CONTROLLER = Path("/simulated/1"), Path("/simulated/controller"), 100
NOW_MS = 1_700_000_000_000
NODE = BrokerConfig(
    {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": f"{CONTROLLER}@h:9093",
        "controller.listener.names": "CONTROLLER",
    }
)


def opened(path: Path, files: MemoryFiles) -> LogDirectory:
    return LogDirectory(path, lambda: NOW_MS, files=files)


def lone(files: MemoryFiles) -> dict[str, UUID]:
    """Starts on the directory as a lone broker. Returns its topics."""
    directory = opened(HOME, files)
    try:
        directory.acquire(BrokerConfig({}))
        catalog = directory.open_catalog()
        topics = {topic.name: topic.id for topic in catalog.catalog.topics()}
        catalog.close()
        return topics
    finally:
        directory.lock.release()


def made(*, clean: bool = True) -> MemoryFiles:
    """Files with the directory of a lone broker with two topics, one of them after a deletion, and a setting."""
    files = MemoryFiles()
    directory = opened(HOME, files)
    directory.acquire(BrokerConfig({}))
    catalog = directory.open_catalog()
    for number in range(1, 4):
        catalog.apply(CreateTopic(f"t{number}", UUID(int=number), 2, 1))
    catalog.apply(DeleteTopic(UUID(int=2)))
    catalog.apply(AlterConfigs(BROKER, "1", {"log.retention.ms": "1000"}))
    catalog.close()
    if clean:
        checkpoints.write_clean_shutdown(HOME, files)
    directory.lock.release()
    return files


def converted(files: MemoryFiles) -> ConvertedNode:
    directory, controller = opened(HOME, files), opened(CONTROLLER_HOME, files)
    ids = iter(range(1 << 70, 1 << 71))
    directory.lock.acquire()
    controller.lock.acquire()
    try:
        return convert_node(directory, controller, CONTROLLER, lambda: UUID(int=next(ids)), NOW_MS)
    finally:
        controller.lock.release()
        directory.lock.release()


def check_cluster(files: MemoryFiles, *, clean: bool) -> None:
    """Starts the controller's catalogue, and identifies the broker's directory."""
    properties = checkpoints.read_meta_properties(CONTROLLER_HOME, files)
    assert properties["node.id"] == str(CONTROLLER)
    assert properties["cluster.id"] == checkpoints.read_meta_properties(HOME, files)["cluster.id"]
    owner = MetadataMark(0, str(CONTROLLER), properties["cluster.id"], properties["directory.id"])
    state = ClusterCatalog(lambda data: UUID(bytes=data), random.Random(1))
    catalog = StoredCatalog.read_into(state, CONTROLLER_HOME, owner, clean=False, now_ms=lambda: NOW_MS, files=files)
    catalog.lead()
    assert catalog.log.epoch == 1
    assert {topic.name: topic.id for topic in catalog.catalog.topics()} == {"t1": UUID(int=1), "t3": UUID(int=3)}
    assert catalog.catalog.configs(BROKER, "1") == {"log.retention.ms": "1000"}
    broker = state.nodes.brokers[1]
    assert broker.is_fenced
    catalog.close()
    directory = opened(HOME, files)
    directory.acquire(NODE)
    assert (directory.node_id, directory.directory_id) == (1, broker.directories[0])
    assert not files.exists(HOME / checkpoints.CONVERSION)
    assert checkpoints.read_clean_epoch(HOME, files) == (broker.epoch if clean else -1)
    directory.lock.release()
    with pytest.raises(StorageError, match="is the directory of a broker of a cluster with the controller 100"):
        lone(files)


@pytest.mark.parametrize("clean", [True, False])
def test_the_catalogue_moves_to_the_controller(clean: bool) -> None:
    files = made(clean=clean)
    before = checkpoints.read_meta_properties(HOME, files)
    done = converted(files)
    assert (done.node_id, done.cluster_id, done.topics) == (1, before["cluster.id"], 2)
    assert checkpoints.read_meta_properties(HOME, files) == before
    assert files.list(HOME / conversion.FORMER_LOG)
    check_cluster(files, clean=clean)
    with pytest.raises(StorageError, match="is the directory of a node of a cluster already"):
        converted(files)


def steps() -> Iterator[int]:
    """The numbers of changes after which a conversion can be cut off."""
    for step in range(1_000):
        files = made()
        files.crash_after(step)
        try:
            converted(files)
        except Crash:
            yield step
        else:
            return
    raise AssertionError("the conversion does not end")


@pytest.mark.parametrize("kept", [None, 0.0, *(pytest.param(kept, marks=pytest.mark.slow) for kept in (0.5, 1.0))])
def test_a_crash_at_any_step_leaves_a_lone_broker_or_a_conversion_that_is_finished(kept: float | None) -> None:
    """``kept``: the part of what was not synced that a power cut leaves; None: kill -9."""
    counts = {"lone": 0, "decided": 0}
    for step in steps():
        files = made()
        files.crash_after(step)
        with pytest.raises(Crash):
            converted(files)
        if kept is None:
            files.crash()
        else:
            files.power_cut(lambda: kept)
        if files.exists(HOME / checkpoints.CONVERSION):
            counts["decided"] += 1
            with pytest.raises(StorageError, match="run `odradek cluster convert --data-dir"):
                lone(files)
            if step % 2:
                assert converted(files).topics is None
            else:  # the start of the broker finishes it
                directory = opened(HOME, files)
                directory.acquire(NODE)
                directory.lock.release()
        elif files.exists(HOME / "bootstrap.checkpoint"):  # the last step was the end
            counts["decided"] += 1
        else:
            counts["lone"] += 1
            assert lone(files) == {"t1": UUID(int=1), "t3": UUID(int=3)}
            assert converted(files).topics == 2
        check_cluster(files, clean=True)
    assert min(counts.values()) > 5, counts


def test_an_interrupted_conversion_is_made_from_the_newest_catalogue() -> None:
    files = made()
    files.crash_after(12)
    with pytest.raises(Crash):
        converted(files)
    files.crash()
    directory = opened(HOME, files)
    directory.acquire(BrokerConfig({}))
    catalog = directory.open_catalog()
    catalog.apply(CreateTopic("t9", UUID(int=9), 1, 1))
    catalog.apply(DeleteTopic(UUID(int=9)))
    catalog.close()
    directory.lock.release()
    checkpoints.remove_clean_shutdown(HOME, files)
    converted(files)
    check_cluster(files, clean=False)


def test_what_is_no_lone_broker_and_no_empty_directory_is_refused() -> None:
    files = made()
    files.make_dirs(CONTROLLER_HOME)
    files.write(CONTROLLER_HOME / "notes.txt", b"mine")
    with pytest.raises(StorageError, match=r"but it has notes\.txt: choose an empty one"):
        converted(files)
    files.remove(CONTROLLER_HOME / "notes.txt")
    assert lone(files)
    files.write(HOME / DIRECTORY / checkpoints.QUORUM_STATE, b"{}")
    with pytest.raises(StorageError, match="is the directory of a controller"):
        converted(files)
    files.remove(HOME / DIRECTORY / checkpoints.QUORUM_STATE)
    converted(files)
    (name,) = [name for name in files.list(CONTROLLER_HOME / DIRECTORY) if name.endswith(".checkpoint")]
    assert name != f"{0:020d}-{0:010d}.checkpoint"


def test_the_controllers_directory_has_to_be_there() -> None:
    files = made()
    for step in steps():
        files = made()
        files.crash_after(step)
        with pytest.raises(Crash):
            converted(files)
        files.crash()
        if files.exists(HOME / checkpoints.CONVERSION):
            break
    files.remove(CONTROLLER_HOME / conversion.UNFINISHED_PROPERTIES)
    with pytest.raises(StorageError, match="but that of the controller, /simulated/controller, is not there"):
        opened(HOME, files).acquire(NODE)
