"""The data directory: its permissions, and files in it that odradek did not write."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import RunningBroker
from test_connection_shares import run, serving

from odradek.core.errors import StorageError

OF_ZOOKEEPER = "version=0\nbroker.id=7\ncluster.id=jx_qj5jYRE6ajGhwQJ8ulg\n"
OF_A_QUORUM = "version=1\nnode.id=7\ncluster.id=jx_qj5jYRE6ajGhwQJ8ulg\ndirectory.id=R0fj_ZUkQR-US-t5gdj7yA\n"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_a_new_data_directory(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker()
    assert mode(running.directory / "data") == 0o700
    files = [path for path in (running.directory / "data").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if mode(path) & 0o077], "users with their keys may be in the metadata log"


def test_the_mode_of_an_existing_directory_is_not_changed(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with serving(directory):
            pass

    for given in (0o750, 0o755, 0o700):
        directory = tmp_path / f"{given:o}"
        directory.mkdir(given)
        directory.chmod(given)
        run(scenario(directory))
        assert mode(directory) == given


@pytest.mark.parametrize("properties", [OF_ZOOKEEPER, OF_A_QUORUM, None], ids=["zookeeper", "quorum", "none"])
@pytest.mark.parametrize("kept", ["partition.metadata", "00000000000000000000.log"])
def test_logs_without_a_metadata_log_are_refused_and_stay(tmp_path: Path, properties: str | None, kept: str) -> None:
    """The directory of an Apache Kafka with ZooKeeper or with its metadata log elsewhere, or without meta.properties.
    Without this check, a start would treat all logs as logs of deleted topics."""

    async def scenario() -> None:
        async with serving(tmp_path):
            pass

    log = tmp_path / "orders-0"
    log.mkdir()
    (log / kept).write_text("version: 0\ntopic_id: R0fj_ZUkQR-US-t5gdj7yA")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    if properties is not None:
        (tmp_path / "meta.properties").write_text(properties)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StorageError, match="it has logs of topics, orders-0 for one, but no metadata log"):
        run(scenario())
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_other_files_in_a_new_data_directory_do_no_harm(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path):
            pass

    (tmp_path / "notes-1").write_text("a file")
    (tmp_path / "pictures-2").mkdir()
    run(scenario())
    run(scenario())
    assert (tmp_path / "notes-1").read_text() == "a file"
    assert (tmp_path / "pictures-2").is_dir()
