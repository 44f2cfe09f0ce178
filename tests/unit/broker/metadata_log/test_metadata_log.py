"""The log of the catalogue: a change is on disk before its reply."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from support.catalogs import changed, written
from support.memory_files import Crash, MemoryFiles

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import Change, ChangeTooLarge
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.catalog.state import GROUP, AlterConfigs, CreatePartitions, CreateTopic, DeleteTopic
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.disk import checkpoints

HOME = Path("/data")
LOG = HOME / DIRECTORY / "00000000000000000000.log"


def opened(files: MemoryFiles, *, clean: bool = False) -> StoredCatalog:
    return StoredCatalog.open(
        HOME, clean=clean, node_id=1, directory_id=UUID(int=9), now_ms=lambda: 1_700_000_000_000, files=files
    )


def create(catalog: StoredCatalog, number: int) -> None:
    catalog.apply(CreateTopic(f"t{number}", UUID(int=number), 1, 1))


def test_each_change_is_synced_before_apply_returns() -> None:
    files = MemoryFiles()
    catalog = opened(files)
    for number in range(1, 4):
        create(catalog, number)
        assert (files.appends.count(LOG), files.syncs.count(LOG)) == (number, number)


def test_many_topics_of_one_request_share_a_batch_and_a_sync() -> None:
    files = MemoryFiles()
    catalog = opened(files)
    change = Change(catalog.catalog.state)
    for number in range(1, 51):
        finish(change.add(CreateTopic(f"t{number}", UUID(int=number), 2, 1, configs={"retention.ms": "1"})))
    with pytest.raises(KafkaError) as refused:
        finish(change.add(CreateTopic("t_50", UUID(int=99), 0, 1)))
    assert refused.value.code is ErrorCode.invalid_partitions
    assert (files.appends.count(LOG), files.syncs.count(LOG)) == (0, 0)
    offset = written(catalog, change)
    assert (files.appends.count(LOG), files.syncs.count(LOG)) == (1, 1)
    delta = finish(catalog.catalog.commit(offset, change.records))
    assert not list(catalog.catalog.topics()), "a topic is not visible before it is published"
    finish(catalog.catalog.on_metadata_update(delta, catalog.catalog))
    before = list(catalog.catalog.topics())
    assert len(before) == 50
    files.crash()
    again = opened(files).catalog
    assert list(again.topics()) == before
    assert again.topic_configs("t7") == {"retention.ms": "1"}


def test_names_that_collide_are_refused_unless_one_request_has_both() -> None:
    """Kafka, too, compares a new name only with the names of existing topics."""
    catalog = opened(MemoryFiles())
    changed(catalog, CreateTopic("a.b", UUID(int=1), 1, 1), CreateTopic("a_b", UUID(int=2), 1, 1))
    catalog.apply(DeleteTopic(UUID(int=1)))
    with pytest.raises(KafkaError, match=r"collides with existing topic: a_b"):
        finish(Change(catalog.catalog.state).add(CreateTopic("a.b", UUID(int=9), 1, 1)))
    catalog.apply(DeleteTopic(UUID(int=2)))
    changed(catalog, CreateTopic("a.b", UUID(int=3), 1, 1))


def test_new_partitions_become_visible_together() -> None:
    catalog = opened(MemoryFiles())
    changed(catalog, CreateTopic("t", UUID(int=1), 2, 1))
    seen = catalog.catalog.topic("t")
    assert seen is not None
    change = Change(catalog.catalog.state)
    finish(change.add(CreatePartitions("t", 5)))
    delta = finish(catalog.catalog.commit(written(catalog, change), change.records))
    assert seen.partition_count == 2
    assert catalog.catalog.topic("t") is seen
    finish(catalog.catalog.on_metadata_update(delta, catalog.catalog))
    grown = catalog.catalog.topic("t")
    assert grown is not None
    assert [partition.partition_id for partition in grown.partitions] == list(range(5))
    assert catalog.catalog.topic_by_id(UUID(int=1)) is grown


def test_after_a_crash_a_change_is_complete_or_absent() -> None:
    size = 0
    for kept in range(0, 3000, 7):
        files = MemoryFiles()
        catalog = opened(files)
        change = Change(catalog.catalog.state)
        for number in range(10):
            finish(change.add(CreateTopic(f"t{number}", UUID(int=number), 3, 1)))
        files.tear_after(kept)
        with pytest.raises(Crash):
            written(catalog, change)
        size = len(change.records)
        files.crash()
        found = list(opened(files).catalog.topics())
        assert len(found) in (0, 10), kept
        if found:
            break
    assert size == 40
    assert found, "the last attempt kept all bytes"


def test_a_change_that_a_crash_cuts_off_is_removed_after_a_clean_stop_too() -> None:
    """A start may change the catalogue, e.g. for ``--delete-config``, before it begins the recovery of the logs."""
    files = MemoryFiles()
    catalog = opened(files)
    create(catalog, 1)
    catalog.close()
    checkpoints.write_clean_shutdown(HOME, files)
    catalog = opened(files, clean=True)
    files.tear_after(30)
    with pytest.raises(Crash):
        create(catalog, 2)
    files.crash()
    again = opened(files, clean=checkpoints.read_clean_shutdown(HOME, files))
    assert [topic.name for topic in again.catalog.topics()] == ["t1"]


def test_a_change_too_large_for_one_batch_is_refused_completely() -> None:
    catalog = opened(MemoryFiles())
    change = Change(catalog.catalog.state)
    finish(change.add(CreateTopic("a", UUID(int=1), 9_000, 1)))
    with pytest.raises(ChangeTooLarge) as refused:
        finish(change.add(CreateTopic("b", UUID(int=2), 999, 1)))
    assert (refused.value.code, refused.value.message) == (
        ErrorCode.policy_violation, "Unable to perform excessively large batch operation.",
    )  # fmt: skip
    change = Change(catalog.catalog.state, None)
    for number in range(250):
        finish(change.add(AlterConfigs(GROUP, f"g{number}", {"x": "v" * 32_000})))
    with pytest.raises(ChangeTooLarge) as refused:
        finish(change.add(AlterConfigs(GROUP, "g", {str(n): "v" * 32_000 for n in range(50)})))
    assert refused.value.code is ErrorCode.record_list_too_large


def test_a_failed_sync_is_an_error() -> None:
    files = MemoryFiles()
    catalog = opened(files)
    files.fail_sync = lambda path: path == LOG
    change = Change(catalog.catalog.state)
    finish(change.add(CreateTopic("t", UUID(int=1), 1, 1)))
    with pytest.raises(KafkaError) as failed:
        written(catalog, change)
    assert failed.value.code is ErrorCode.kafka_storage_error
    assert not list(catalog.catalog.topics())
