"""Damage to the metadata log: a start finds all of the catalogue, or it stops with one line and changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.catalogs import changed
from support.memory_files import Crash, MemoryFiles

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log.diagnosis import Diagnosis, findings
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.replay import DamagedMetadata
from odradek.broker.repair.catalog_repair import RepairPlan
from odradek.catalog.state import (
    BROKER,
    TOPIC,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    CatalogRequest,
    CreateTopic,
    DeleteTopic,
)
from odradek.core.deferred import Deferred
from odradek.storage.disk import checkpoints

HOME = Path("/data")
PATH = HOME / DIRECTORY
LOG = PATH / "00000000000000000000.log"
MARK = HOME / metadata_mark.FILE
T0 = 1_700_000_000_000
PRECIOUS = UUID(int=2)
REQUESTS: tuple[CatalogRequest, ...] = (
    CreateTopic("gone", UUID(int=1), 1, 1),
    CreateTopic("precious", PRECIOUS, 2, 1, configs={"retention.ms": "-1"}),
    AlterConfigs(BROKER, "", {"log.retention.ms": "8"}),
    AlterClientQuotas((("user", "u"),), {"producer_byte_rate": 1.5}),
    DeleteTopic(UUID(int=1)),
    AllocateProducerIds(1),
    AlterConfigs(TOPIC, "precious", {"segment.bytes": "1000000"}),
)


def opened(files: MemoryFiles, *, clean: bool = False) -> StoredCatalog:
    return StoredCatalog.open(
        HOME, clean=clean, node_id=1, directory_id=UUID(int=9), now_ms=lambda: T0, files=files, cluster_id="c"
    )


def state(catalog: StoredCatalog) -> dict[str, Any]:
    return {
        "topics": {topic.name: topic for topic in catalog.catalog.topics()},
        "configs": dict(catalog.catalog.state.configs),
        "quotas": dict(catalog.catalog.quotas()),
        "producer ids": catalog.catalog.state.next_producer_id,
        "end": catalog.catalog.log_end_offset,
    }


def filled(*, clean: bool, snapshot_after: int | None = None) -> tuple[MemoryFiles, dict[str, Any]]:
    """A data directory whose broker has stopped or was killed, and the catalogue in it."""
    files = MemoryFiles()
    catalog = opened(files)
    for number, request in enumerate(REQUESTS):
        if number == snapshot_after:
            finish(catalog.log.begin_snapshot(catalog.catalog.state, at_once))
        catalog.apply(request)
    for index in range(2):
        checkpoints.write_partition_metadata(HOME / f"precious-{index}", PRECIOUS, files)
        files.write(HOME / f"precious-{index}" / LOG.name, b"records")
    checkpoints.write_meta_properties(
        HOME, {"node.id": "1", "directory.id": checkpoints.encode_uuid(UUID(int=9)), "cluster.id": "c"}, files
    )
    if clean:
        catalog.close()
        checkpoints.write_clean_shutdown(HOME, files)
    files.crash()
    return files, state(catalog)


def at_once(job: Any) -> Deferred[BaseException | None]:
    job()
    return Deferred.of(None)


def copied(files: MemoryFiles) -> MemoryFiles:
    again = MemoryFiles()
    again.data = {path: bytearray(data) for path, data in files.data.items()}
    again.modified, again.directories = dict(files.modified), set(files.directories)
    return again


def contents(files: MemoryFiles) -> dict[Path, bytes]:
    """All files but the indexes, which a start may write again."""
    return {path: bytes(data) for path, data in files.data.items() if not path.suffix.endswith("index")}


def outcome(files: MemoryFiles, *, clean: bool) -> dict[str, Any] | str:
    """The catalogue after a start, or the line with which it stops. Then no file is changed."""
    before = contents(files)
    try:
        return state(opened(files, clean=clean))
    except DamagedMetadata as error:
        assert contents(files) == before
        text = str(error)
        assert "\n" not in text
        assert "affected: " in text
        assert "odradek metadata check" in text
        assert DIRECTORY in text
        return text


def repaired(files: MemoryFiles) -> dict[str, Any]:
    plan = RepairPlan(Diagnosis(HOME, files), T0)
    assert plan.steps
    plan.carry_out()
    assert not findings(Diagnosis(HOME, files))
    return state(opened(files))


def assert_found_or_stopped(files: MemoryFiles, expected: dict[str, Any], *, clean: bool, may_be_whole: bool) -> None:
    found = outcome(copied(files), clean=clean)
    if isinstance(found, str):
        again = repaired(files)
        assert "precious" in again["topics"]
        assert again["topics"]["precious"].id == PRECIOUS
        assert again["topics"]["precious"].partition_count == 2
        assert again["end"] >= expected["end"]
        assert again["producer ids"] >= expected["producer ids"]
        assert again["configs"][TOPIC, "precious"]["retention.ms"] == "-1"
    else:
        assert may_be_whole
        assert found == expected


def some(count: int, every: int) -> Iterator[int]:
    """Yields all numbers below ``count`` that the two first batches need, and every n-th one after them."""
    return iter([*range(min(count, 160)), *range(160, count, every)])


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_every_flipped_bit_of_the_log_is_found_and_repaired_without_loss(clean: bool, every: int) -> None:
    files, expected = filled(clean=clean)
    for place in some(len(files.data[LOG]), every):
        damaged = copied(files)
        damaged.data[LOG][place] ^= 1 << place % 8
        text = outcome(copied(damaged), clean=clean)
        assert isinstance(text, str), place
        assert "affected: no record is lost" in text
        if place % 7 or (every > 1 and place % 3):
            continue
        found = repaired(damaged)
        assert {name: found[name] for name in found if name != "end"} == {
            name: expected[name] for name in found if name != "end"
        }, place


@pytest.mark.parametrize("every", [17, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_log_of_any_shorter_length_stops_the_start(clean: bool, every: int) -> None:
    files, expected = filled(clean=clean)
    for size in range(0, len(files.data[LOG]), every):
        damaged = copied(files)
        del damaged.data[LOG][size:]
        assert_found_or_stopped(damaged, expected, clean=clean, may_be_whole=False)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("snapshot_after", [None, 4], ids=["log", "snapshot"])
@pytest.mark.parametrize("count", [30, pytest.param(600, marks=pytest.mark.slow)])
def test_zeros_and_other_bytes_anywhere_are_found(clean: bool, snapshot_after: int | None, count: int) -> None:
    files, expected = filled(clean=clean, snapshot_after=snapshot_after)
    draw = random.Random(31415)
    names = [path for path in files.data if path.parent == PATH and path.suffix in (".log", ".checkpoint")]
    for _ in range(count):
        damaged = copied(files)
        data = damaged.data[draw.choice(names)]
        start, length = draw.randrange(len(data)), draw.choice((1, 8, 64, 4096))
        fresh = bytes(len(data[start : start + length])) if draw.random() < 0.5 else draw.randbytes(length)
        if data[start : start + length] == fresh[: len(data) - start]:
            continue
        data[start : start + length] = fresh[: len(data) - start]
        assert_found_or_stopped(damaged, expected, clean=clean, may_be_whole=snapshot_after is not None)


def test_any_file_of_the_metadata_log_may_be_missing_or_empty() -> None:
    for clean in (True, False):
        for snapshot_after in (None, 4):
            files, expected = filled(clean=clean, snapshot_after=snapshot_after)
            for path in [path for path in files.data if path.parent == PATH]:
                for is_removed in (True, False):
                    damaged = copied(files)
                    if is_removed:
                        damaged.remove(path)
                    else:
                        damaged.data[path].clear()
                    is_log = path.suffix == ".log"
                    assert_found_or_stopped(damaged, expected, clean=clean, may_be_whole=not is_log)


def test_an_older_copy_of_the_log_stops_the_start() -> None:
    for clean in (True, False):
        files, expected = filled(clean=clean)
        whole = bytes(files.data[LOG])
        ends = [end for end in range(len(whole)) if _is_whole(whole[:end])]
        assert len(ends) == len(REQUESTS)
        for end in ends:
            damaged = copied(files)
            damaged.data[LOG][:] = whole[:end]
            assert_found_or_stopped(damaged, expected, clean=clean, may_be_whole=False)


def _is_whole(data: bytes) -> bool:
    from odradek.broker.metadata_log.check import check_batches

    return not check_batches(data, 0)[2]


def test_a_damaged_or_older_mark_alone_changes_nothing() -> None:
    for clean in (True, False):
        files, expected = filled(clean=clean)
        older = bytes(files.data[MARK]).replace(b"end.offset=00000000000000000010", b"end.offset=00000000000000000002")
        for content in (None, b"", b"version=1\n", older, *_flipped(bytes(files.data[MARK]))):
            damaged = copied(files)
            if content is None:
                damaged.remove(MARK)
            else:
                damaged.data[MARK][:] = content
            assert outcome(damaged, clean=clean) == expected
            mark = metadata_mark.read(HOME, damaged)
            assert mark is not None
            assert mark.end_offset == expected["end"]


def _flipped(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        yield data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_write_that_a_crash_has_cut_off_is_removed() -> None:
    """It is behind the mark. After a clean stop, and with a damaged mark, that is not known."""
    files, expected = filled(clean=False)
    catalog = opened(files)
    before = len(files.data[LOG])
    for kept in range(1, 200, 3):
        torn = copied(files)
        catalog = opened(torn)
        torn.tear_after(kept)
        try:
            changed(catalog, CreateTopic("torn", UUID(int=7), 1, 1))
        except Crash:
            torn.crash()
        if _is_whole(bytes(torn.data[LOG])):
            break
        for other in (copied(torn), copied(torn)):
            assert isinstance(outcome(other, clean=True), str)
        unmarked = copied(torn)
        unmarked.data[MARK].clear()
        assert isinstance(outcome(unmarked, clean=False), str)
        zeroed = copied(torn)
        zeroed.data[LOG][before:] = bytes(len(zeroed.data[LOG]) - before)
        for end in (torn, zeroed):
            assert outcome(end, clean=False) == expected
            assert len(end.data[LOG]) == before


def test_the_mark_moves_after_the_sync_and_before_the_reply() -> None:
    files = MemoryFiles()
    catalog = opened(files)
    assert files.syncs.count(MARK) == 1, "a power cut leaves no part of a new mark"
    for number in range(1, 4):
        synced = files.syncs.count(LOG)
        catalog.apply(CreateTopic(f"t{number}", UUID(int=number), 1, 1))
        mark = metadata_mark.read(HOME, files)
        assert mark is not None
        assert mark.end_offset == catalog.catalog.log_end_offset
        assert files.syncs.count(LOG) == synced + 1, "the mark needs no sync of its own"
    assert files.syncs.count(MARK) == 1


def test_a_mark_that_cannot_be_written_does_not_refuse_a_change(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    catalog = opened(files)

    def fails(path: Path, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    files.overwrite = fails
    for number in range(1, 4):
        catalog.apply(CreateTopic(f"t{number}", UUID(int=number), 1, 1))
    assert caplog.text.count("metadata-recovery-point could not be written") == 1
    files.crash()
    assert len(list(opened(copied(files)).catalog.topics())) == 3


@pytest.mark.parametrize("old", [None, b"x" * 300], ids=["missing", "damaged"])
def test_a_mark_that_a_start_cannot_write_is_written_by_a_later_change(old: bytes | None) -> None:
    files, _ = filled(clean=True)
    files.remove(MARK)
    if old is not None:
        files.write(MARK, old)
    files.fail_write = lambda path: path == MARK
    catalog = opened(files)
    catalog.apply(CreateTopic("first", UUID(int=71), 1, 1))
    files.fail_write = lambda path: False
    catalog.apply(CreateTopic("second", UUID(int=72), 1, 1))
    mark = metadata_mark.read(HOME, files)
    assert mark is not None
    assert mark.end_offset == catalog.catalog.log_end_offset


def test_a_repair_that_a_crash_interrupts_can_be_repeated() -> None:
    files, _ = filled(clean=False)
    files.data[LOG][:] = bytes(len(files.data[LOG]))
    finished = 0
    for steps in range(200):
        damaged = copied(files)
        damaged.crash_after(steps)
        try:
            RepairPlan(Diagnosis(HOME, damaged), T0).carry_out()
            finished += 1
        except Crash:
            damaged.crash()
            if isinstance(outcome(copied(damaged), clean=False), str):
                repaired(damaged)
        damaged.crash()
        assert state(opened(damaged))["topics"]["precious"].partition_count == 2, steps
        copies = {path.parent for path in damaged.data if path.parent.name.endswith("-stray") and path.name == LOG.name}
        assert len(copies) >= 1 or finished == 0
        if finished:
            return
    pytest.fail("the repair has more than 200 steps")


def test_a_lossy_repair_gives_no_producer_id_twice_and_keeps_all_records() -> None:
    files, expected = filled(clean=False)
    del files.data[LOG][200:]
    found = repaired(files)
    assert found["producer ids"] >= T0
    assert found["producer ids"] % 1000 == 0
    assert found["configs"][TOPIC, "precious"] == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert expected["producer ids"] == 1000


def test_records_that_contradict_others_stop_the_start() -> None:
    """Here the log of another directory follows: its checksums and offsets are right."""
    from support.logs import set_base_offset

    from odradek.broker.metadata_log.check import check_batches

    files, _ = filled(clean=False)
    whole = files.data[LOG]
    first = next(end for end in range(61, len(whole)) if _is_whole(bytes(whole[:end])))
    rest = whole[first:]
    assert check_batches(bytes(rest), 2)[2] == ""
    position, offset = 0, 0
    while position < len(rest):
        size = int.from_bytes(rest[position + 8 : position + 12], "big") + 12
        count = int.from_bytes(rest[position + 57 : position + 61], "big")
        set_base_offset(rest, position, offset, 0)
        position, offset = position + size, offset + count
    files.data[LOG][:] = rest
    files.remove(MARK)
    text = outcome(files, clean=False)
    assert isinstance(text, str)
    assert "names a topic id that does not exist" in text
