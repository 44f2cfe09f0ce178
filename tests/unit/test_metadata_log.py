"""The catalogue's log: what is on disk before it is promised."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from odradek.broker.metadata_log import DIRECTORY, Catalog
from odradek.catalog.shard import CreateTopic
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.files import MemoryFiles

LOG = Path("/data") / DIRECTORY / "00000000000000000000.log"


def opened(files: MemoryFiles) -> Catalog:
    return Catalog.open(
        Path("/data"), clean=False, node_id=1, directory_id=UUID(int=9), now_ms=lambda: 1_700_000_000_000, files=files
    )


def create(catalog: Catalog, number: int) -> None:
    catalog.apply(CreateTopic(f"t{number}", UUID(int=number), 1, 1))


def test_each_change_is_on_disk_before_it_is_answered() -> None:
    files = MemoryFiles()
    catalog = opened(files)
    for number in range(1, 4):
        create(catalog, number)
        assert (files.appends.count(LOG), files.syncs.count(LOG)) == (number, number)


def test_many_topics_of_one_request_share_a_sync() -> None:
    files = MemoryFiles()
    catalog = opened(files)
    with catalog.in_one_sync():
        for number in range(1, 51):
            create(catalog, number)
        with pytest.raises(KafkaError) as refused:
            create(catalog, 50)
        assert refused.value.code is ErrorCode.topic_already_exists
        assert files.syncs.count(LOG) == 0
    assert files.syncs.count(LOG) == 1
    with catalog.in_one_sync():
        pass
    assert files.syncs.count(LOG) == 1
    create(catalog, 51)
    assert files.syncs.count(LOG) == 2
    files.crash()
    assert len(list(opened(files).topics())) == 51


def test_a_sync_that_fails_at_the_end_is_not_passed_over() -> None:
    files = MemoryFiles()
    catalog = opened(files)
    files.fail_sync = lambda path: path == LOG
    with pytest.raises(KafkaError) as failed, catalog.in_one_sync():
        create(catalog, 1)
    assert failed.value.code is ErrorCode.kafka_storage_error
