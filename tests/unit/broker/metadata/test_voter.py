"""The quorum of one voter: Kafka's records, an epoch for each start, and a high watermark of synced records."""

from __future__ import annotations

import errno
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from uuid import UUID

import pytest
from support.memory_files import Crash, MemoryFiles
from support.voters import make_voter

from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.quorum import LoneQuorum, OneVoterQuorum, quorum_of
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.diagnosis import Diagnosis, findings
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.catalog_repair import LOST_EPOCHS, RepairPlan
from odradek.broker.repair.strays import restore
from odradek.catalog import control_records
from odradek.catalog.control_records import LeaderChange
from odradek.catalog.state import CreateTopic
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError, StorageError
from odradek.storage.disk import checkpoints

HOME = Path("/data")
PATH = HOME / DIRECTORY
LOG = PATH / "00000000000000000000.log"
STATE = PATH / "quorum-state"
T0 = 1_700_000_000_000
KAFKAS_TIME = 1_795_933_149_919
KAFKAS_BATCH = bytes.fromhex(
    "000000000000000a0000004f000000020253bf354a002000000000000001a225f51adf000001a225f51adfffffffffffffffffffffffffff"
    "ff000000013a0000000800000002260000000000010200000001000200000001000000"
)
"""LeaderChange at offset 10 as Apache Kafka 4.3.0 wrote it at its second start, with one voter and kraft.version 0."""


def opened(files: MemoryFiles, *, clean: bool = False, now_ms: int = T0) -> StoredCatalog:
    return StoredCatalog.open(
        HOME, clean=clean, node_id=1, directory_id=UUID(int=9), now_ms=lambda: now_ms, files=files, cluster_id="c"
    )


def led(files: MemoryFiles, *, clean: bool = False) -> StoredCatalog:
    catalog = opened(files, clean=clean)
    catalog.lead()
    return catalog


def voter_files(epoch: int = 0) -> MemoryFiles:
    files = MemoryFiles()
    make_voter(HOME, epoch=epoch, files=files)
    directory_id = checkpoints.encode_uuid(UUID(int=9))
    ids = {"node.id": "1", "directory.id": directory_id, "version": "1", "cluster.id": "c"}
    checkpoints.write_meta_properties(HOME, ids, files)
    files.sync_dir(HOME.parent)
    return files


def create(catalog: StoredCatalog, number: int) -> None:
    catalog.apply(CreateTopic(f"t{number}", UUID(int=number), 1, 1))


def topics(catalog: StoredCatalog) -> list[str]:
    return sorted(topic.name for topic in catalog.catalog.topics())


def epoch_of(files: MemoryFiles) -> int:
    state = quorum_state.read(PATH, files)
    assert state is not None
    assert state.voters == (1,)
    return state.epoch


def batches(files: MemoryFiles) -> list[tuple[int, int, bool]]:
    """The base offset and the epoch of each batch, and whether it is a LeaderChange."""
    found = []
    data = bytes(files.data[LOG])
    for position, header in scan(data):
        if header.is_control:
            (row,) = batch_rows(data, position, header)
            assert control_records.read(row.key, row.value) == LeaderChange(1, (1,), (1,))
        found.append((header.base_offset, header.leader_epoch, header.is_control))
    return found


