"""A broker on the directory of a voter: a leader epoch for each start, and what DescribeQuorum says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.brokers import Wire
from support.voters import make_voter

import odradek
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.core.errors import StorageError

DESCRIBE_QUORUM = 55


def described(broker: odradek.Broker) -> tuple[int, int, int, int]:
    """The leader, its epoch, the high watermark, and the end of the voter's log."""
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    with Wire(broker.bootstrap_servers) as wire:
        reply = wire.call(DESCRIBE_QUORUM, 2, {"topics": topics})
    (partition,) = reply.topics[0].partitions
    (voter,) = partition.current_voters
    assert voter.replica_id == 1
    return partition.leader_id, partition.leader_epoch, partition.high_watermark, voter.log_end_offset


@pytest.mark.parametrize("epoch", [0, 41])
def test_each_start_of_a_voter_begins_an_epoch(tmp_path: Path, epoch: int) -> None:
    make_voter(tmp_path, epoch=epoch)
    with odradek.Broker(data_dir=tmp_path, in_thread=True) as broker:
        assert described(broker) == (1, epoch + 1, 1, 1)
        broker.create_topic("flights", partitions=2)
        assert described(broker) == (1, epoch + 1, 4, 4)
        broker.stop()
        broker.start()
        assert described(broker) == (1, epoch + 2, 5, 5)
        broker.kill()
        broker.start()
        _, after, watermark, end = described(broker)
        assert (after, watermark) == (epoch + 3, end)
        with odradek.Admin(broker.bootstrap_servers) as admin:
            assert "flights" in admin.topics()


def test_a_lone_broker_begins_no_epoch(tmp_path: Path) -> None:
    with odradek.Broker(data_dir=tmp_path, in_thread=True) as broker:
        assert described(broker) == (1, 0, 0, 0)
        broker.stop()
        broker.start()
        assert described(broker) == (1, 0, 0, 0)
    assert not (tmp_path / DIRECTORY / "quorum-state").exists()


def test_a_wrong_file_ends_the_start_with_one_line(tmp_path: Path) -> None:
    make_voter(tmp_path)
    file = tmp_path / DIRECTORY / "quorum-state"
    file.write_bytes(b"")
    with pytest.raises(StorageError) as refused:
        odradek.Broker(data_dir=tmp_path, in_thread=True).start()
    line = str(refused.value)
    assert f"{file} is damaged (it is not JSON); nothing was changed: " in line
    assert "\n" not in line
    assert file.read_bytes() == b""
