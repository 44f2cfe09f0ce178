"""``quorum-state``: Kafka's bytes, and one line for a file that is damaged or not this node's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.memory_files import Crash, MemoryFiles

from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.mark import MetadataMark
from odradek.broker.metadata_log.quorum_state import NEWEST_EPOCH, QuorumState, WrongQuorumState
from odradek.core.errors import StorageError

PATH = Path("/data") / DIRECTORY
FILE = PATH / "quorum-state"
OWNER = MetadataMark(0, "1", "4L6g3nShT-eMCtK--X86sw", "J8aAPcfLQt2bqs1JT_rMgQ")
LEADER = (
    b'{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],'
    b'"data_version":0}'
)
"""As Apache Kafka 4.3.0 wrote it at its second start, with ``controller.quorum.voters=1@127.0.0.1:29093``."""
VOTED = b'{"leaderId":-1,"leaderEpoch":2,"votedId":1,"votedDirectoryId":"J8aAPcfLQt2bqs1JT_rMgQ","data_version":1}'
"""The example of version 1 in Kafka's source."""


def files_with(data: bytes) -> MemoryFiles:
    files = MemoryFiles()
    files.make_dirs(PATH)
    for directory in (PATH.parent, *PATH.parent.parents):
        files.sync_dir(directory)
    files.write(FILE, data)
    return files


def checked(data: bytes | None, log_epoch: int = 2) -> QuorumState | None:
    files = MemoryFiles() if data is None else files_with(data)
    state = quorum_state.read(PATH, files)
    quorum_state.check(PATH, files, state, OWNER, log_epoch)
    return state


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (LEADER, QuorumState(1, 2, voters=(1,))),
        (VOTED, QuorumState(-1, 2, 1, voted_directory="J8aAPcfLQt2bqs1JT_rMgQ", version=1)),
    ],
)
def test_both_versions_have_kafkas_bytes(data: bytes, state: QuorumState) -> None:
    assert checked(data) == state
    assert state.packed() == data
    files = MemoryFiles()
    quorum_state.write(PATH, files, state)
    assert files.data[FILE] == data


def test_unknown_fields_and_later_lines_are_ignored_as_in_kafka() -> None:
    fields = {**json.loads(LEADER), "later": [1], "currentVoters": None}
    assert checked(json.dumps(fields).encode() + b"\nanother line") == QuorumState(1, 2)


def refusal(data: bytes | None, log_epoch: int = 2) -> str:
    with pytest.raises(StorageError) as refused:
        checked(data, log_epoch)
    line = str(refused.value)
    assert line.startswith(f"{FILE} ")
    assert "\n" not in line
    assert "nothing was changed: put the right file back from a copy, or run" in line
    assert "`odradek metadata repair --data-dir /data`" in line
    return line