class Threads:
    """Runs a job when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Deferred[BaseException | None]]] = []

    def run(self, job: Callable[[], None]) -> Deferred[BaseException | None]:
        promise: Deferred[BaseException | None] = Deferred()
        self.jobs.append((job, promise))
        return promise

    def finish(self) -> None:
        job, promise = self.jobs.pop()
        try:
            job()
        except KafkaError as error:
            promise.resolve(error)
        else:
            promise.resolve(None)


def quorum_in(catalog: StoredCatalog, threads: Threads | None = None) -> OneVoterQuorum:
    quorum = quorum_of(catalog, 1, (threads or Threads()).run)
    assert isinstance(quorum, OneVoterQuorum)
    return quorum


def change(catalog: StoredCatalog, number: int) -> Change:
    made = Change(catalog.catalog.state)
    finish(made.add(CreateTopic(f"t{number}", UUID(int=number), 1, 1)))
    return made


# --- epochs -----------------------------------------------------------------------------------------------------


def test_the_record_that_begins_an_epoch_has_kafkas_bytes() -> None:
    files = voter_files(epoch=1)
    opened(files, now_ms=KAFKAS_TIME).lead()
    offset_0 = bytes(8) + KAFKAS_BATCH[8:]
    assert bytes(files.data[LOG]) == offset_0
    assert files.data[STATE] == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )


def test_each_start_begins_an_epoch_once() -> None:
    files = voter_files()
    for start in range(1, 4):
        catalog = led(files)
        catalog.lead()
        create(catalog, start)
        catalog.close()
    assert batches(files) == [
        (0, 1, True), (1, 1, False), (3, 2, True), (4, 2, False), (6, 3, True), (7, 3, False)
    ]  # fmt: skip
    assert epoch_of(files) == 3
    catalog = opened(files)
    assert topics(catalog) == ["t1", "t2", "t3"]
    assert catalog.log.records.epochs.latest == 3
    assert catalog.catalog.log_end_offset == 9


def test_the_directory_of_a_lone_broker_goes_on_without_epochs() -> None:
    files = MemoryFiles()
    for start in range(1, 4):
        catalog = led(files)
        assert type(quorum_of(catalog, 1, Threads().run)) is LoneQuorum
        create(catalog, start)
        catalog.close()
    assert [epoch for _, epoch, _ in batches(files)] == [0, 0, 0]
    assert STATE not in files.data


def test_the_directory_of_a_lone_broker_becomes_one_of_a_voter() -> None:
    files = MemoryFiles()
    create(led(files), 1)
    make_voter(HOME, files=files)
    create(led(files), 2)
    assert batches(files) == [(0, 0, False), (2, 1, True), (3, 1, False)]
    assert topics(opened(files)) == ["t1", "t2"]


def test_a_change_before_the_start_of_requests_begins_the_epoch() -> None:
    """Tools and a start write without a quorum."""
    files = voter_files(epoch=4)
    create(opened(files), 1)
    assert batches(files) == [(0, 5, True), (1, 5, False)]


def test_a_start_that_fails_before_a_change_uses_no_epoch() -> None:
    files = voter_files(epoch=4)
    opened(files).close()
    assert epoch_of(files) == 4
    assert not files.data[LOG]


def test_the_snapshot_and_the_image_end_with_the_epoch() -> None:
    files = voter_files()
    catalog = led(files)
    assert catalog.catalog.log_end_offset == 1
    finish(catalog.log.begin_snapshot(catalog.catalog.state, lambda job: Deferred.of(job())))
    (snapshot,) = catalog.log.snapshots
    assert snapshot.path.name == "00000000000000000001-0000000001.checkpoint"


def test_a_mark_of_a_clean_stop_is_gone_before_the_epoch_begins() -> None:
    """Else a cut record would be damage for the next start, and not the end of an interrupted write."""
    files = voter_files()
    led(files).close()
    checkpoints.write_clean_shutdown(HOME, files)
    catalog = opened(files, clean=True)
    before = len(files.data[LOG])
    charge = files.charge

    def torn(path: Path, data: bytearray, new: bytes) -> None:
        if path == LOG:
            files.tear_after(30)
        charge(path, data, new)

    files.charge = torn
    with pytest.raises(Crash):
        catalog.lead()
    files.charge = charge
    files.crash()
    assert len(files.data[LOG]) == before + 30
    again = led(files, clean=checkpoints.read_clean_shutdown(HOME, files))
    assert again.log.epoch == 3


@pytest.mark.parametrize("kept", [0.0, 0.4, 1.0])
def test_no_epoch_begins_twice_however_a_start_is_cut(kept: float) -> None:
    """A power cut after each change of the disk, and then a start that succeeds."""
    seen = 0
    for steps in range(40):
        files = voter_files()
        create(led(files), 1)
        files.crash_after(steps)
        try:
            led(files)
        except Crash:
            seen += 1
        files.power_cut(lambda: kept)
        begun = max(epoch for _, epoch, _ in batches(files))
        assert epoch_of(files) >= begun
        before = epoch_of(files)
        catalog = led(files)
        assert catalog.log.epoch == before + 1
        assert topics(catalog) == ["t1"]
        if not steps < seen:
            return
    pytest.fail("a start has more than 40 steps")


# --- writes that fail -------------------------------------------------------------------------------------------


def test_an_epoch_that_cannot_be_saved_does_not_begin() -> None:
    files = voter_files()
    catalog = opened(files)
    files.fail_write = lambda path: path == STATE
    with pytest.raises(StorageError, match=r"^/data/__cluster_metadata-0/quorum-state cannot be written: "):
        catalog.lead()
    assert not files.data[LOG]
    assert catalog.voter is not None
    assert not catalog.voter.is_leading


def test_an_epoch_whose_record_is_not_synced_is_not_used_again() -> None:
    files = voter_files()
    catalog = opened(files)
    append = files.charge

    def full(path: Path, data: bytearray, new: bytes) -> None:
        if path == LOG:
            raise OSError(errno.ENOSPC, "no space", str(path))
        append(path, data, new)

    files.charge = full
    with pytest.raises(StorageError, match=r"^/data/__cluster_metadata-0 cannot be written: "):
        catalog.lead()
    files.charge = append
    assert epoch_of(files) == 1
    catalog = led(files)
    assert batches(files) == [(0, 2, True)]


def test_a_failed_sync_of_the_first_record_ends_the_start() -> None:
    files = voter_files()
    catalog = opened(files)
    files.fail_sync = lambda path: path == LOG
    with pytest.raises(StorageError, match=r"^/data/__cluster_metadata-0 cannot be written: "):
        catalog.lead()
    assert quorum_in(catalog).committed_offset == -1
    files.fail_sync = lambda path: False
    assert led(files).log.epoch == 2


# --- the high watermark -----------------------------------------------------------------------------------------


def test_nothing_is_committed_before_a_record_of_the_epoch() -> None:
    files = voter_files()
    create(led(files), 1)
    catalog = opened(files)
    quorum = quorum_in(catalog)
    assert (quorum.epoch, quorum.leader, quorum.committed_offset) == (1, -1, -1)
    assert not quorum.is_newest(catalog.log.end_offset)
    made = change(catalog, 2)
    with pytest.raises(RuntimeError, match="the leader epoch of the metadata log has not begun yet"):
        quorum.append(made.packed, len(made.records))
    catalog.lead()
    assert (quorum.epoch, quorum.leader, quorum.committed_offset) == (2, 1, 4)
    assert quorum.is_newest(4)


def test_the_high_watermark_moves_when_the_record_is_synced() -> None:
    files, threads = voter_files(), Threads()
    catalog = led(files)
    quorum = quorum_in(catalog, threads)
    made = change(catalog, 1)
    promise = quorum.append(made.packed, len(made.records))
    assert (catalog.log.end_offset, quorum.committed_offset, promise.resolved) == (3, 1, False)
    cut = deepcopy(files)
    cut.power_cut()
    assert topics(led(cut)) == []
    threads.finish()
    assert (quorum.committed_offset, promise.value) == (3, 1)
    files.power_cut()
    assert topics(led(files)) == ["t1"]


def test_a_refused_batch_does_not_move_the_high_watermark() -> None:
    files, threads = voter_files(), Threads()
    catalog = led(files)
    quorum = quorum_in(catalog, threads)
    files.fail_sync = lambda path: path == LOG
    made = change(catalog, 1)
    promise = quorum.append(made.packed, len(made.records))
    threads.finish()
    assert isinstance(promise.value, KafkaError)
    assert quorum.committed_offset == 1


# --- start, check and repair ------------------------------------------------------------------------------------


def contents(files: MemoryFiles) -> dict[Path, bytes]:
    return {path: bytes(data) for path, data in files.data.items()}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"leaderId":1', "is damaged (it is not JSON)"),
        (None, "is missing, but the log beside it has the leader epoch 2"),
        (
            quorum_state.QuorumState(2, 7, voters=(1, 2, 3)).packed(),
            "is of a quorum of the nodes 1, 2, 3, and this is node 1",
        ),
        (quorum_state.QuorumState(1, 1, voters=(1,)).packed(), "has the leader epoch 1, but the log beside it has 2"),
    ],
)
def test_a_wrong_file_ends_the_start_until_a_repair(data: bytes | None, reason: str) -> None:
    files = voter_files()
    for number in (1, 2):
        create(led(files), number)
    if data is None:
        del files.data[STATE]
    else:
        files.data[STATE][:] = data
    before = contents(files)
    with pytest.raises(StorageError) as refused:
        opened(files)
    assert str(refused.value).startswith(f"{STATE} {reason}; nothing was changed: ")
    assert contents(files) == before
    diagnosis = Diagnosis(HOME, files)
    assert findings(diagnosis)[0] == str(refused.value)
    plan = RepairPlan(diagnosis, T0)
    assert f"write quorum-state with the leader epoch {2 + LOST_EPOCHS}" in plan.steps
    assert not any("snapshot" in step for step in plan.steps), "the log is whole"
    plan.carry_out()
    assert not findings(Diagnosis(HOME, files))
    catalog = led(files)
    assert topics(catalog) == ["t1", "t2"]
    assert catalog.log.epoch == 3 + LOST_EPOCHS


def test_a_repair_of_the_log_keeps_the_epochs() -> None:
    files = voter_files()
    for number in (1, 2, 3):
        create(led(files), number)
    catalog = led(files)
    finish(catalog.log.begin_snapshot(catalog.catalog.state, lambda job: Deferred.of(job())))
    files.data[LOG][100] ^= 1
    diagnosis = Diagnosis(HOME, files)
    assert diagnosis.fault is not None
    RepairPlan(diagnosis, T0).carry_out()
    assert not findings(Diagnosis(HOME, files))
    catalog = led(files)
    assert catalog.log.epoch > 4
    assert topics(catalog) == ["t1", "t2", "t3"]
    create(catalog, 4)
    assert topics(opened(files)) == ["t1", "t2", "t3", "t4"]


def test_a_repair_after_a_loss_skips_the_epochs_that_may_be_lost() -> None:
    files = voter_files()
    for number in (1, 2, 3):
        create(led(files), number)
    files.data[LOG][:] = bytes(len(files.data[LOG]))
    RepairPlan(Diagnosis(HOME, files), T0).carry_out()
    assert led(files).log.epoch > 3


def test_a_former_log_comes_back_with_the_later_epoch() -> None:
    files = voter_files()
    create(led(files), 1)
    files.data[LOG][:] = bytes(len(files.data[LOG]))
    plan = RepairPlan(Diagnosis(HOME, files), T0)
    plan.carry_out()
    create(led(files), 2)
    later = epoch_of(files)
    assert later > LOST_EPOCHS
    directory = LogDirectory(HOME, lambda: T0, files)
    restore(HOME, plan.copy.name, new_name="", replace=False, directory=directory, agrees=lambda: True)
    assert epoch_of(files) == later
