"""Damaged files under a broker in a process of its own, on the wire and by the command line.

Earlier versions of the broker started on each of these directories without a word: the topics were deleted, the
committed offsets were gone, aborted records were visible. So this file imports only what these versions have, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.brokers import Wire
from support.logs import batch

from odradek.cli.main import main
from odradek.core.errors import ErrorCode
from odradek.testing.process import BrokerFailed, BrokerProcess
from odradek.wire.api_keys import CREATE_TOPICS, FIND_COORDINATOR, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, PRODUCE

CONFIG = {
    "offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1",
    "metadata.log.max.snapshot.interval.ms": "0",
}  # fmt: skip
METADATA = Path("__cluster_metadata-0") / f"{0:020}.log"
OFFSETS = Path("__consumer_offsets-0")
COUNT = 20


class Directories(NamedTuple):
    """A data directory after a clean stop, and one that was killed right after the creation of ``later``."""

    stopped: Path
    killed: Path


def create(wire: Wire, name: str) -> None:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    reply = wire.call(CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    assert reply.topics[0].error_code == ErrorCode.none


def produce(wire: Wire, topic: str, count: int) -> None:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch(count)}]}]
    request = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}
    reply = wire.call(PRODUCE, 9, request)
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.none


def end_offset(wire: Wire, topic: str) -> int:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    request = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}]}
    found = wire.call(LIST_OFFSETS, 7, request).topics[0].partitions[0]
    assert found.error_code == ErrorCode.none
    return int(found.offset)


def commit(wire: Wire, offset: int) -> None:
    row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    request = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": "precious", "partitions": [row]}],
    }  # fmt: skip
    reply = wire.call(OFFSET_COMMIT, 8, request)
    assert reply.topics[0].partitions[0].error_code == ErrorCode.none


def committed(wire: Wire) -> int | ErrorCode:
    """The committed offset of the group, or the error of the coordinator."""
    found = wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]}).coordinators[0]
    if found.error_code != ErrorCode.none:
        return ErrorCode(found.error_code)
    group = {"group_id": "g", "topics": [{"name": "precious", "partition_indexes": [0]}]}
    found = wire.call(OFFSET_FETCH, 8, {"groups": [group], "require_stable": False}).groups[0]
    if found.error_code != ErrorCode.none:
        return ErrorCode(found.error_code)
    return int(found.topics[0].partitions[0].committed_offset)


def transact(bootstrap: str) -> None:
    """Ten aborted records and five committed ones in ``transactions``."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions()
    for count, is_committed in ((10, False), (5, True)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce("transactions", b"committed" if is_committed else b"aborted", partition=0)
        producer.flush()
        producer.commit_transaction() if is_committed else producer.abort_transaction()


def seen(bootstrap: str) -> set[bytes]:
    """What a reader of committed records sees in ``transactions``."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("transactions", 0, 0)])
    values: set[bytes] = set()
    while not values or values == {b"aborted"}:
        values |= {message.value() for message in consumer.consume(100, 0.2) if message.error() is None}
    consumer.close()
    return values


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    base = tmp_path_factory.mktemp("damaged")
    broker = BrokerProcess(base / "first", config=CONFIG)
    broker.start()
    with Wire(broker.bootstrap) as wire:
        for name in ("other", "precious", "transactions"):
            create(wire, name)
        produce(wire, "precious", COUNT)
        transact(broker.bootstrap)
        committed(wire)
        for _ in range(100):
            if committed(wire) == -1:
                break
        for offset in range(1, 8):
            commit(wire, offset)
    broker.stop()
    stopped = Path(shutil.copytree(broker.data_dir, base / "stopped"))
    broker.start()
    with Wire(broker.bootstrap) as wire:
        create(wire, "later")
        produce(wire, "later", COUNT)
    broker.kill()
    return Directories(stopped, Path(shutil.copytree(broker.data_dir, base / "killed")))


@contextmanager
def served(directory: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(directory, config=CONFIG)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def copy(source: Path, target: Path) -> Path:
    """A copy that ``served(target)`` uses. Returns the data directory."""
    return Path(shutil.copytree(source, target / "data"))


def records(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*.log"))}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flip_name(data: Path) -> None:
    flip(data / METADATA, (data / METADATA).read_bytes().index(b"precious"))


def empty_log(data: Path) -> None:
    (data / METADATA).write_bytes(b"")


def remove_log(data: Path) -> None:
    (data / METADATA).unlink()


def cut_byte(data: Path) -> None:
    content = (data / METADATA).read_bytes()
    (data / METADATA).write_bytes(content[:-1])


def zero_tail(data: Path) -> None:
    content = (data / METADATA).read_bytes()
    (data / METADATA).write_bytes(content[:-40] + bytes(40))


@pytest.mark.parametrize(
    ("is_killed", "damage"),
    [(False, flip_name), (False, empty_log), (False, remove_log), (True, cut_byte), (True, zero_tail)],
)  # fmt: skip
def test_a_damaged_metadata_log_stops_the_start_and_a_repair_brings_all_back(
    directories: Directories, tmp_path: Path, is_killed: bool, damage: Callable[[Path], None]
) -> None:
    data = copy(directories.killed if is_killed else directories.stopped, tmp_path)
    damage(data)
    before = records(data)
    with pytest.raises(BrokerFailed) as refused, served(tmp_path):
        pass
    (line,) = [line for line in str(refused.value).splitlines() if "odradek metadata repair" in line]
    assert METADATA.name in line or METADATA.parent.name in line
    assert records(data) == before
    with pytest.raises(SystemExit) as ended:
        main(["metadata", "repair", "--yes", "--data-dir", str(data)])
    assert not ended.value.code
    with served(tmp_path) as broker, Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "precious") == COUNT
        assert not is_killed or end_offset(wire, "later") == COUNT
        assert settled(wire) == 7


def settled(wire: Wire) -> int | ErrorCode:
    """The committed offset when the groups are loaded."""
    loading = (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available)
    found = committed(wire)
    for _ in range(200):
        if found not in loading:
            break
        found = committed(wire)
    return found


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "emptied"])
def test_a_lost_log_of_a_user_is_one_line(directories: Directories, tmp_path: Path, is_removed: bool) -> None:
    path = copy(directories.stopped, tmp_path) / "precious-0" / f"{0:020}.log"
    path.unlink() if is_removed else path.write_bytes(b"")
    with served(tmp_path) as broker, Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "precious") == 0
        assert settled(wire) == 7
    (line,) = [line for line in broker.log_path.read_text().splitlines() if "precious-0" in line and "ERROR" in line]
    assert f"0 to {COUNT - 1}" in line


@pytest.mark.parametrize("damage", ["removed", "emptied", "a base offset"])
def test_lost_commits_are_refused_and_not_empty(directories: Directories, tmp_path: Path, damage: str) -> None:
    """A flipped base offset is no loss: its neighbours tell which offset the batch had."""
    path = copy(directories.stopped, tmp_path) / OFFSETS / f"{0:020}.log"
    if damage == "removed":
        path.unlink()
    elif damage == "emptied":
        path.write_bytes(b"")
    else:
        flip(path, 3)
    with served(tmp_path) as broker, Wire(broker.bootstrap) as wire:
        found = settled(wire)
    lines = [line for line in broker.log_path.read_text().splitlines() if "__consumer_offsets-0" in line]
    assert lines
    if damage == "a base offset":
        assert found in {7, ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
        return
    assert found in {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
    assert any("odradek log accept" in line for line in lines)


@pytest.mark.parametrize("damage", ["removed", "emptied", "flipped"])
def test_aborted_records_stay_hidden(directories: Directories, tmp_path: Path, damage: str) -> None:
    path = copy(directories.stopped, tmp_path) / "transactions-0" / f"{0:020}.txnindex"
    assert path.stat().st_size
    if damage == "removed":
        path.unlink()
    elif damage == "emptied":
        path.write_bytes(b"")
    else:
        flip(path, 9)  # the producer id
    with served(tmp_path) as broker:
        assert seen(broker.bootstrap) == {b"committed"}
    (line,) = [line for line in broker.log_path.read_text().splitlines() if path.name in line and "ERROR" in line]
    assert "rebuilt" in line