def altered(data: bytes = LEADER, **fields: object) -> bytes:
    return json.dumps({name: value for name, value in {**json.loads(data), **fields}.items() if value != ...}).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is damaged (it is not JSON)"),
        (bytes(100), "is damaged (it is not JSON)"),
        (LEADER[:-1], "is damaged (it is not JSON)"),
        (b"\xff\xfe", "is damaged (it is not JSON)"),
        (b"[" * 100_000, "is damaged (it is not JSON)"),
        (b"[]", "is damaged (there is no JSON object)"),
        (b"{}", "is damaged (there is no number data_version)"),
        (altered(data_version=2), "is of a later release: it has data_version 2"),
        (altered(data_version="0"), "is damaged (there is no number data_version)"),
        (altered(leaderEpoch=...), "is damaged (there is no number leaderEpoch)"),
        (altered(leaderEpoch=True), "is damaged (there is no number leaderEpoch)"),
        (altered(leaderEpoch=2.0), "is damaged (there is no number leaderEpoch)"),
        (altered(leaderEpoch=1 << 31), "is damaged (there is no number leaderEpoch)"),
        (altered(leaderEpoch=-1), "is damaged (the leaderEpoch -1 is no epoch that another one can follow)"),
        (altered(leaderEpoch=NEWEST_EPOCH + 1), "no epoch that another one can follow"),
        (altered(leaderId=None), "is damaged (there is no number leaderId)"),
        (altered(votedId=...), "is damaged (there is no number votedId)"),
        (altered(clusterId=7), "is damaged (there is no text clusterId)"),
        (altered(appliedOffset=...), "is damaged (there is no number appliedOffset)"),
        (altered(currentVoters=...), "is damaged (there is no list currentVoters)"),
        (altered(currentVoters=[1]), "is damaged (there is no list currentVoters)"),
        (altered(currentVoters=[{}]), "is damaged (there is no number voterId)"),
        (altered(VOTED, votedDirectoryId=...), "is damaged (there is no text votedDirectoryId)"),
        (
            altered(currentVoters=[{"voterId": 2}, {"voterId": 1}]),
            "is of a quorum of the nodes 1, 2, and this is node 1",
        ),
        (altered(currentVoters=[{"voterId": 2}]), "is of a quorum of the nodes 2, and this is node 1"),
        (altered(leaderId=2, currentVoters=[]), "is of another quorum: its leader is node 2, and this is node 1"),
        (altered(VOTED, votedId=3), "is of another quorum: its vote is node 3, and this is node 1"),
        (altered(VOTED, votedDirectoryId="A" * 21 + "Q"), "is of the directory AAAAAAAAAAAAAAAAAAAAAQ"),
        (altered(clusterId="another"), "is of the cluster another, and this is 4L6g3nShT-eMCtK--X86sw"),
        (None, "is missing, but the log beside it has the leader epoch 2"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_with_the_remedy(data: bytes | None, reason: str) -> None:
    assert reason in refusal(data)


def test_a_node_of_a_cluster_is_not_sent_to_a_repair_that_refuses_it() -> None:
    files = files_with(b"{}")
    files.write(PATH.parent / "bootstrap.checkpoint", b"formatted")
    for state in (None, QuorumState(2, 7, voters=(2,))):
        with pytest.raises(WrongQuorumState) as refused:
            quorum_state.check(PATH, files, state, OWNER, 2)
        assert str(refused.value).endswith(
            "; nothing was changed: put the files of this directory back from a copy (docs/cluster.md)"
        )
    with pytest.raises(WrongQuorumState, match=r"is damaged .* put the files of this directory back from a copy"):
        quorum_state.read(PATH, files)


def test_a_file_that_is_older_than_the_log_is_refused() -> None:
    assert "has the leader epoch 2, but the log beside it has 3" in refusal(LEADER, 3)
    assert checked(LEADER, 1) is not None


def test_each_cut_and_each_flipped_bit_is_refused_or_keeps_an_epoch_that_is_no_older() -> None:
    for size in range(len(LEADER)):
        refusal(LEADER[:size])
    for place in range(len(LEADER)):
        for bit in range(8):
            data = bytearray(LEADER)
            data[place] ^= 1 << bit
            try:
                state = checked(bytes(data))
            except StorageError:
                continue
            assert state is not None
            assert state.epoch >= 2, data


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_after_a_power_cut_the_file_is_the_old_or_the_new_one(kept: float) -> None:
    new = QuorumState(1, 3, voters=(1,))
    for steps in range(20):
        files = files_with(LEADER)
        files.crash_after(steps)
        try:
            quorum_state.write(PATH, files, new)
        except Crash:
            files.power_cut(lambda: kept)
            assert quorum_state.read(PATH, files) in (QuorumState(1, 2, voters=(1,)), new)
            continue
        files.power_cut(lambda: kept)
        assert quorum_state.read(PATH, files) == new, "it is on the disk when the call returns"
        return
    pytest.fail("the write has more than 20 steps")
