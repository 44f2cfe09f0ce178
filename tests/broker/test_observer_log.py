"""The copy of the metadata log on a broker: what a start keeps of it, and snapshots that replace it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from support.controlled_cluster import new_catalog, state_of
from support.memory_files import MemoryFiles
from support.simulated_controller import CONTROLLER, SimulatedController
from test_controller_node import register
from test_observer_reads import QUIET, fetch

from odradek.broker.loop.scheduler import finish
from odradek.broker.membership.observer_log import ObserverLog
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.log import DIRECTORY, MetadataConfig
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.metadata_log.observers import LogPlace
from odradek.core.deferred import Deferred
from odradek.core.errors import StorageError

HOME = Path("/broker")
PATH = HOME / DIRECTORY
SMALL = MetadataConfig(segment_bytes=600)


@pytest.fixture
def controller() -> SimulatedController:
    """A controller with the records 0 to 8: its epoch, and eight brokers."""
    made = SimulatedController(QUIET)
    for broker in range(1, 9):
        register(made, broker)
    return made


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def opened(
    files: MemoryFiles, image: ClusterCatalog | None = None, voters: tuple[int, ...] = (CONTROLLER,)
) -> ObserverLog:
    return ObserverLog.open_copy(
        HOME, (image or new_catalog()).replay, voters, now_ms=lambda: 5, files=files, config=SMALL
    )


def bytes_of(controller: SimulatedController, offset: int = 0) -> bytes:
    return bytes(fetch(controller, offset, 1 if offset else 0).records)


def apply(log: ObserverLog, image: ClusterCatalog, committed: int) -> ClusterCatalog:
    for batch in log.committed_batches(committed):
        for step, value in enumerate(batch.values):
            image.replay(batch.base_offset + step, value)
        log.note_applied(batch)
    return image


def _at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
    job()
    return Deferred.of(None)


def logs_in(files: MemoryFiles) -> bytes:
    return b"".join(files.read(PATH / name) for name in sorted(files.list(PATH)) if name.endswith(".log"))


def test_the_copy_has_the_bytes_of_the_controller(controller: SimulatedController, files: MemoryFiles) -> None:
    log = opened(files)
    assert log.end == LogPlace(0, 0)
    log.append_batches(bytes_of(controller))
    assert log.end == LogPlace(9, 1)
    assert logs_in(files) == bytes_of(controller)
    assert len([name for name in files.list(PATH) if name.endswith(".log")]) > 1
    image = apply(log, new_catalog(), 9)
    state = controller.broker.catalog.state
    assert isinstance(state, ClusterCatalog)
    assert state_of(image) == state_of(state)


def test_a_record_is_applied_when_it_is_committed(controller: SimulatedController, files: MemoryFiles) -> None:
    log, image = opened(files), new_catalog()
    log.append_batches(bytes_of(controller))
    assert not apply(log, image, 1).brokers  # the epoch's record
    assert apply(log, image, 4).brokers == (1, 2, 3)
    assert log.applied == LogPlace(4, 1)
    log.metadata_log.close()
    again = new_catalog()
    log = opened(files, again)
    assert (log.applied, log.end, again.brokers) == (LogPlace(0, 0), LogPlace(9, 1), ()), "a start knows no commits"
    assert apply(log, again, 9).brokers == tuple(range(1, 9))


@pytest.mark.parametrize("how", ["gap", "again", "flipped", "cut", "epoch"])
def test_wrong_batches_are_refused_as_a_whole(controller: SimulatedController, files: MemoryFiles, how: str) -> None:
    data = bytes_of(controller)
    half = len(data) - len(bytes_of(controller, 5))
    log = opened(files)
    log.append_batches(data[:half])
    rest = {
        "gap": bytes_of(controller, 6),
        "again": data,
        "flipped": data[half:-1] + bytes((data[-1] ^ 1,)),
        "cut": data[half:-1],
        "epoch": data[half : half + 15] + b"\x07" + data[half + 16 :],  # only a control batch begins an epoch
    }[how]
    with pytest.raises(ValueError, match="the leader has sent a wrong batch at offset"):
        log.append_batches(rest)
    assert log.end == LogPlace(5, 1)
    log.append_batches(data[half:])
    assert log.end == LogPlace(9, 1)


def test_a_power_cut_leaves_what_was_synced(controller: SimulatedController, files: MemoryFiles) -> None:
    log = opened(files)
    files.sync_dir(HOME.parent)
    log.append_batches(bytes_of(controller))
    log.metadata_log.close()
    log = opened(files)
    files.crash()
    files.power_cut()
    log = opened(files)
    assert log.end == LogPlace(9, 1)
    files.crash()
    name = max(name for name in files.list(PATH) if name.endswith(".log"))
    data = files.read(PATH / name)
    files.write(PATH / name, data[:-3])  # a write that a crash has cut off
    assert opened(files).end == LogPlace(8, 1)


@pytest.mark.parametrize("fault", ["flipped", "missing", "head"])
def test_a_damaged_copy_is_read_again(
    controller: SimulatedController, files: MemoryFiles, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(files)
    log.append_batches(bytes_of(controller))
    log.metadata_log.close()
    names = sorted(name for name in files.list(PATH) if name.endswith(".log"))
    if fault == "flipped":
        data = bytearray(files.read(PATH / names[0]))
        data[100] ^= 1
        files.write(PATH / names[0], bytes(data))
    else:
        files.remove(PATH / names[1 if fault == "missing" else 0])
    with caplog.at_level(logging.WARNING):
        log = opened(files)
    assert "the broker reads the metadata log from the controller again" in caplog.text
    assert log.end == LogPlace(0, 0)
    log.append_batches(bytes_of(controller))
    assert logs_in(files) == bytes_of(controller)


def with_snapshot(controller: SimulatedController) -> tuple[LogPlace, bytes]:
    controller.broker.controller.begin_snapshot()
    controller.world.advance(100)
    (snapshot,) = controller.broker.metadata_log.snapshots
    return LogPlace(snapshot.end_offset, snapshot.epoch), controller.files.read(snapshot.path)


def test_a_snapshot_replaces_the_log(controller: SimulatedController, files: MemoryFiles) -> None:
    log = opened(files)
    log.append_batches(bytes_of(controller))
    register(controller, 9)
    place, data = with_snapshot(controller)
    register(controller, 10)
    log.begin_download(LogPlace(77, 1))
    log.add_part(b"of another one")
    log.begin_download(place)
    for start in range(0, len(data), 100):
        log.add_part(data[start : start + 100])
    log.end_download(place)
    assert (log.end, log.applied) == (place, place)
    assert logs_in(files) == b""
    assert not [name for name in files.list(PATH) if name.endswith(".part")]
    image = new_catalog()
    for value in log.read_newest_snapshot():
        image.replay(-1, value)
    assert image.brokers == tuple(range(1, 10))
    log.append_batches(bytes_of(controller, place.end_offset))
    assert apply(log, image, 11).brokers == tuple(range(1, 11))
    log.metadata_log.close()
    again = new_catalog()
    log = opened(files, again)
    assert (log.applied, log.end, again.brokers) == (place, LogPlace(11, 1), tuple(range(1, 10)))


def test_a_damaged_snapshot_changes_nothing(controller: SimulatedController, files: MemoryFiles) -> None:
    log = opened(files)
    log.append_batches(bytes_of(controller))
    place, data = with_snapshot(controller)
    log.begin_download(place)
    log.add_part(data[:-1])
    with pytest.raises(ValueError, match="that the leader has sent is damaged"):
        log.end_download(place)
    assert log.end == LogPlace(9, 1)
    assert not [name for name in files.list(PATH) if ".checkpoint" in name]


def test_a_crash_between_a_snapshot_and_its_log(controller: SimulatedController, files: MemoryFiles) -> None:
    register(controller, 9)
    whole = bytes_of(controller)
    place, data = with_snapshot(controller)
    log = opened(files)
    log.append_batches(whole[: len(whole) - len(bytes_of(controller, 9))])
    log.metadata_log.close()
    name = f"{place.end_offset:020d}-{place.epoch:010d}.checkpoint"
    files.write(PATH / name, data)  # its log was not removed
    image = new_catalog()
    log = opened(files, image)
    assert (log.applied, log.end) == (place, place)
    assert image.brokers == tuple(range(1, 10))


def test_a_snapshot_of_a_broker_has_what_is_applied(controller: SimulatedController, files: MemoryFiles) -> None:
    log, image = opened(files), new_catalog()
    log.append_batches(bytes_of(controller))
    apply(log, image, 4)
    finish(log.metadata_log.begin_snapshot(image, _at_once))
    assert [(one.end_offset, one.epoch) for one in log.metadata_log.snapshots] == [(4, 1)]
    log.metadata_log.close()
    again = new_catalog()
    assert opened(files, again).applied == LogPlace(4, 1)
    assert again.brokers == (1, 2, 3)


def test_the_epoch_of_the_leader_is_noted(files: MemoryFiles, caplog: pytest.LogCaptureFixture) -> None:
    log = opened(files)
    assert log.leader_epoch == 0
    log.save_epoch(7, CONTROLLER)
    log.save_epoch(6, CONTROLLER)
    assert quorum_state.read(PATH, files) == QuorumState(CONTROLLER, 7, voters=(CONTROLLER,))
    log.metadata_log.close()
    assert opened(files).leader_epoch == 7
    files.write(PATH / "quorum-state", b"{")
    assert opened(files).leader_epoch == 0
    (line,) = caplog.messages
    assert "quorum-state is damaged" in line
    assert line.endswith("; the broker learns the epoch from the controller again")


def test_the_log_of_another_quorum_is_refused(controller: SimulatedController, files: MemoryFiles) -> None:
    log = opened(files, voters=(101, 102))
    log.append_batches(bytes_of(controller))
    with pytest.raises(StorageError, match=r"quorum of the nodes 100, and controller.quorum.voters names 101, 102"):
        list(log.committed_batches(9))
